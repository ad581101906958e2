"""Refusing or accepting a config must not wait for JAX."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_loading_a_config_imports_neither_jax_nor_what_is_slow():
    code = (
        "import sys; import configs, configs.command_line, train; configs.load(['seed=1']);"
        "print(sorted({'jax', 'jaxlib', 'flax', 'orbax', 'numpy', 'grain'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
