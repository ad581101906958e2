"""Meshes, sharding rules, parameter initialisation, sequence layouts and attention over them."""

from parallelism.layout import Layout

__all__ = ["Layout"]
