"""The bounds of a batch in the output, while other programs go on writing."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from unittest.mock import MagicMock

import pytest

from twopc.errors import ConfigurationError
from twopc.integration.migrate import output, probe, rest, unfinished
from twopc.integration.migrate.handover import Bounds, Handover, Kind
from twopc.integration.spark.handed_over import check_once_swept
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.migrate.rest import Comparison
    from twopc.integration.spark.interceptors import InterceptedBatch

SINK: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched", timeout_ms=50)


@pytest.fixture
def respond(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Build the broker's responses to the two requests: the end offsets, and those for read_committed consumers."""
    found = SimpleNamespace(partitions=[SimpleNamespace(id=0), SimpleNamespace(id=1)])
    monkeypatch.setattr(output, "quiet_admin", lambda _: None)
    monkeypatch.setattr(output, "describe", lambda *_, **__: found)
    monkeypatch.setattr(output, "_at_time", lambda *_: {0: 1, 1: 1})

    monkeypatch.setattr(output, "_PAUSE_S", 0.001)

    def answers(*ends: dict[int, int]) -> None:
        left = list(ends)

        def answer(*_: Any, **__: Any) -> dict[int, int]:
            return left.pop(0) if len(left) > 1 else left[0]  # the last response is repeated

        monkeypatch.setattr(output, "offsets", answer)

    return answers


def test_a_record_written_between_the_two_requests_is_not_taken_for_an_open_transaction(
    respond: Callable[..., None],
) -> None:
    respond({0: 5, 1: 5}, {0: 5, 1: 6})
    assert output.bounds_of(SINK, "enriched", 0, 0, None)[1] == Bounds(start=1, exact=1, end=5)


def test_the_command_waits_for_another_programs_open_transaction(respond: Callable[..., None]) -> None:
    """A program that always writes in transactions has one open at nearly every instant. The bounds stay as they were."""
    respond({0: 5, 1: 5}, {0: 5, 1: 3}, {0: 5, 1: 4}, {0: 5, 1: 7})
    assert output.bounds_of(SINK, "enriched", 0, 0, None)[1] == Bounds(start=1, exact=1, end=5)


def test_a_transaction_that_stays_open_is_refused_and_the_error_names_its_partition(
    respond: Callable[..., None],
) -> None:
    respond({0: 5, 1: 5}, {0: 6, 1: 3})
    with pytest.raises(
        ConfigurationError, match=r"enriched\[1\] contains an open transaction.*within 50 ms.*--timeout"
    ):
        output.bounds_of(SINK, "enriched", 0, 0, None)


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_cut_over_notices_that_no_record_from_before_the_batch_is_left(
    first: int, respond: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has deleted the older records, and perhaps rows of the batch, too."""
    monkeypatch.setattr(output, "_at_time", lambda *_: {0: max(first, 1), 1: 3})
    respond({0: 5, 1: 5}, {0: 5, 1: 5}, {0: first, 1: 2})
    found = output.bounds_of(SINK, "enriched", 0, 0, None)
    assert (found[0].follows_deletion, found[1].follows_deletion) == (first > 0, False)
    assert found[0].since(3).follows_deletion == (first > 0)


@pytest.mark.parametrize(
    ("recorded", "first", "is_logged"),
    [
        (Bounds(start=2, exact=2, end=9), 2, False),
        (Bounds(start=2, exact=2, end=9, follows_deletion=True), 2, True),
        (Bounds(start=2, exact=2, end=9), 3, True),
    ],
    ids=["nothing was deleted", "before the cut-over", "since the cut-over"],
)
def test_take_over_warns_that_it_may_write_deleted_rows_again(
    recorded: Bounds,
    first: int,
    is_logged: bool,  # noqa: FBT001 - a case
    respond: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    respond({0: first})
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics={"enriched": {0: recorded}})
    for name in ("_identify", "_records"):
        monkeypatch.setattr(rest, name, MagicMock())
    monkeypatch.setattr(rest, "sf", MagicMock())
    rest.Comparison(MagicMock(), SINK, handover)
    assert [record.getMessage() for record in caplog.records] == is_logged * [
        "the broker has deleted records from enriched (retention.ms?). If these were rows of batch 1, they are written again"
    ]


def test_the_records_of_a_probe_are_nobodys_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide advises to probe the readers before the cut-over. A query's copy of such a record is a row."""

    def record(value: bytes, **facts: Any) -> Any:
        return SimpleNamespace(value=lambda: value, key=lambda: facts.get("key"), headers=lambda: facts.get("headers"))

    ours = [("twopc-probe", b"orders.probe-1")]
    rows = [record(probe._COMMITTED), record(b"row"), record(b"row", headers=ours), record(probe._COMMITTED, key=b"k")]
    monkeypatch.setattr(output, "read_topic", lambda *_, **__: [[record(probe._COMMITTED, headers=ours), *rows]])
    topics = {"enriched": {0: Bounds(start=0, exact=0, end=9)}}
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics)
    assert [message for _, message in output.records_of(SINK, handover)] == rows


