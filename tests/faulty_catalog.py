"""Catalogs whose clients a test can interrupt: just before a commit is sent, or when its response is on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table import CommitTableResponse, Table

#: Sends the commit. May be called later, or never.
Send = Callable[[], "CommitTableResponse"]

_faults: list[Callable[[Send], Any]] = []


@contextlib.contextmanager
def next_commits(*faults: Callable[[Send], Any]) -> Iterator[None]:
    """Pass each of the next commits to one of the functions. In the end, every function must have been used."""
    _faults.extend(faults)
    try:
        yield
        assert not _faults, f"{len(_faults)} faults were never injected"
    finally:
        _faults.clear()


@contextlib.contextmanager
def some_commits(*faults: Callable[[Send], Any]) -> Iterator[None]:
    """Pass the next commits to these functions, as `next_commits` does, but some functions may remain unused."""
    _faults.extend(faults)
    try:
        yield
    finally:
        _faults.clear()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While the body runs, commits have no faults."""
    kept = _faults[:]
    _faults.clear()
    try:
        yield
    finally:
        _faults[:] = kept


class FaultySqlCatalog(SqlCatalog):
    """See above."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        return _sent(lambda: super(FaultySqlCatalog, self).commit_table(table, requirements, updates))


class FaultyRestCatalog(RestCatalog):
    """See above."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        return _sent(lambda: super(FaultyRestCatalog, self).commit_table(table, requirements, updates))


def _sent(send: Send) -> CommitTableResponse:
    response: CommitTableResponse = _faults.pop(0)(send) if _faults else send()
    return response


def faulty(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of the same catalog with a client that can be interrupted."""
    kept = {name: value for name, value in properties.items() if name != "type"}
    kind = FaultyRestCatalog if properties["type"] == "rest" else FaultySqlCatalog
    return {**kept, "py-catalog-impl": f"{__name__}.{kind.__name__}"}
