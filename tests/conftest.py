"""Every test process has 8 simulated CPU devices; nothing needs to be set up outside."""

import importlib.util
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)

# Tests that compile for TPU; the extra tpu-aot brings libtpu.
collect_ignore_glob = [] if importlib.util.find_spec("libtpu") else ["*_tpu.py"]
