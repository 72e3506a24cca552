"""Use exactly-once sinks in a PySpark streaming query: ``writeStream.foreachBatch(exactly_once(sink, …))``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import missing_extra

if TYPE_CHECKING:
    from twopc.integration.spark.direct import DriverUpTo
    from twopc.integration.spark.exits import exit_status
    from twopc.integration.spark.foreach_batch import ExactlyOnce, exactly_once
    from twopc.integration.spark.interceptors import InterceptedBatch, Interceptor, intercepted

__all__ = [
    "DriverUpTo",
    "ExactlyOnce",
    "InterceptedBatch",
    "Interceptor",
    "exactly_once",
    "exit_status",
    "intercepted",
]

_HOMES: Final = {
    "DriverUpTo": "direct",
    "ExactlyOnce": "foreach_batch",
    "exactly_once": "foreach_batch",
    "InterceptedBatch": "interceptors",
    "Interceptor": "interceptors",
    "exit_status": "exits",
    "intercepted": "interceptors",
}

if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import the public names on first use (PEP 562).

        Each of Spark's Python workers imports this package to reach ``task``. Importing the driver's modules, too, would take
        more than twice as long. ``twopc verify`` imports the package to reach ``checkpoint``, but does not need PySpark.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"twopc.integration.spark.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            raise missing_extra("twopc.integration.spark", "spark", error) from error
