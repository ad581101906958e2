"""The transformer, declared as Flax modules whose parameters the parallelism package makes."""

from model.build import build_model
from model.parameters import Role, parameter_roles, parameter_specs, with_parameters
from model.placement import Placement
from model.transformer import Transformer

__all__ = [
    "Placement",
    "Role",
    "Transformer",
    "build_model",
    "parameter_roles",
    "parameter_specs",
    "with_parameters",
]
