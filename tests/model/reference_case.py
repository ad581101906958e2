"""A folder with a tiny model and the numbers that transformers computed with it, and ours."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import jax
import numpy as np

from configs import load
from model import parameter_specs, with_parameters
from model.hf.config_json import read_config
from model.hf.folder import Folder
from model.hf.pretrained import load_parameters
from model.hf.save import tensors_of
from model.moe import balance_loss
from parallelism import make_mesh
from tests.quick_compile import QUICK_COMPILE
from training.feed import Feed
from training.loss import token_losses, weighted_sum
from training.setup import declare_run


@dataclasses.dataclass(frozen=True)
class Case:
    """One reference folder."""

    path: Path

    @functools.cached_property
    def numbers(self):
        return dict(np.load(self.path / "reference.npz"))

    def model_config(self, config_json="config.json"):
        return read_config(json.loads((self.path / config_json).read_text()), self.path.name)

    def batches(self):
        """The plain rows and the packed ones, as the loader would give them."""
        z = self.numbers
        tokens = z["input_ids"]
        length = tokens.shape[1]
        plain = {
            "tokens": tokens,
            "targets": np.roll(tokens, -1, 1),
            "weights": np.broadcast_to(np.arange(length) < length - 1, tokens.shape),
            "positions": np.broadcast_to(np.arange(length), tokens.shape),
            "segment_ids": np.ones_like(tokens),
        }
        packed = {
            "tokens": z["packed_input_ids"],
            "targets": np.maximum(z["packed_labels"], 0),
            "weights": z["packed_labels"] >= 0,
            "positions": z["packed_position_ids"],
            "segment_ids": z["packed_segment_ids"],
        }
        return [
            {k: v.astype(np.float32 if k == "weights" else np.int32) for k, v in b.items()}
            for b in (plain, packed)
        ]


@dataclasses.dataclass(frozen=True)
class Result:
    """What our model makes of a batch."""

    logits: np.ndarray
    loss: float
    aux_loss: float
    grads: dict[str, np.ndarray]


def declared(case, sizes, *overrides, scan=True):
    """The case's model with its weights on a mesh of these axis sizes: setup and parameters."""
    devices = jax.devices()[: int(np.prod(list(sizes.values())))]
    mesh = make_mesh(sizes, devices)
    rows, length = case.numbers["input_ids"].shape
    config = load([f"data.batch={rows}", f"data.seq_len={length}", *overrides])
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(case.model_config(), scan_layers=scan),
        mesh=dataclasses.replace(config.mesh, **dict(mesh.shape)),
    )
    setup = declare_run(config, mesh)
    return setup, load_parameters(Folder(case.path), setup.model, mesh)


def compute(case, sizes, *overrides, scan=True):
    """Ours for both batches, on a mesh of these axis sizes."""
    setup, parameters = declared(case, sizes, *overrides, scan=scan)
    feed = Feed(setup.mesh, setup.rules, setup.layout)
    step = jax.jit(functools.partial(_step, setup.model), compiler_options=QUICK_COMPILE)
    return [_result(setup, *step(parameters, feed(batch))) for batch in case.batches()]


def _step(model, parameters, batch):
    def mean_loss(parameters):
        filled = with_parameters(model, parameters)
        out = filled.forward(batch["tokens"], batch["positions"], batch["segment_ids"])
        total, weight = weighted_sum(token_losses(out.logits, batch["targets"]), batch["weights"])
        return total / weight, out

    (loss, out), grads = jax.value_and_grad(mean_loss, has_aux=True)(parameters)
    loads = [load for load in out.loads if load is not None]
    return loss, grads, out.logits, balance_loss(loads) if loads else 0.0


def _result(setup, loss, grads, logits, aux_loss):
    logits = setup.layout.unfold(np.asarray(logits), 1)
    specs = parameter_specs(setup.model)
    tensors = dict(tensors_of(setup.model.config, specs, grads))
    return Result(logits, float(loss), float(aux_loss), tensors)
