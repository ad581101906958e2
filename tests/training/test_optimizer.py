"""Update rules: the same numbers however layers are stored, and exact sums of few bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parallelism import Constant, ParamSpec
from training.adafactor import scale_by_adafactor
from training.optimizer import global_norm
from training.state import train_state_specs

LAYERS = 3
SHAPES = {"matrix": (128, 130), "heads": (130, 4, 128), "small": (6, 5), "norm": (7,)}


def specs(stacked: bool) -> dict[str, list[ParamSpec]]:
    """Parameters of three layers, as one stack each or as three; the tree has lists in both."""

    def declare(shape: tuple[int, ...]) -> list[ParamSpec]:
        rest = ("float32", Constant(0.0))
        axes = tuple(f"axis{dim}" for dim in range(len(shape)))
        if stacked:
            stack = (LAYERS, *shape)
            return [ParamSpec(stack, *rest, ("layers", *axes), layers=range(LAYERS))]
        return [ParamSpec(shape, *rest, axes, layers=layer) for layer in range(LAYERS)]

    return {name: declare(shape) for name, shape in SHAPES.items()}


def gradients(step: int) -> dict[str, np.ndarray]:
    """[L, ...] of every parameter; those of the last layer are of another size at every step."""
    rng = np.random.default_rng(step)
    sizes = np.array([1.0, 0.1, 10.0**step])
    return {
        name: rng.standard_normal((LAYERS, *shape)) * sizes.reshape(-1, *(1 for _ in shape))
        for name, shape in SHAPES.items()
    }


def adafactor(grads: list[np.ndarray]) -> list[np.ndarray]:
    """Updates of one layer's parameter, step by step: algorithm 4 of arXiv 1804.04235."""
    shape, updates = grads[0].shape, []
    first, second = np.argsort(shape)[-2:] if len(shape) > 1 else (0, 0)
    factored = len(shape) > 1 and shape[first] >= 128
    row = column = whole = np.zeros(())
    for number, grad in enumerate(grads, start=1):
        decay, square = 1 - number**-0.8, grad**2 + 1e-30
        row = decay * row + (1 - decay) * square.mean(second, keepdims=True)
        column = decay * column + (1 - decay) * square.mean(first, keepdims=True)
        whole = decay * whole + (1 - decay) * square
        moment = row * column / row.mean(first, keepdims=True) if factored else whole
        update = grad / np.sqrt(moment)
        updates.append(update / max(1.0, np.sqrt((update**2).mean())))
    return updates


@pytest.mark.parametrize("stacked", [True, False])
def test_adafactor_treats_every_layer_by_itself(stacked: bool) -> None:
    rule = scale_by_adafactor(specs(stacked))
    shapes = jax.tree.map(lambda spec: jnp.zeros(spec.shape), specs(stacked))
    state, step = rule.init(shapes), jax.jit(rule.update)
    for number in range(2):
        split = {
            name: [jnp.asarray(grad, jnp.float32)] if stacked else [*jnp.float32(grad)]
            for name, grad in gradients(number).items()
        }
        updates, state = step(split, state, shapes)
        for name, parts in updates.items():
            found = np.concatenate([np.asarray(x).reshape(-1, *SHAPES[name]) for x in parts])
            for layer in range(LAYERS):
                history = [gradients(n)[name][layer] for n in range(number + 1)]
                right = adafactor(history)[-1]
                np.testing.assert_allclose(found[layer], right, rtol=1e-4, atol=1e-6)


def test_factored_moments_of_a_stack_have_the_axes_that_they_kept() -> None:
    optimizer = train_state_specs(specs(True), scale_by_adafactor(specs(True))).optimizer
    matrix = [optimizer.v_row["matrix"][0], optimizer.v_col["matrix"][0]]
    assert [(spec.shape, spec.axes) for spec in matrix] == [
        ((LAYERS, 128), ("layers", "axis0")),
        ((LAYERS, 130), ("layers", "axis1")),
    ]
    assert optimizer.v["small"][0].axes == ("layers", "axis0", "axis1")


def test_the_norm_of_many_small_arrays_in_bfloat16_is_summed_in_float32() -> None:
    tree = [jnp.full(64, 0.5, jnp.bfloat16)] * 513  # a sum in bfloat16 stands still at 4096
    assert float(global_norm(tree)) == pytest.approx(np.sqrt(513 * 16), rel=1e-6)
