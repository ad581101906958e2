"""What the backward pass keeps of a layer and what it computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

Policy = Callable[..., Any]


def remat_policy(remat: str) -> Policy:
    """The `jax.checkpoint` policy of a `model.remat` setting.

    "none" keeps everything but gathered weights: they are gathered again in the backward pass,
    so that no device ever holds more than one layer of them. "dots" keeps what is dear to compute,
    matrix products and attention; the element-wise rest costs less to redo than to write down.
    """
    policies = jax.checkpoint_policies
    if remat == "none":
        return _keep_all_but_gathered
    if remat == "full":
        return policies.nothing_saveable
    if remat == "dots":
        attention = policies.save_only_these_names("attention_out")
        return policies.save_from_both_policies(_keep_products, attention)
    return policies.save_only_these_names(*(name.strip() for name in remat.split(",")))


# That of `Placement.weight` and that of experts. Softmax, a custom_jvp_call too, is soon redone.
_GATHERS = ("custom_jvp_call", "sharding_constraint", "all_gather")


def _keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    return str(primitive) not in _GATHERS


def _keep_products(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Products of activations with weights, those of grouped experts too."""
    if str(primitive) == "ragged_dot_general":
        return True
    if str(primitive) != "dot_general":
        return False
    _, batch_dims = parameters["dimension_numbers"]
    return not any(batch_dims)
