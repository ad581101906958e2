"""Context-parallel attention: strategies, layouts and masks behind one call."""

from parallelism.attention.attention import AttentionSetup, attention
from parallelism.attention.plan import AttentionMask, attended_pairs, balance, plan_attention

__all__ = [
    "AttentionMask",
    "AttentionSetup",
    "attended_pairs",
    "attention",
    "balance",
    "plan_attention",
]
