"""A rollback of a query with a sink that the command cannot reach. It fences nothing, so it needs a finished batch."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import msgspec
import pytest
from typer.testing import CliRunner

from twopc.batch import Batch
from twopc.binding import Binding
from twopc.bound import FORMAT, Bound
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.cli import app
from twopc.integration.migrate import deciding, rollback
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.migrate.place import Place
from twopc.integration.migrate.rollback import roll_back
from twopc.integration.spark.handed_over import require_taken_over
from twopc.log_view import LogView
from twopc.recovery import Outcome
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

QUERY: Final = "5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"
SINK: Final = KafkaSink(name="orders", bootstrap_servers="127.0.0.1:1", topic="enriched")
HANDED_OVER: Final = Handover(query_id=QUERY, batch_id=0, offsets=("o",), kind=Kind.NOTHING)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The new query has finished batch 1, and was stopped."""
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
        for number in (0, 1):
            (tmp_path / directory / str(number)).write_text('v1\n{}\n{"in":{"0":0}}')
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    monkeypatch.setattr(deciding, "_view_of", lambda _: LogView())
    return Place(LocalFiles(tmp_path), LocalFiles(tmp_path / "twopc"))


def bind(place: Place) -> None:
    sinks = {"orders": {"cluster": "here", "ledger": SINK.ledger}, "events": {"table": "t"}}
    Binding(place.own).bind(Bound(format=FORMAT, log=SINK.ledger, log_identity="id", sinks=sinks), 0)


@pytest.mark.parametrize("is_handed_over", [True, False])
def test_after_the_way_back_the_new_query_does_not_start_again_although_it_was_not_fenced(
    place: Place, tmp_path: Path, *, is_handed_over: bool
) -> None:
    """The old query may be killed in the middle of batch 2, which the new query would write once more."""
    bind(place)
    if is_handed_over:
        Handovers(place.own).add(HANDED_OVER)
    words = ("--bootstrap-servers", "127.0.0.1:1", "--sink", "orders", "--checkpoint", str(tmp_path))
    result = CliRunner().invoke(app, ["migrate", "rollback", *words])
    said = " ".join(result.output.split())
    assert result.exit_code == 0, said
    assert "the old sink begins with batch 2. The command cannot reach sink 'events', so it has not fenced" in said
    assert (
        "do not start the old query yet" in said and "Stop the transactional query, and run this command again." in said
    )
    newest = Handovers(place.own).newest()
    assert newest is not None
    assert (newest.batch_id, newest.kind, newest.is_back) == (1, Kind.NOTHING, True)
    with pytest.raises(ConfigurationError, match="has returned this checkpoint to the old sink"):
        require_taken_over(place.own, Batch(QUERY, 2, ("o",), lambda _: None), lambda: 1)


def test_a_way_back_that_came_too_early_is_repeated_after_the_new_query_has_finished_its_batch(
    place: Place, tmp_path: Path
) -> None:
    """The new query was still running, and was killed after it had decided batch 2. The old query would duplicate the batch."""
    bind(place)
    roll_back(place, SINK)
    (tmp_path / "offsets" / "2").write_text('v1\n{}\n{"in":{"0":0}}')
    with pytest.raises(ConfigurationError, match=r"batch 2 is unfinished.*Start the transactional query again"):
        roll_back(place, SINK)
    require_taken_over(place.own, Batch(QUERY, 2, ("o",), lambda _: None), lambda: 2)
    (tmp_path / "commits" / "2").write_text("v1\n{}")
    assert roll_back(place, SINK).handover.batch_id == 2


def test_an_unfinished_batch_cannot_be_returned_without_a_fence(place: Place, tmp_path: Path) -> None:
    bind(place)
    Handovers(place.own).add(HANDED_OVER)
    (tmp_path / "commits" / "1").unlink()
    with pytest.raises(ConfigurationError, match=r"batch 1 is unfinished.* sink 'events'.*availableNow=True.*again"):
        roll_back(place, SINK)
    assert Handovers(place.own).newest() == HANDED_OVER


@pytest.mark.parametrize(("decided", "is_skipped"), [(None, True), (0, True), (1, False)])
def test_a_half_written_batch_that_was_skipped_is_not_returned_as_finished(
    decided: int | None,
    is_skipped: bool,  # noqa: FBT001 - a case
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user's function may have caught an error of TakeOver. The old sink would begin with batch 2."""
    Handovers(place.own).add(msgspec.structs.replace(HANDED_OVER, batch_id=1, kind=Kind.REST))
    view = SimpleNamespace(highest_batch_of=lambda _: decided)
    run = SimpleNamespace(outcome=Outcome.COMMITTED, sweep=lambda: None, view=view)
    coordinator = SimpleNamespace(recover=lambda _: run, close=lambda: None)
    monkeypatch.setattr(rollback, "Coordinator", lambda *_, **__: coordinator)
    refused = pytest.raises(
        ConfigurationError, match=r"recorded batch 1 as done.*twopc migrate cutover --old-query-finished 1"
    )
    with refused if is_skipped else nullcontext():
        assert roll_back(place, SINK).handover.kind is Kind.NOTHING


def test_a_checkpoint_that_no_transactional_query_has_used_is_not_returned(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"contains no hand-over, and no transactional query.*Check --checkp"):
        roll_back(place, SINK)
