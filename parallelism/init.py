"""Makes declared parameters: drawn on the devices that hold them, by a few small programs.

    specs = {"kernel": ParamSpec((4096, 1024), "float32", Normal(0.02), ("embed", "mlp"))}
    params = init_sharded(specs, jax.random.key(0), make_mesh({"fsdp": -1}))

A value depends on the key, the parameter's path, its layer, its shape, its dtype and its
initializer; not on the mesh, the rules, the other parameters, the strategy, `stack_bytes`, or
whether its layers are stacked. docs/init.md says how, and for which initializers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from parallelism.draws import KEY_DATA, PRNG
from parallelism.init_programs import Programs, SingleGraph, own_program
from parallelism.kinds import Kind, group_kinds
from parallelism.params import flatten_specs
from parallelism.rules import DEFAULT_RULES, Rules
from parallelism.shared_programs import share

Strategy = Literal["two_stage", "single_graph"]
DEFAULT_STACK_BYTES = 1 << 30


def init_sharded(
    specs: Any,
    key: jax.Array,
    mesh: Mesh,
    rules: Rules = DEFAULT_RULES,
    strategy: Strategy = "two_stage",
    *,
    stack_bytes: int = DEFAULT_STACK_BYTES,
) -> Any:
    """Returns the tree of arrays that a tree of ParamSpec declares, each laid out over the mesh.

    `key` is a threefry key, as `jax.random.key(seed)` makes it. Errors are those of `plan_init`.
    """
    return plan_init(specs, mesh, rules, strategy, stack_bytes=stack_bytes).run(key)


def plan_init(
    specs: Any,
    mesh: Mesh,
    rules: Rules = DEFAULT_RULES,
    strategy: Strategy = "two_stage",
    *,
    stack_bytes: int = DEFAULT_STACK_BYTES,
) -> InitProgram:
    """Chooses the programs that make the parameters; compiles and allocates nothing.

    two_stage: a program for every kind of parameters, or for every initializer and every shape,
    where kinds can share them; the cost to compile grows with the number of kinds only. Shared
    programs draw into memory of at most `stack_bytes` on each device.
    single_graph: one program with an output for every parameter; the reference for tests.
    `mesh` may be of devices that are not here, to compile for them.

    Raises ValueError for a leaf that is no ParamSpec, for a parameter that the rules cannot shard,
    and for two parameters that would draw from one key.
    """
    if strategy not in ("two_stage", "single_graph"):
        raise ValueError(f"init strategy {strategy!r} is neither two_stage nor single_graph")
    if not getattr(jax.config, "jax_threefry_partitionable", True):
        raise ValueError("jax_threefry_partitionable is off; without it, draws depend on the mesh")
    by_path, treedef = flatten_specs(specs)
    kinds = group_kinds(by_path, mesh, rules)
    parts = (
        [SingleGraph(kinds)] if strategy == "single_graph" else _few_programs(kinds, stack_bytes)
    )
    return InitProgram(parts, list(by_path), treedef)


def _few_programs(kinds: Sequence[Kind], stack_bytes: int) -> list[Programs]:
    shared = share(kinds, stack_bytes)
    done = {kind for part in shared for kind in part.kinds}
    return [*shared, *(own_program(kind) for kind in kinds if kind not in done)]


class InitProgram:
    """The programs that make one tree of parameters, and when they are compiled.

    `start_compile` traces them and begins to compile in threads, side by side, so that the caller
    may compile something else; `compile` waits for the end; `run` makes the arrays, as often as one
    likes. `compile_seconds` is wall time from the first trace to the end of the last compile.
    """

    def __init__(self, parts: Sequence[Programs], paths: Sequence[str], treedef: Any) -> None:
        self._parts = parts
        self._paths = paths
        self._treedef = treedef
        self._compiling: list[list[Future[tuple[jax.stages.Compiled, float]]]] = []
        self._started = 0.0
        self.num_programs = sum(part.num_programs for part in parts)
        self.compile_seconds = 0.0

    def start_compile(self) -> InitProgram:
        """Starts to compile in the background; later calls change nothing.

        Raises ValueError for an initializer that gives another shape or dtype than was asked for.
        """
        if self._compiling or not self._parts:
            return self
        self._started = time.perf_counter()
        num_threads = min(self.num_programs, os.cpu_count() or 1)
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="init-compile")
        try:  # tracing holds the interpreter, while the compiler in its threads does not
            self._compiling = [
                [pool.submit(_compile, program) for program in part.lower()] for part in self._parts
            ]
        finally:
            pool.shutdown(wait=False)
        return self

    def compile(self) -> InitProgram:
        """Returns when every program is compiled; raises what their compiling raised."""
        self.start_compile()
        for part, programs in zip(self._parts, self._compiling, strict=True):
            done = [program.result() for program in programs]
            part.compiled = [program for program, _ in done]
            last = max(end for _, end in done) - self._started
            self.compile_seconds = max(self.compile_seconds, last)
        return self

    @property
    def compiled(self) -> list[jax.stages.Compiled]:
        """All executables, to read their HLO and memory analysis; empty before `compile`."""
        return [program for part in self._parts for program in part.compiled]

    def run(self, key: jax.Array) -> Any:
        """Returns the tree of arrays drawn from `key`; raises ValueError if it is no threefry key.

        Alive at once are the arrays made so far, the memory that shared programs draw into, and the
        temporaries of one program.
        """
        root = _key_data(key)
        self.compile()
        arrays = {path: array for part in self._parts for path, array in part.run(root)}
        return jax.tree_util.tree_unflatten(self._treedef, [arrays[path] for path in self._paths])


def _compile(program: jax.stages.Lowered) -> tuple[jax.stages.Compiled, float]:
    """The executable, and the time at which it was there."""
    return program.compile(), time.perf_counter()


def _key_data(key: jax.Array) -> np.ndarray:
    """The words of a threefry key, on the host, so that it may lie on any device."""
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    data = np.asarray(key)
    if data.shape != KEY_DATA.shape or data.dtype != KEY_DATA.dtype:
        raise ValueError(
            f"a key of {data.dtype}{list(data.shape)} is not one of {PRNG}, the generator whose "
            "draws do not depend on the mesh; make it with jax.random.key(seed)"
        )
    return data
