"""Configuration: Hydra groups in YAML, a typed schema, and every rule checked before JAX starts."""

from configs.errors import ConfigError
from configs.loading import load
from configs.schema import Config

__all__ = ["Config", "ConfigError", "load"]