@pytest.mark.parametrize(
    ("first", "left"),
    [
        (1, Bounds(start=2, exact=4, end=9)),
        (3, Bounds(start=3, exact=4, end=9)),
        (6, Bounds(start=6, exact=6, end=9)),
        (12, Bounds(start=9, exact=9, end=9)),
    ],
)
def test_records_that_the_broker_has_deleted_lie_outside_the_bounds(
    first: int, left: Bounds, respond: Callable[..., None]
) -> None:
    respond({0: first})
    topics = {"enriched": {0: Bounds(start=2, exact=4, end=9)}}
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics)
    assert output.kept(SINK, handover).topics == {"enriched": {0: left}}


@pytest.mark.parametrize(("first", "is_refused"), [(9, False), (10, True)])
def test_records_that_were_written_after_the_hand_over_and_deleted_may_be_the_old_querys(
    first: int, *, is_refused: bool, respond: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else shows whether the old query still runs. The topic ends at offset 10."""
    respond({0: 10}, {0: first})
    monkeypatch.setattr(unfinished, "records_of", lambda *_: ())
    topics = {"enriched": {0: Bounds(start=2, exact=4, end=9)}}
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics)
    refused = pytest.raises(ConfigurationError, match=r"deleted records .* after the hand-over.*twopc migrate cutover")
    with (
        refused if is_refused else contextlib.nullcontext(),
        unfinished.TakeOver(SINK)._watched(handover, None, is_wanted=True),
    ):
        pass


@pytest.mark.parametrize("other_writers", [False, True])
def test_rows_behind_the_new_querys_own_open_transaction_are_seen_once_its_start_has_ended_the_transaction(
    *, other_writers: bool, respond: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new query was killed, and its transaction began at offset 9. Then the old query was started once more."""
    respond({0: 9}, {0: 0}, {0: 12}, {0: 9}, {0: 12}, {0: 0})
    monkeypatch.setattr(unfinished, "records_of", lambda _, found: range(9, found.topics["enriched"][0].end))
    topics = {"enriched": {0: Bounds(start=2, exact=4, end=9)}}
    handover = Handover(
        query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics, other_writers=other_writers
    )
    comparison = SimpleNamespace(written_again=lambda later: later.topics["enriched"][0].end - 9)
    if other_writers:
        respond({0: 9}, {0: 12}, {0: 9}, {0: 12})
    with (
        unfinished.TakeOver(SINK)._watched(handover, cast("Comparison", comparison), is_wanted=True),
        pytest.raises(ConfigurationError, match=r"^3 records .* written .* Nothing was written"),
    ):
        check_once_swept()
    check_once_swept()  # the next batches are not checked


def test_a_start_does_not_write_while_another_programs_transaction_may_hide_rows(respond: Callable[..., None]) -> None:
    respond({0: 12}, {0: 9})
    topics = {"enriched": {0: Bounds(start=2, exact=4, end=9)}}
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST, topics=topics)
    with pytest.raises(ConfigurationError, match=r"enriched\[0\] contains an open transaction.*the sink's timeout_ms"):
        output.afterward(SINK, handover, is_swept=True)


def test_a_dry_run_also_refuses_a_batch_after_the_handed_over_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's function has caught the error of the first dry run."""
    monkeypatch.setattr(unfinished, "decided_by", lambda *_: None)
    monkeypatch.setattr(unfinished, "open_files", lambda *_: SimpleNamespace(names=lambda _: ()))
    handover = Handover(query_id="q", batch_id=1, offsets=(), kind=Kind.REST)
    batch = cast(
        "InterceptedBatch", SimpleNamespace(sinks=(SINK,), batch_id=2, context=None, checkpoint_location="checkpoint")
    )
    with pytest.raises(
        ConfigurationError, match=r"recorded batch 1 as done.*--old-query-finished 1.*run batch 1 again"
    ):
        unfinished.TakeOver(SINK, dry_run=True)._is_undecided(handover, batch)
