"""What the backward pass keeps of a layer and what it computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

Policy = Callable[..., Any]


def remat_policy(remat: str) -> Policy | None:
    """The `jax.checkpoint` policy of a `model.remat` setting.

    "none" keeps everything but gathered weights: they are gathered again in the backward pass,
    so that no device ever holds more than one layer of them.
    """
    policies = jax.checkpoint_policies
    if remat == "none":
        return _keep_all_but_gathered
    if remat == "full":
        return policies.nothing_saveable
    if remat == "dots":
        return policies.dots_with_no_batch_dims_saveable
    return policies.save_only_these_names(*(name.strip() for name in remat.split(",")))


def _keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    return str(primitive) != "sharding_constraint"
