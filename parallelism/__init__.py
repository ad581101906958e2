"""Meshes, sharding rules, parameter initialisation, sequence layouts and attention over them."""

from parallelism.attention import (
    AttentionMask,
    AttentionSetup,
    Index,
    UnsupportedError,
    attended_pairs,
    attention,
    attention_and_index_loss,
    balance,
)
from parallelism.exchange import exchange
from parallelism.init import InitProgram, init_sharded, plan_init
from parallelism.initializers import Constant, Normal, TruncatedNormal
from parallelism.layout import Layout
from parallelism.mesh import AXES, make_mesh, resolve_axes, simulate_cpu_devices
from parallelism.params import Initializer, ParamSpec
from parallelism.reorder import reorder_sequence
from parallelism.rules import DEFAULT_RULES, Rules

__all__ = [
    "AXES",
    "DEFAULT_RULES",
    "AttentionMask",
    "AttentionSetup",
    "Constant",
    "Index",
    "InitProgram",
    "Initializer",
    "Layout",
    "Normal",
    "ParamSpec",
    "Rules",
    "TruncatedNormal",
    "UnsupportedError",
    "attended_pairs",
    "attention",
    "attention_and_index_loss",
    "balance",
    "exchange",
    "init_sharded",
    "make_mesh",
    "plan_init",
    "reorder_sequence",
    "resolve_axes",
    "simulate_cpu_devices",
]
