"""Context-parallel attention: strategies, layouts, masks and kernels behind one call."""

from parallelism.attention.blocks import AttentionMask
from parallelism.attention.dispatch import attention, attention_and_index_loss
from parallelism.attention.plan import attended_pairs, balance, plan_attention
from parallelism.attention.selection import Index
from parallelism.attention.setup import AttentionSetup
from parallelism.attention.support import Request, UnsupportedError, unsupported

__all__ = [
    "AttentionMask",
    "AttentionSetup",
    "Index",
    "Request",
    "UnsupportedError",
    "attended_pairs",
    "attention",
    "attention_and_index_loss",
    "balance",
    "plan_attention",
    "unsupported",
]
