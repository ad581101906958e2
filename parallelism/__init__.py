"""Meshes, sharding rules, parameter initialisation, sequence layouts and attention over them."""

from parallelism.layout import Layout
from parallelism.reorder import reorder_sequence

__all__ = ["Layout", "reorder_sequence"]
