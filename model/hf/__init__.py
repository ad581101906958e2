"""In from Hugging Face folders and out to them."""

from model.hf.errors import HFError
from model.hf.pretrained import Pretrained, load_hf
from model.hf.save import save_hf

__all__ = ["HFError", "Pretrained", "load_hf", "save_hf"]
