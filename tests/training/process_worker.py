"""One process of several: trains a toy until a signal, saves, and says what happened.

    python process_worker.py RUN_DIR COORDINATOR NUM_PROCESSES PROCESS LAST_STEP [FAIL_AT]

Each finished step prints `step N`. The state is x, which each step adds 1 to; x is sharded over
all devices of all processes. With FAIL_AT the process raises at that step.
"""

from __future__ import annotations

import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from training.checkpoint import Checkpoints
from training.console import Progress, log_to
from training.metrics import MetricsLog
from training.signals import StopSignal, leave


def main(run_dir: str, coordinator: str, count: str, process: str, *rest: str) -> int:
    last_step, fail_at = (*rest, "-1")[:2]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    if int(count):
        jax.distributed.initialize(coordinator, int(count), int(process))
    primary = jax.process_index() == 0
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    advance = jax.jit(lambda x: x + 1, donate_argnums=0)
    with (
        log_to(run_dir, primary, jax.process_index()),
        StopSignal() as stop,
        Checkpoints(f"{run_dir}/checkpoints", keep=2) as checkpoints,
    ):
        wanted = {"x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}
        restored = checkpoints.restore_latest(wanted)
        step = restored.step if restored else 0
        x = (
            restored.state["x"]
            if restored
            else jax.jit(lambda: jnp.zeros(8), out_shardings=sharding)()
        )
        with (
            MetricsLog(run_dir, step, enabled=primary) as metrics,
            Progress(int(last_step), step, primary) as progress,
        ):
            while step < int(last_step) and not stop.agreed():
                if step == int(fail_at):
                    raise ArithmeticError("no more")
                x = advance(x)
                step += 1
                values = {"loss": float(x.addressable_data(0)[0])}
                metrics.write(step, values)
                progress.step(step, values)
                if step % 5 == 0:
                    checkpoints.save(step, {"x": x}, {"process_count": jax.process_count()})
            checkpoints.save(step, {"x": x}, {"process_count": jax.process_count()})
    print(
        f"process {process} ends at step {step} with {stop.exit_code}", file=sys.stderr, flush=True
    )
    return stop.exit_code


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        code = 1
    leave(code)
