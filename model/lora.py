"""Low-rank adapters: factors beside frozen kernels, and ways to take them apart and merge them.

Source: LoRA (arXiv 2106.09685): a kernel W acts as W + alpha / rank * A B; B starts at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from configs.schema import AdapterConfig
from model.expert_factors import products
from model.experts import Experts
from model.parameters import Tree
from model.projection import FACTORS, Projection


def adapt(module: nnx.Module, adapter: AdapterConfig | None) -> None:
    """Adds factors to the projections that the adapter targets, and to experts if it does."""
    if adapter is None or adapter.name == "none":
        return
    targets = {name.strip() for name in adapter.targets.split(",")}
    for path, node in list(nnx.iter_graph(module)):
        if isinstance(node, Projection):
            is_target = node.is_trained and ("all" in targets or str(path[-1]) in targets)
        else:
            is_target = isinstance(node, Experts) and "experts" in targets
        if is_target:
            node.add_factors(adapter.rank, adapter.alpha / adapter.rank)


def freeze_all_but_factors(module: nnx.Module) -> None:
    """Marks every other parameter as one that training leaves alone."""
    for path, param in nnx.iter_graph(module):
        if isinstance(param, nnx.Param) and str(path[-1]) not in FACTORS:
            param.set_metadata(role=replace(param.get_metadata("role"), trained=False))


def trained_part(tree: Tree, roles: Tree) -> Tree:
    """The tree with None in place of what is not trained; the tree itself if all of it is."""
    return jax.tree.map(lambda leaf, role: leaf if role.trained else None, tree, roles)


def joined(part: Tree, rest: Tree) -> Tree:
    """The leaves of `part`, and where it has None those of `rest`."""
    return jax.tree.map(
        lambda new, old: old if new is None else new, part, rest, is_leaf=lambda x: x is None
    )


def without_factors(tree: Tree) -> Tree:
    """A tree of parameters as a model without adapter has it."""
    return {
        name: without_factors(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if name not in (*FACTORS, "factors")
    }


def factors_only(tree: Tree) -> Tree:
    """The tree with None in place of all but the factors."""
    return {
        name: factors_only(value)
        if isinstance(value, dict)
        else (value if name in FACTORS else None)
        for name, value in tree.items()
    }


def joined_by_name(factors: Tree, plain: Tree) -> Tree:
    """The parameters of a plain model, with factors from a tree that has None elsewhere."""
    return {
        name: joined_by_name(value, plain.get(name, {}))
        if isinstance(value, dict)
        else (plain[name] if value is None else value)
        for name, value in factors.items()
    }


def merged(parameters: Tree, specs: Tree, adapter: AdapterConfig) -> Tree:
    """Parameters of the plain model: each kernel with its factors' product added, in its dtype."""
    scale = adapter.alpha / adapter.rank
    return _walk(parameters, specs, lambda node, spec: _merge(node, spec, scale))


def _walk(tree: Tree, specs: Tree, merge: Callable[[Tree, Tree], Tree]) -> Tree:
    if FACTORS[0] in tree or "factors" in tree:
        return merge(tree, specs)
    return {
        name: _walk(value, specs[name], merge) if isinstance(value, dict) else value
        for name, value in tree.items()
    }


def _merge_experts(node: Tree, scale: float) -> Tree:
    @jax.jit
    def add(kernel: jax.Array, change: jax.Array) -> jax.Array:
        return (kernel.astype(jnp.float32) + scale * change).astype(kernel.dtype)

    plain = {name: value for name, value in node.items() if name != "factors"}
    changes = jax.jit(products)(node["factors"])
    return plain | {name: add(node[name], change) for name, change in changes.items()}


def _merge(node: Tree, spec: Tree, scale: float) -> Tree:
    if "factors" in node:
        return _merge_experts(node, scale)
    kernel, down, up = (node[name] for name in ("kernel", *FACTORS))
    stacked = isinstance(spec["kernel"].layers, tuple)
    layers = kernel.shape[0] if stacked else 1
    rank = down.shape[-1]

    @jax.jit
    def add(kernel: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
        product = down.reshape(layers, -1, rank) @ up.reshape(layers, rank, -1)
        total = kernel.astype(jnp.float32) + scale * product.reshape(kernel.shape)
        return total.astype(kernel.dtype)

    plain = {name: value for name, value in node.items() if name not in FACTORS}
    return {**plain, "kernel": add(kernel, down, up)}
