"""Makes declared parameters: drawn on the devices that hold them, by one small program a kind."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from parallelism.draws import KindPrograms, draw, draw_many
from parallelism.kinds import Kind, group_kinds
from parallelism.params import flatten_specs
from parallelism.rules import DEFAULT_RULES, Rules

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
    """Returns the tree of arrays that a tree of ParamSpec declares, each laid out over the mesh."""
    return plan_init(specs, mesh, rules, strategy, stack_bytes=stack_bytes).compile().run(key)


def plan_init(
    specs: Any,
    mesh: Mesh,
    rules: Rules = DEFAULT_RULES,
    strategy: Strategy = "two_stage",
    *,
    stack_bytes: int = DEFAULT_STACK_BYTES,
) -> InitProgram:
    """Lowers the programs that make the parameters; nothing is compiled or allocated yet."""
    by_path, treedef = flatten_specs(specs)
    kinds = group_kinds(by_path, mesh, rules)
    parts: list[_Programs]
    if strategy == "single_graph":
        parts = [SingleGraph(kinds)]
    elif strategy == "two_stage":
        parts = [KindPrograms(kind, stack_bytes) for kind in kinds]
    else:
        raise ValueError(f"init strategy {strategy!r} is neither two_stage nor single_graph")
    return InitProgram(parts, list(by_path), treedef)


class _Programs(Protocol):
    def compile(self) -> None: ...
    @property
    def compiled(self) -> list[Any]: ...
    def run(self, root: np.ndarray) -> Any: ...


class SingleGraph:
    """The reference: one program with an output for every parameter."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        members = [(kind, member) for kind in kinds for member in kind.members]
        self._paths = [member.path for _, member in members]

        def make(root: jax.Array) -> list[jax.Array]:
            return [_make_one(kind, root, member.draws) for kind, member in members]

        jitted = jax.jit(make, out_shardings=[kind.sharding for kind, _ in members])
        self._lowered = jitted.lower(jax.ShapeDtypeStruct((2,), np.uint32))
        self.compiled: list[Any] = []

    def compile(self) -> None:
        self.compiled = [self._lowered.compile()]

    def run(self, root: np.ndarray) -> Any:
        yield from zip(self._paths, self.compiled[0](root), strict=True)


def _make_one(kind: Kind, root: jax.Array, draws: Any) -> jax.Array:
    if kind.ignores_key:
        return kind.initializer(None, kind.shape, kind.dtype)
    ids = jnp.asarray(np.array(draws, np.uint32))
    return draw(kind, root, ids[0]) if kind.num_stacked is None else draw_many(kind, root, ids)


class InitProgram:
    """Compiles in the background from `start_compile` on; `run` draws, as often as one likes.

    `compile_seconds` is the wall time from the start of compiling to the last program's end.
    """

    def __init__(self, parts: Sequence[_Programs], paths: list[str], treedef: Any) -> None:
        self._parts = parts
        self._paths = paths
        self._treedef = treedef
        self._futures: list[Future[float]] = []
        self._started = 0.0
        self.compile_seconds = 0.0

    def start_compile(self) -> InitProgram:
        """Starts to compile the programs side by side in threads and returns at once."""
        if not self._futures:
            self._started = time.perf_counter()
            pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="init-compile")
            self._futures = [pool.submit(_compile_timed, part) for part in self._parts]
            pool.shutdown(wait=False)
        return self

    def compile(self) -> InitProgram:
        """Waits until every program is compiled."""
        self.start_compile()
        self.compile_seconds = max((f.result() for f in self._futures), default=self._started)
        self.compile_seconds -= self._started
        return self

    @property
    def compiled(self) -> list[Any]:
        """Every executable, for reading HLO and memory analysis."""
        return [program for part in self._parts for program in part.compiled]

    @property
    def num_programs(self) -> int:
        return len(self.compiled)

    def run(self, key: jax.Array) -> Any:
        """Draws the tree of arrays from `key`, as made by `jax.random.key(seed)`."""
        self.compile()
        root = _key_data(key)
        arrays = {path: array for part in self._parts for path, array in part.run(root)}
        return jax.tree_util.tree_unflatten(self._treedef, [arrays[p] for p in self._paths])


def _compile_timed(part: _Programs) -> float:
    part.compile()
    return time.perf_counter()


def _key_data(key: jax.Array) -> np.ndarray:
    """The two words of a threefry key, on the host, so that it may live on any device."""
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    data = np.asarray(key)
    if data.shape != (2,) or data.dtype != np.uint32:
        raise ValueError(
            f"the key has data {data.dtype}{list(data.shape)}, not the uint32[2] of threefry2x32, "
            "whose draws do not depend on the mesh; make it with jax.random.key(seed)"
        )
    return data
