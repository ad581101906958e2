"""TensorBoard in a headless Chromium: a server on a log directory, and pages with their text.

Screenshots for the docs: `python -m tests.browser.board RUNS docs/images`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

PAGES = {
    "scalars": "scalars&tagFilter=learning%2F(loss%7Cgrad_norm)%7Cperf%2F(device_s%7Ctokens_p)",
    "hparams": "hparams",
    "images": "images",
    "text": "text",
    "custom_scalars": "custom_scalars",
}
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
# TensorBoard's pages are trees of shadow roots, which innerText does not enter.
_WALK = """
const found = {text: [], images: [], labels: 0};
const walk = node => {
  if (node.nodeType === 3) found.text.push(node.textContent.trim());
  if (node.nodeName === 'STYLE' || node.nodeName === 'SCRIPT') return;
  if (node.nodeName === 'IMG' && node.complete) found.images.push(node.naturalWidth);
  if (node.nodeName === 'text') found.labels += 1;
  if (node.shadowRoot) walk(node.shadowRoot);
  for (const child of node.childNodes) walk(child);
};
walk(document.body);
found.text = found.text.filter(Boolean).join('\\n');
return found;
"""
_SIGHTS = {
    "scalars": ("learning/loss",),
    "hparams": ("optimizer.lr", "Trial ID"),
    "images": ("attended_pairs", "mesh"),
    "text": ("Memory",),
    "custom_scalars": ("time split",),
}
_SECONDS = 120  # generous: two busy cores draw slowly


class Board:
    """A browser on a TensorBoard server."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self._driver = driver
        self._address = address

    def open(self, page: str) -> None:
        """Loads a page afresh; another fragment alone would load nothing."""
        self._driver.get("about:blank")
        self._driver.get(f"{self._address}#{PAGES[page]}")

    def text(self, *expected: str) -> str:
        """The page's text, one line a piece, once all that is expected is there."""
        missing: list[str] = []

        def shown(driver: webdriver.Chrome) -> str | None:
            text = driver.execute_script(_WALK)["text"]
            missing[:] = [word for word in expected if word not in text]
            return None if missing else text

        return self._wait(shown, lambda: f"the page never showed {missing}")

    def image_widths(self, count: int) -> list[int]:
        """Widths in pixels of the pictures in the page, once there are so many."""

        def shown(driver: webdriver.Chrome) -> list[int] | None:
            widths = [width for width in driver.execute_script(_WALK)["images"] if width]
            return widths if len(widths) >= count else None

        return self._wait(shown, lambda: f"the page never showed {count} pictures")

    def axis_labels(self, count: int) -> int:
        """Numbers at the axes of charts, once there are so many: then the charts are drawn."""

        def shown(driver: webdriver.Chrome) -> int | None:
            labels: int = driver.execute_script(_WALK)["labels"]
            return labels if labels >= count else None

        return self._wait(shown, lambda: f"the charts never had {count} numbers at their axes")

    def resize(self, width: int, height: int) -> None:
        """Gives the window a size in pixels."""
        self._driver.set_window_size(width, height)

    def save(self, path: Path) -> None:
        """Writes a small PNG of what the window shows."""
        self._driver.save_screenshot(str(path))
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(64)
        small.save(path, optimize=True)

    def _wait(self, shown: Callable[[webdriver.Chrome], Any], failure: Callable[[], str]) -> Any:
        try:
            return WebDriverWait(self._driver, _SECONDS, poll_frequency=0.3).until(shown)
        except TimeoutException:
            raise AssertionError(failure()) from None


@contextmanager
def open_board(log_dir: Path) -> Iterator[Board]:
    """A server that has read all runs of the log directory, and a browser with an empty profile."""
    with _server(log_dir) as address, _browser() as driver:
        yield Board(driver, address)


@contextmanager
def _browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


@contextmanager
def _server(log_dir: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(log_dir), "--port", "0"]
    command += ["--host", "127.0.0.1", "--load_fast=false", "--reload_interval=1"]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said) as process,
    ):
        try:
            yield _address(process, said, _runs(log_dir))
        finally:
            process.terminate()


def _runs(log_dir: Path) -> set[str]:
    """The names that TensorBoard gives to the runs below a log directory."""
    return {str(path.parent.relative_to(log_dir)) for path in log_dir.rglob("events.out.*")}


def _address(process: subprocess.Popen, said: IO[str], runs: set[str]) -> str:
    """The server's address, once it has read the runs."""
    while process.poll() is None:
        said.seek(0)
        match = re.search(r"http://127\.0\.0\.1:\d+/", said.read())
        if match and set(_get(f"{match[0]}data/runs")) >= runs:
            return match[0]
        time.sleep(0.2)
    said.seek(0)
    raise AssertionError(f"TensorBoard ended: {said.read()}")


def _get(address: str) -> Any:
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)


def save_pages(log_dir: Path, target: Path) -> None:
    """Writes a picture of each page, `tensorboard_<page>.png`."""
    target.mkdir(parents=True, exist_ok=True)
    with open_board(log_dir) as board:
        for page, expected in _SIGHTS.items():
            board.resize(1900 if page == "hparams" else 1280, 500 if page == "hparams" else 900)
            board.open(page)
            board.text(*expected)
            if page == "images":
                board.image_widths(2)
            if page.endswith("scalars"):
                board.axis_labels(40)
            board.save(target / f"tensorboard_{page}.png")


if __name__ == "__main__":
    save_pages(Path(sys.argv[1]), Path(sys.argv[2]))
