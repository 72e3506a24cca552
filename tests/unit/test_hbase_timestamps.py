"""The timestamps of a decision's slices in HBase. A later timestamp wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.sinks.hbase import HBaseSink, Put
from twopc.sinks.hbase.fence import Fence, Progress, starts_of, top_of
from twopc.sinks.hbase.staging import HBaseHandle
from twopc.sinks.staged.committer import StagedCommitter

if TYPE_CHECKING:
    import pytest

BASE = 1_000


def slice_of(partition: int, *, chunks: int = 1, distinct: bool = False, operation: str = "PUT") -> HBaseHandle:
    return HBaseHandle(
        uuid=f"u{partition}",
        driver_epoch=1,
        rows=chunks,
        checksum="",
        partition=partition,
        table="t",
        operation=operation,
        chunks=chunks,
        distinct=distinct,
    )


def taken(handles: list[HBaseHandle], tombstones: dict[str, int] | None = None) -> list[range]:
    """Each slice's timestamps, from the version on."""
    starts = starts_of(handles, 0, tombstones or {})
    return [range(starts[handle], starts[handle] + handle.further_ms + 1) for handle in handles]


def test_slices_without_a_common_key_in_their_chunks_take_one_timestamp_each() -> None:
    handles = [slice_of(0, chunks=7, distinct=True), slice_of(3, chunks=2, distinct=True)]
    assert taken(handles) == [range(1), range(3, 4)]


def test_each_chunk_that_may_share_a_key_has_its_own_timestamp_in_the_order_of_tasks() -> None:
    handles = [slice_of(4, chunks=2), slice_of(0, chunks=3), slice_of(1, chunks=5, distinct=True)]
    assert taken(handles) == [range(6, 8), range(3), range(3, 4)]
    assert top_of(handles, BASE) == BASE + 7


def test_operations_other_than_puts_take_no_further_timestamps() -> None:
    assert [slice_of(0, chunks=9, operation=kind).further_ms for kind in ("DELETE", "INCREMENT", "APPEND")] == [0, 0, 0]


def test_the_highest_timestamp_takes_the_progress_of_a_long_slice_into_account() -> None:
    assert top_of([slice_of(0, chunks=9, distinct=True)], BASE) == BASE + 9


def test_a_slice_that_replaces_a_lost_slice_is_applied_after_all_others() -> None:
    lost, kept = slice_of(0, chunks=50), slice_of(1, chunks=2)
    [_, before] = taken([lost, kept])
    again = slice_of(2, chunks=3)
    [_, after] = taken([kept, again], {lost.uuid: lost.further_ms})
    assert after.start >= before.stop
    # A paused driver that still knows the lost slice writes at the timestamps of its first try.
    assert taken([lost, kept], {lost.uuid: lost.further_ms})[1] == before


def test_the_next_version_is_above_the_timestamps_of_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(BASE, BASE + 10, {}, {"lost": 49})
    monkeypatch.setattr(Fence, "read", lambda *_: progress)
    monkeypatch.setattr(StagedCommitter, "begin_attempt", lambda self: {"above": self._highest_version})
    committer = HBaseSink(name="s", zookeeper="h:1", table="t", mapping=Put("{id}", {"d:v": "v"})).create_committer()
    assert committer.begin_attempt() == {"above": BASE + 59}
