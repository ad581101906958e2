"""Tests in a real browser; collected where Selenium and Chromium are (the extra `browser`)."""

import importlib.util
import shutil

_here = importlib.util.find_spec("selenium") and shutil.which("chromedriver")
collect_ignore_glob = [] if _here else ["test_*.py"]
