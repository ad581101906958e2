"""Packages that only some data needs, imported when it does."""

from __future__ import annotations

import importlib
from typing import Any

from data.documents import DataError


def need(module: str, extra: str, purpose: str) -> Any:
    """Imports a module of an optional package; raises DataError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"{purpose} needs the package {package}, which cannot be imported here ({error}); "
            f"pip install -e '.[{extra}]' brings it"
        ) from error
