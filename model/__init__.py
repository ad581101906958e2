"""The transformer, declared as Flax modules whose parameters the parallelism package makes."""

from model.build import build_model
from model.hf import HFError, Pretrained, load_hf, save_hf
from model.layer_plan import layer_kinds
from model.moe import Load, balance_loss, correct_routers
from model.parameters import Role, parameter_roles, parameter_specs, with_parameters
from model.placement import Placement
from model.transformer import Head, Transformer

__all__ = [
    "HFError",
    "Head",
    "Load",
    "Placement",
    "Pretrained",
    "Role",
    "Transformer",
    "balance_loss",
    "build_model",
    "correct_routers",
    "layer_kinds",
    "load_hf",
    "parameter_roles",
    "parameter_specs",
    "save_hf",
    "with_parameters",
]
