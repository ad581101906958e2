"""What is refused on the way in and out of Hugging Face folders."""

from __future__ import annotations

from typing import Any

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


class HFError(ValueError):
    """The folder, its config.json or its tensors cannot become a model, or a model cannot become
    one; the message names the key or the file."""


class Fields:
    """A config.json of which every key must be read, or known to have no effect."""

    def __init__(self, values: dict[str, Any], defaults: Any) -> None:
        self._values, self._defaults = values, defaults
        self._read: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, `a|b` being two names of one; `default` in place of null.

        A key that is left out has the family's default, which may be another.
        """
        names = key.split("|")
        self._read.update(names)
        given = [self._values[name] for name in names if name in self._values]
        values = [value for value in given if value is not None]
        if given:
            return values[0] if values else default
        return self._defaults.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a key that has to be there."""
        value = self.take(key)
        if value is None:
            raise HFError(f"config.json: {key} is missing")
        return value

    def expect(self, key: str, wanted: Any) -> None:
        """Refuses a value other than `wanted` or none at all."""
        value = self.take(key)
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
