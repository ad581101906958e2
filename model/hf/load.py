"""From a Hugging Face folder to parameters on the devices, each device reading its own slices."""

from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np

from configs.model_schema import ModelConfig
from model.hf.errors import HFError
from model.hf.folder import Folder, check_keys
from model.hf.forms import Index
from model.hf.tensors import Stored, stored_parameters
from parallelism import ParamSpec, Rules

log = logging.getLogger("foldtext")

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

# Tensors that old exports hold and no model reads: they follow from config.json.
_WITHOUT_EFFECT = (
    r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)


def read_parameters(
    folder: Folder, config: ModelConfig, specs: Any, mesh: jax.sharding.Mesh, rules: Rules
) -> Any:
    """The tree of arrays that `specs` declares, laid out over the mesh.

    Tensor by tensor; of each, a device reads what its shard holds, cast to the declared dtype.
    Raises HFError naming tensors that are missing, unknown, or of another shape.
    """
    stored = stored_parameters(config, specs)
    expected = {name for one in stored for names in one.names for name in names}
    left = check_keys(folder.keys(), expected, _may_be_left(config))
    if config.tie_embeddings and _HEAD in left:
        _check_tied(folder, (config.vocab_size, config.embed_dim))
    ignored = [name for name in left if name != _HEAD]
    if ignored:
        log.warning("not read from %s: %s", folder.path, ", ".join(ignored[:8]))
    leaves, tree = jax.tree.flatten(specs)
    arrays = [
        _array(folder, one, spec, rules.sharding(mesh, spec.axes, spec.shape))
        for one, spec in zip(stored, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, arrays)


def _may_be_left(config: ModelConfig) -> list[str]:
    patterns = list(_WITHOUT_EFFECT)
    if config.tie_embeddings:
        patterns.append(_HEAD.replace(".", r"\."))
    if config.family.startswith("deepseek_v3"):  # layers that predict further tokens, at the end
        patterns.append(rf"model\.layers\.{config.num_layers}\..*")
    return patterns


def _check_tied(folder: Folder, shape: tuple[int, int]) -> None:
    head, table = (folder.tensor(name, shape)[:] for name in (_HEAD, _EMBEDDING))
    if not np.array_equal(head, table):
        raise HFError(
            f"config.json ties the embeddings, but {_HEAD} differs from {_EMBEDDING}; "
            "tie_word_embeddings=false would keep both"
        )


def _array(folder: Folder, stored: Stored, spec: ParamSpec, sharding: Any) -> jax.Array:
    def read(index: Any) -> np.ndarray:
        return _read(folder, stored, spec, index)

    return jax.make_array_from_callback(spec.shape, sharding, read)


def _read(folder: Folder, stored: Stored, spec: ParamSpec, index: tuple[slice, ...]) -> np.ndarray:
    """One shard of a parameter."""
    layers = range(len(stored.names))[index[0]] if stored.stacked else range(1)
    own = dict(zip(stored.form.ours, index[1:] if stored.stacked else index, strict=True))
    parts = [_read_layer(folder, stored, stored.names[layer], own) for layer in layers]
    whole = np.stack(parts) if stored.stacked else parts[0]
    return np.ascontiguousarray(whole.astype(spec.dtype))


def _read_layer(folder: Folder, stored: Stored, names: tuple[str, ...], own: Index) -> np.ndarray:
    if stored.by_expert:
        names = names[own["E"]]
    parts = [
        stored.form.read(folder.tensor(name, stored.shape), own, stored.sizes) for name in names
    ]
    return np.stack(parts) if stored.by_expert else parts[0]
