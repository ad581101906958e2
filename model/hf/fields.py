"""A config.json as its readers see it: every key read once, of the right kind, or refused."""

from __future__ import annotations

from typing import Any

from model.hf.errors import HFError

# What is off in every family that does not read the key; false says no more than that.
_SWITCHES = frozenset(
    [
        "add_cross_attention",
        "alibi",
        "attention_bias",
        "attn_temperature_tuning",
        "is_encoder_decoder",
        "mlp_bias",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "qkv_bias",
        "qk_layernorm",
        "rope_interleave",
        "rope_interleaved",
        "tie_encoder_decoder",
        "torchscript",
        "use_bias",
        "use_bidirectional_attention",
        "use_mrope",
        "use_qk_norm",
        "use_sliding_window",
    ]
)

_NUMBERS = (int, float)
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(("rope_parameters", "rope_scaling"), ("an object", (dict,))),
    **dict.fromkeys(
        ("layer_types", "no_rope_layers", "mlp_only_layers", "mlp_layer_types"), ("a list", (list,))
    ),
    **dict.fromkeys(("hidden_act", "hidden_activation", "topk_method"), ("text", (str,))),
    **dict.fromkeys(
        (
            *("rms_norm_eps", "initializer_range", "rope_theta", "rope_local_base_freq"),
            *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
            *("swiglu_limit", "routed_scaling_factor", "router_aux_loss_coef"),
        ),
        ("a number", _NUMBERS),
    ),
    **dict.fromkeys(
        (
            *("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"),
            *("norm_topk_prob", "output_router_logits", "rope_interleave"),
        ),
        ("true or false", (bool,)),
    ),
}
_MAY_BE_ZERO = ("first_k_dense_replace", "max_window_layers", "n_shared_experts")


class Fields:
    """A config.json of which every key must be read, or known to have no effect."""

    def __init__(self, values: dict[str, Any], defaults: Any) -> None:
        self._values, self._defaults = values, defaults
        self._read: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, `a|b` being two names of one; `default` in place of null.

        A key that is left out has the family's default, which may be another. Raises HFError for a
        value of another kind than the key has; most are whole numbers.
        """
        names = key.split("|")
        self._read.update(names)
        given = [(name, self._values[name]) for name in names if name in self._values]
        if not given:
            return self._defaults.get(key, default)
        values = [_checked(name, value) for name, value in given if value is not None]
        return values[0] if values else default

    def need(self, key: str) -> Any:
        """The value of a key that has to be there."""
        value = self.take(key)
        if value is None:
            raise HFError(f"config.json: {key} is missing")
        return value

    def expect(self, key: str, wanted: Any) -> None:
        """Refuses a value other than `wanted` or none at all."""
        self._read.add(key)
        value = self._values.get(key)
        if value is not None and value != wanted:
            supported = "null" if wanted is None else repr(wanted)
            raise HFError(f"config.json: {key}={value!r} is not supported; {supported} is")

    def finish(self, ignored: frozenset[str]) -> None:
        """Refuses keys that nobody has read, unless they are ignored or leave something off."""
        left = {
            key: value
            for key, value in self._values.items()
            if key not in self._read
            and key not in ignored
            and value is not None
            and not (value is False and key in _SWITCHES)
        }
        if left:
            named = ", ".join(f"{key}={value!r}" for key, value in left.items())
            raise HFError(
                f"config.json: {named}: not known for this family, and may change what the model "
                "computes; remove what has no effect"
            )


def _checked(key: str, value: Any) -> Any:
    kind, types = _KINDS.get(key, ("a whole number", (int,)))
    is_kind = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if not is_kind:
        raise HFError(f"config.json: {key}={value!r} is not {kind}")
    least = 0 if key in _MAY_BE_ZERO else 1
    if key not in _KINDS and value < least:
        raise HFError(f"config.json: {key}={value!r}: it takes {least} or more")
    return value
