"""A cut-over is run again, after the new query has begun the batch that was handed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from twopc.binding import FORMAT, Binding, Bound
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate import cutover
from twopc.integration.migrate.handover import Bounds, Handovers, Kind
from twopc.integration.migrate.output import Tally
from twopc.integration.migrate.place import Place
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

QUERY: Final = "5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"
SINK: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched")
WANTED: Final = cutover.Cutover(topics=("enriched",), starts={})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Batch 1 is unfinished, and was handed over. Later, the output has two more records."""
    for directory, last in (("offsets", 1), ("commits", 0)):
        (tmp_path / directory).mkdir()
        for number in range(last + 1):
            (tmp_path / directory / str(number)).write_text('v1\n{"batchTimestampMs":5}\n{"in":{"0":0}}')
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    ends = iter((4, 6, 6))
    monkeypatch.setattr(cutover, "bounds_of", lambda *_: {0: Bounds(start=0, exact=0, end=next(ends))})
    monkeypatch.setattr(cutover, "tally", lambda *_: Tally())
    place = Place(LocalFiles(tmp_path), LocalFiles(tmp_path / "twopc"))
    cutover.record(cutover.find(WANTED, place, SINK), place)
    return place


def decided(place: Place, monkeypatch: pytest.MonkeyPatch, batch_id: int | None) -> None:
    """The new query has decided a batch. A query binds its sinks before its first decision."""
    facts = {"cluster": "here", "ledger": SINK.ledger}
    Binding(place.own).bind(Bound(format=FORMAT, log=SINK.ledger, log_identity="id", sinks={"orders": facts}), 0)

    def last(query_id: str, sink: KafkaSink, sinks: Any) -> int | None:
        assert (query_id, sink, list(sinks)) == (QUERY, SINK, [SINK])
        return batch_id

    monkeypatch.setattr(cutover, "decided_by", last)
    monkeypatch.setattr(cutover, "sinks_of", lambda *_: [SINK])


def test_a_batch_that_the_new_query_has_decided_cannot_be_handed_over_with_new_bounds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new bounds would also contain the new query's own rows, and no replay would be the same again."""
    decided(place, monkeypatch, 1)
    with pytest.raises(ConfigurationError, match=r"Batch 1 .* decided .*Start the new query.*twopc migrate rollback"):
        cutover.find(WANTED, place, SINK)


@pytest.mark.parametrize("last", [None, 0])
def test_a_batch_that_the_new_query_has_not_decided_may_be_handed_over_again(
    last: int | None, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(place, monkeypatch, last)
    assert cutover.find(WANTED, place, SINK).handover.topics["enriched"][0].end == 6


def test_without_a_decision_the_ledger_is_not_read(place: Place) -> None:
    """So a repeated command needs no permission on the ledger."""
    assert cutover.find(WANTED, place, SINK).handover.topics["enriched"][0].end == 6


def test_a_batch_returned_to_the_old_sink_may_be_handed_over_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rollback, only the old sink writes."""
    handovers = Handovers(place.own)
    first = handovers.newest()
    assert first is not None
    handovers.add(msgspec.structs.replace(first, is_back=True))
    decided(place, monkeypatch, 1)
    assert cutover.find(WANTED, place, SINK).handover.kind is Kind.REST
