"""Starting JAX: processes, real or simulated devices, and the compile cache."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from configs import Config, ConfigError
from parallelism import simulate_cpu_devices
from parallelism.topology import topology_devices
from training.compile_cache import share_compiled_programs, share_no_programs

# Set by the launchers that jax.distributed knows; a run with none of them is one process.
_LAUNCHERS = ("JAX_COORDINATOR_ADDRESS", "SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri")


def start_devices(config: Config) -> list[jax.Device]:
    """Joins the other processes, if any, and returns all devices that the run may use.

    With mesh.topology those are absent ones, to compile for; ConfigError where libtpu is not
    installed or does not know them.
    """
    if config.mesh.topology is not None:
        return _absent_devices(config.mesh.topology)
    if config.mesh.simulate:
        simulate_cpu_devices(config.mesh.simulate)
    _join_processes()
    devices = jax.devices()
    if config.compile_cache and not _locks_up(config, devices):
        share_compiled_programs(Path(config.compile_cache))
    else:
        share_no_programs()
    return devices


def _locks_up(config: Config, devices: list[jax.Device]) -> bool:
    """Whether programs from the cache could wait for ever, as simulated context ranks do.

    XLA's CPU runtime keeps collectives in loops in order with those around them in a program that
    it has just compiled, and not in one that it reads back (JAX 0.10.2).
    """
    return devices[0].platform == "cpu" and len(devices) > 1 and config.mesh.context != 1


def _absent_devices(topology: str) -> list[jax.Device]:
    jax.config.update("jax_platforms", "cpu")  # libtpu would look for chips of its own
    try:
        return topology_devices(topology)
    except ValueError as error:
        raise ConfigError([f"mesh.{error}"]) from error


def _join_processes() -> None:
    if jax.distributed.is_initialized() or not any(name in os.environ for name in _LAUNCHERS):
        return
    explicit = "JAX_COORDINATOR_ADDRESS" in os.environ and "JAX_NUM_PROCESSES" in os.environ
    if explicit:
        jax.distributed.initialize(
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
        )
    elif _num_slurm_tasks() > 1 or "OMPI_MCA_orte_hnp_uri" in os.environ:
        jax.distributed.initialize()


def _num_slurm_tasks() -> int:
    return int(os.environ.get("SLURM_NTASKS", "1"))
