"""Where each parameter is in a Hugging Face file: tensor names, forms and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from configs.model_schema import ModelConfig
from model.hf.families import names_of
from model.hf.forms import Form, letter_sizes, parse_form
from model.hf.names import expert_factor_names, factor_names
from parallelism import ParamSpec


@dataclass(frozen=True)
class Stored:
    """One parameter: `names[i]` are the tensors of its i-th layer (one, or one an expert)."""

    path: str
    form: Form
    sizes: Mapping[str, int]
    names: tuple[tuple[str, ...], ...]
    stacked: bool

    @property
    def by_expert(self) -> bool:
        """Whether each expert has a tensor of its own."""
        return len(self.form.letters) < len(self.form.ours)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each tensor."""
        return self.form.shape(self.sizes)


def stored_parameters(config: ModelConfig, specs: Any) -> list[Stored]:
    """Every parameter of a tree of ParamSpec, in the order of the tree."""
    names = dict(names_of(config.family))
    names |= factor_names(names)
    names |= expert_factor_names(is_interleaved=config.family == "gpt_oss")
    found = []
    for keys, spec in jax.tree_util.tree_leaves_with_path(specs):
        parts = [str(key.key) for key in keys]
        path = "/".join(part for part in parts if not part.isdecimal())
        assert path in names, f"{path} has no name in the family {config.family}"
        found.append(_stored("/".join(parts), *names[path], spec))
    return found


def _stored(path: str, name: str, form_text: str, spec: ParamSpec) -> Stored:
    form, stacked = parse_form(form_text), isinstance(spec.layers, tuple)
    sizes = letter_sizes(form, spec.shape[1:] if stacked else spec.shape)
    experts = range(sizes["E"]) if "{expert}" in name else range(1)
    if spec.layers is None:
        layers: Iterator[str] = iter([name])
    else:
        numbers = spec.layers if isinstance(spec.layers, tuple) else (spec.layers,)
        layers = (f"model.layers.{number}.{name}" for number in numbers)
    named = tuple(tuple(one.format(expert=e) for e in experts) for one in layers)
    return Stored(path, form, sizes, named, stacked)
