"""``twopc status`` of a checkpoint whose last batch has failed: it reports the failure, although nothing is open or in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import command
from tests.unit.history_support import ended, failed, write
from tests.unit.test_log_view import BEGIN, decision, view_of
from tests.unit.test_savepoint import add_batch, checkpoint
from tests.unit.test_verify_history import history
from twopc.integration.operate import status as status_module
from twopc.integration.operate import subject as subject_module
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.observe import SinkState
from twopc.integration.operate.subject import Connection
from twopc.records import Begin

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.operate.finding import Advice
    from twopc.sinks.kafka import KafkaSink

__all__ = ["checkpoint"]


def test_a_failed_checkpoint_is_reported_until_one_is_completed(checkpoint: Path) -> None:
    broken = failed(4, "CheckpointExpiredError", "its tasks did not finish", reason="expired")
    write(checkpoint, [ended(3), broken])
    (checkpoint / "metadata").write_text('{"id":"old"}')
    [advice, *others] = command("status", str(checkpoint), "--json").facts["advice"]
    assert "the last checkpoint, 4, expired at" in advice["what"]
    assert "CheckpointExpiredError in prepare" in advice["what"]
    assert f"twopc show {checkpoint} 4" in advice["action"]
    assert advice["runbook"].endswith("#checkpoints-fail-again-and-again")
    assert not [one for one in others if "Nothing to do" in one["action"]]

    write(checkpoint, [ended(3), broken, ended(4)])
    (checkpoint / "metadata").write_text('{"id":"old"}')
    assert "last checkpoint" not in str(command("status", str(checkpoint), "--json").facts["advice"])


def advice_about(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, *, planned: int, finished: int, decided: int
) -> list[Advice]:
    """Look at a query that plans, decides and finishes batches while its sink is observed."""

    def observe(sink: KafkaSink, _: object) -> SinkState:
        for batch in range(5, planned + 1):
            add_batch(checkpoint, batch, is_finished=batch <= finished)
        return SinkState(sink=sink.name, ledger=sink.ledger, query_id="old", last_decided=decided)

    monkeypatch.setattr(status_module, "observe", observe)
    monkeypatch.setattr(subject_module, "cluster_of", lambda _: "c")
    [(_, found)] = status_module.look(f"{checkpoint}/", Connection("nowhere:1")).sinks
    return found


@pytest.mark.parametrize(("planned", "finished", "decided"), [(5, 3, 5), (9, 8, 8), (9, 8, 3), (9, 8, 4)])
def test_batches_that_a_healthy_query_writes_during_the_check_do_not_make_its_checkpoint_an_older_copy(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, planned: int, finished: int, decided: int
) -> None:
    [one] = advice_about(checkpoint, monkeypatch, planned=planned, finished=finished, decided=decided)
    assert one.anchor == "healthy", one.what


def test_the_batches_of_the_query_that_replaced_this_one_are_not_this_querys(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: "batch 9 is decided, but Spark has not finished it. Start the query", beside "The ended query cannot run again"."""

    def observe(sink: KafkaSink, _: object) -> SinkState:
        begin = Begin(query_id="old", first_batch=0, prior_offsets=())
        replaced = Begin(query_id="new", first_batch=9, prior_offsets=(), ends="old")
        found = history(begin, replaced, decision(9, query_id="new"))
        return SinkState(sink=sink.name, ledger=sink.ledger, query_id="new", last_decided=9, history=found)

    monkeypatch.setattr(status_module, "observe", observe)
    monkeypatch.setattr(subject_module, "cluster_of", lambda _: "c")
    facts = status_module.status(str(checkpoint), Connection("nowhere:1"), is_ending=True).facts
    [advice] = [one for sink in facts["sinks"] for one in sink["advice"]]
    assert "The ended query cannot run again" in advice["action"]
    assert "Start the query" not in str(facts)
    assert not facts["ok"]


def test_decisions_of_another_query_in_the_checkpoint_are_not_this_querys(checkpoint: Path) -> None:
    """A file with another query id was put into the checkpoint."""
    view = view_of(BEGIN, decision(0))
    found = replace(read_checkpoint(checkpoint), registers=view)
    assert (found.decided, found.facts()["last_decided"]) == (None, None)
    assert replace(found, query_id="a").facts()["last_decided"] == 0


def test_an_older_copy_is_still_noticed_during_the_check(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = advice_about(checkpoint, monkeypatch, planned=5, finished=4, decided=6)
    assert "older copy" in one.what
