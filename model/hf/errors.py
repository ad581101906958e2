"""What is refused on the way in and out of Hugging Face folders."""

from __future__ import annotations


class HFError(ValueError):
    """The folder, its config.json or its tensors cannot become a model, or a model cannot become
    one; the message names the key or the file."""
