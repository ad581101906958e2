"""Every test process has 8 simulated CPU devices; nothing needs to be set up outside."""

import gc
import importlib.util
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)

# Tests that compile for TPU (the extra tpu-aot brings libtpu), and tests of exports that want
# torch and transformers to load them, and that of the GGUF converter.
_WANTS = {
    "*_tpu.py": ("libtpu",),
    "*_transformers.py": ("torch", "transformers"),
    "*_gguf_to_hf.py": ("gguf",),
}
collect_ignore_glob = [
    pattern for pattern, names in _WANTS.items() if not all(map(importlib.util.find_spec, names))
]


def pytest_collection_finish() -> None:
    """Garbage is looked for less often, and not in what is imported: a tenth of all time else."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
