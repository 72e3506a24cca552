"""Help an operator examine a query's sinks, end transactions manually, and take and restore savepoints.

The commands are ``twopc status``, ``twopc resolve``, ``twopc transactions …`` and ``twopc savepoint …``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import missing_extra

if TYPE_CHECKING:
    from twopc.integration.operate.boundary import Savepoints, StoppedWithSavepointError
    from twopc.integration.operate.progress import SourceProgress
    from twopc.integration.operate.request import stop_with_savepoint
    from twopc.integration.operate.restore import restore_savepoint
    from twopc.integration.operate.savepoint import create_savepoint

__all__ = [
    "Savepoints",
    "SourceProgress",
    "StoppedWithSavepointError",
    "create_savepoint",
    "restore_savepoint",
    "stop_with_savepoint",
]

if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist
    _HOMES: Final = {
        "SourceProgress": "progress",
        "create_savepoint": "savepoint",
        "restore_savepoint": "restore",
        "stop_with_savepoint": "request",
    }

    def __getattr__(name: str) -> Any:
        """Import the public names on first use (PEP 562): ``twopc --help`` does not need these modules."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"twopc.integration.operate.{_HOMES.get(name, 'boundary')}"), name)
        except ModuleNotFoundError as error:
            raise missing_extra("twopc.integration.operate", "verify", error) from error
