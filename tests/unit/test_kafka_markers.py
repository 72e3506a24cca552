"""Where the evidence of markers begins and ends (rule 4), to the offset."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sinks.kafka import marker_search
from sinks.kafka.reader import Row
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable

START = 40
MARKER = Row(START, b"ours", b"{}")


class Log:
    """One partition of markers, from ``earliest`` on."""

    name = "twopc-ledger-s"
    admin = None

    def __init__(self, *rows: Row, hidden: bool = False) -> None:
        self._rows = list(rows)
        self._hidden = hidden
        self.reader = SimpleNamespace(read=self._read)

    def write(self, values: list[tuple[int, bytes]]) -> int:
        [(_, barrier)] = values
        self._rows.append(Row(START + 10, None, barrier))
        return START + 10

    def _read(
        self, _topic: str, _partition: int, start: int, last: Callable[[Row], bool], **_: Any
    ) -> list[Row] | None:
        found = [row for row in self._rows if row.offset >= start]
        return found if any(map(last, found)) and not self._hidden else None


def search(log: Any, monkeypatch: pytest.MonkeyPatch, *, earliest: int = 0) -> Evidence:
    monkeypatch.setattr(marker_search, "offsets", lambda *_, **__: {2: earliest})
    return marker_search.search(log, {2: ["ours"]}, {"2": START}, timeout_ms=1)["ours"]


def test_a_marker_at_the_very_beginning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(MARKER), monkeypatch) is Evidence.COMMITTED


def test_a_marker_that_is_not_before_the_barrier_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(Row(START, b"another", b"{}")), monkeypatch) is Evidence.ABORTED


def test_a_barrier_that_is_not_seen_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(Log(MARKER, hidden=True), monkeypatch) is Evidence.UNKNOWN


@pytest.mark.parametrize(("earliest", "proven"), [(START, Evidence.ABORTED), (START + 1, Evidence.UNKNOWN)])
def test_one_record_that_was_deleted_may_have_been_the_marker(
    earliest: int, proven: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search(Log(), monkeypatch, earliest=earliest) is proven
