"""A model with its parameters, to be called, and its way in from a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from configs import Config, load
from configs.validate import validate
from model.build import build_model
from model.hf.config_json import CARRIED, read_config
from model.hf.errors import HFError
from model.hf.folder import Folder
from model.hf.load import read_parameters
from model.lora import without_factors
from model.parameters import parameter_specs, with_parameters
from model.placement import Placement
from model.transformer import Transformer
from parallelism import make_mesh


@dataclass(frozen=True)
class Pretrained:
    """A declared model, its parameters, and the keys of config.json that go along with it."""

    model: Transformer
    parameters: Any
    carried: dict[str, Any] = field(default_factory=dict)

    def __call__(self, tokens: Any, positions: Any = None, segment_ids: Any = None) -> jax.Array:
        """Next-token logits: int32 [B, T] -> float32 [B, T, V], in the order of the tokens.

        Positions default to 0..T-1; tokens attend within their segment, those of segment 0 to
        nothing.
        """
        given = (tokens, positions, segment_ids)
        arrays = [None if x is None else jnp.asarray(x, jnp.int32) for x in given]
        return self._compiled(self.parameters, *arrays)

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(lambda parameters, *inputs: with_parameters(self.model, parameters)(*inputs))


def load_hf(path: str | Path, dtype: str = "float32", device: Any = None) -> Pretrained:
    """The model in a Hugging Face folder, on one device, stored and computed in `dtype`.

    Raises HFError, naming the key or the tensor, for what is not supported or does not fit.
    """
    folder = Folder(path)
    values = folder.config()
    config = dataclasses.replace(
        read_config(values, Path(path).name),
        param_dtype=dtype,  # type: ignore[arg-type]
        compute_dtype=dtype,  # type: ignore[arg-type]
    )
    if problems := validate(dataclasses.replace(_plain(), model=config)):
        raise HFError(f"{path}: {'; '.join(problems)}")
    mesh = make_mesh({}, [jax.devices()[0] if device is None else device])
    model = build_model(config)
    return Pretrained(model, load_parameters(folder, model, mesh), carried_keys(values))


@functools.cache
def _plain() -> Config:
    """What a model is checked with that comes without data."""
    return load(["data=synthetic"])


def load_parameters(folder: Folder, model: Transformer, mesh: Mesh) -> Any:
    """The parameters of a declared model from an open folder, laid out over the mesh."""
    specs = without_factors(parameter_specs(model))
    return read_parameters(folder, model.config, specs, mesh, model.placement.rules)


def carried_keys(values: dict[str, Any]) -> dict[str, Any]:
    """What an export of the same model writes again."""
    return {key: value for key, value in values.items() if key in CARRIED}


__all__ = ["Placement", "Pretrained", "carried_keys", "load_hf", "load_parameters"]
