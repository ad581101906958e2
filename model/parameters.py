"""Declaring parameters in Flax modules, and moving between modules and plain trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from parallelism import Initializer, ParamSpec

Tree = dict[str, Any]


@dataclass(frozen=True)
class Role:
    """What a parameter is to the optimizer, whatever its rank is once layers are stacked.

    `decays`: weight decay applies (matrices and tables, not norm scales or biases).
    `num_input_dims`: of a matrix between activations, how many leading dimensions are contracted
    with the input; None for anything else (tables, heads, vectors). Muon needs it.
    `num_batch_dims`: dimensions before those, over which matrices lie side by side (experts).
    `trained`: the optimizer changes it.
    """

    decays: bool
    num_input_dims: int | None = None
    num_batch_dims: int = 0
    trained: bool = True


VECTOR = Role(decays=False)
TABLE = Role(decays=True)


def declare(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    initializer: Initializer,
    dtype: jnp.dtype,
    role: Role,
) -> nnx.Param:
    """A parameter that has a shape, logical axes and an initializer but no memory yet."""
    return nnx.Param(
        jax.ShapeDtypeStruct(shape, dtype),
        initializer=initializer,
        axes=axes,
        role=role,
        layers=None,
    )


def assign_layers(module: nnx.Module, layers: int | tuple[int, ...]) -> None:
    """Marks every parameter of a module as that of one layer, or stacks it over several."""
    for _, param in nnx.iter_graph(module):
        if not isinstance(param, nnx.Param):
            continue
        param.set_metadata(layers=layers)
        if isinstance(layers, tuple):
            value = param.get_raw_value()
            param.set_metadata(axes=("layers", *param.get_metadata("axes")))
            param.set_raw_value(jax.ShapeDtypeStruct((len(layers), *value.shape), value.dtype))


def parameter_specs(model: nnx.Module) -> Tree:
    """The declaration of every parameter: a nested dict of `ParamSpec`, keyed by strings."""
    return _map_parameters(
        model,
        lambda param: ParamSpec(
            shape=param.get_raw_value().shape,
            dtype=param.get_raw_value().dtype,
            initializer=param.get_metadata("initializer"),
            axes=param.get_metadata("axes"),
            layers=param.get_metadata("layers"),
        ),
    )


def parameter_roles(model: nnx.Module) -> Tree:
    """The `Role` of every parameter; same tree as `parameter_specs`."""
    return _map_parameters(model, lambda param: param.get_metadata("role"))


def with_parameters(model: nnx.Module, parameters: Tree) -> Any:
    """The model with the given arrays in place of its declarations; works under jit."""
    graph, declared = nnx.split(model, nnx.Param)
    filled = [
        (path, param.replace(_at(parameters, path))) for path, param in nnx.to_flat_state(declared)
    ]
    return nnx.merge(graph, nnx.from_flat_state(filled))


def _map_parameters(model: nnx.Module, function: Any) -> Tree:
    tree: Tree = {}
    for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(str(part), {})
        branch[str(path[-1])] = function(param)
    return tree


def _at(tree: Tree, path: tuple[Any, ...]) -> Any:
    for part in path:
        tree = tree[str(part)]
    return tree
