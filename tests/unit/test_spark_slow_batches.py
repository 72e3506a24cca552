"""Only if nothing depends on a batch's offsets may a user delete them, so that Spark plans a smaller batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twopc.batch import Batch
from twopc.files import LocalFiles
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.spark.slow_batches import slow_batch_advice

if TYPE_CHECKING:
    from pathlib import Path


def test_no_message_advises_deleting_the_plan_of_a_decided_batch(tmp_path: Path) -> None:
    own, batch = LocalFiles(tmp_path), Batch("query", 7, ("5",), lambda _: None)
    advice = slow_batch_advice("/c", own, batch, is_undecided=True)
    assert "delete /c/offsets/7 (the newest file in that directory)" in advice
    advice = slow_batch_advice("/c", own, batch, is_undecided=False)
    assert "Do not delete the batch's offsets file, because a decision depends on it" in advice


def test_no_message_advises_deleting_the_plan_of_a_batch_that_another_sink_has_begun(tmp_path: Path) -> None:
    """Rows of the first plan would be written again, because they are older than the new plan, or belong to its next batches."""
    own, batch = LocalFiles(tmp_path), Batch("query", 7, ("5",), lambda _: None)
    Handovers(own).add(Handover(query_id="query", batch_id=7, offsets=("5",), kind=Kind.REST))
    assert "another sink has written rows of the batch" in slow_batch_advice("/c", own, batch, is_undecided=True)
    after = replace(batch, batch_id=8)
    assert "delete /c/offsets/8" in slow_batch_advice("/c", own, after, is_undecided=True)


def test_no_message_advises_deleting_the_plan_of_a_stateful_batch(tmp_path: Path) -> None:
    """A later start might load a snapshot of the state that the first plan has left behind."""
    batch = Batch("query", 7, ("5",), lambda _: None, keeps_state=lambda: True)
    advice = slow_batch_advice("/c", LocalFiles(tmp_path), batch, is_undecided=True)
    assert "Spark may have written the query's state with these offsets" in advice and "delete /c" not in advice
