"""Migrate an at-least-once pipeline to transactional sinks, with `TakeOver` and the commands ``twopc migrate …``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twopc.errors import missing_extra

if TYPE_CHECKING:
    from twopc.integration.migrate.unfinished import TakeOver

__all__ = ["TakeOver"]

if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import the public names on first use (PEP 562), so that ``twopc migrate --help`` needs no PySpark."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module("twopc.integration.migrate.unfinished"), name)
        except ModuleNotFoundError as error:
            raise missing_extra("twopc.integration.migrate", "spark", error) from error
