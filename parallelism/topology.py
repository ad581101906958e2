"""Devices to compile for without having them: any TPU topology, on a machine with CPUs only."""

from __future__ import annotations

import importlib.util
import os
from typing import Final

import jax

# libtpu would ask a cloud machine's metadata server, lock itself to one process and log to /tmp.
_ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


def topology_devices(name: str) -> list[jax.Device]:
    """The devices of a TPU topology such as v5p:4x4x8 or v6e:16x16, to compile for only.

    A mesh of them serves jit(...).lower(...).compile(); nothing can be placed on them or run. No
    JAX backend is started. Raises ValueError where libtpu is not installed (extra tpu-aot), and for
    a name that libtpu does not know, with its reason.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            f"topology={name}: compiling for TPU takes libtpu; pip install 'foldtext[tpu-aot]'"
        )
    from jax.experimental import topologies

    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        return list(topologies.get_topology_desc(name, platform="tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology={name}: {error}") from error
