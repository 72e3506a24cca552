"""Each refusal says what is wrong and quotes the setting that resolves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import twopc.override
from tests.unit.fake_sink import FakeHandle, batch_of, offsets_of
from twopc.attempt import Attempt, Evidence
from twopc.batch import Batch, Position, locate
from twopc.errors import CommitBlockedError
from twopc.log_view import LogView
from twopc.override import Overrides
from twopc.records import Begin, Decision
from twopc.recovery import Outcome, Step, lookup
from twopc.refusals import damaged, lost_decision, refusal
from twopc.registers import RegisterLog
from twopc.times import Times
from twopc.unproven import Unproven

MINE, OTHER = "mine-1", "other-2"
LATER, BACK = "later", "back"


def view(query_id: str | None, *, ended: str | None = None) -> LogView:
    if query_id is None:
        return LogView()
    decision = Decision(
        query_id=query_id,
        batch_id=5,
        attempt=Attempt(0, 1),
        offsets=offsets_of(5),
        tasks=(),
        scan_start={},
        times=Times(0, 12),
    )
    begin = Begin(query_id=query_id, first_batch=0, prior_offsets=())
    return LogView(begin=begin, decision=decision, ended=frozenset({ended} if ended else ()))


def found(batch: int, history: str) -> Batch:
    """A batch of the checkpoint.

    ``LATER`` is the same history, but its batches are planned again. In ``BACK``, the sources go back by two batches before it.
    """
    if history == LATER:
        return batch_of(batch, query_id=MINE, times=Times(0, 13))
    if history == BACK:
        offsets = [*range(batch - 1), batch - 3, batch]
        return Batch(MINE, batch, offsets_of(batch), lambda of: offsets_of(offsets[of]))
    return batch_of(batch, query_id=MINE, history=history)


CASES = [
    (Position.REWOUND, view(MINE), 3, "", f"override=EndQuery('{MINE}')"),
    (Position.COPIED, view(MINE), 5, "x", f"override=EndQuery('{MINE}')"),
    (Position.PLANNED_AGAIN, view(MINE), 5, LATER, f"override=EndQuery('{MINE}')"),
    (Position.GAP, view(MINE), 9, "", f"override=ResumeAt(9, '{MINE}')"),
    (Position.SET_BACK, view(MINE), 7, BACK, f"override=EndQuery('{MINE}')"),
    (Position.NEW_QUERY, view(OTHER), 0, "", f"override=EndQuery('{OTHER}')"),
    (Position.UNADOPTED, view(None), 4, "", f"override=AdoptQuery('{MINE}')"),
    (Position.ENDED, view(OTHER, ended=MINE), 6, "", f"override=EndQuery('{OTHER}')"),
]


@pytest.mark.parametrize(("position", "log", "batch", "history", "way_out"), CASES, ids=lambda case: str(case)[:20])
def test_a_refusal_mentions_the_log_and_the_batch_and_quotes_the_setting(
    position: Position, log: LogView, batch: int, history: str, way_out: str
) -> None:
    mine = found(batch, history)
    assert locate(log, mine, Overrides()) is position
    label = lookup(log.status, Outcome.COMMITTED, position, staged=False).label
    error = refusal(position, log, mine, "the-log", Overrides())
    text = str(error)
    assert text.startswith(f"{label}: ")
    assert way_out in text
    assert "the-log" in text
    assert error.case == position.value
    assert position is Position.ENDED or position is Position.NEW_QUERY or f"batch {batch}" in text


@pytest.mark.parametrize(
    ("position", "at", "history", "above"), [(Position.GAP, 9, "", 6), (Position.PLANNED_AGAIN, 5, LATER, 5)]
)
def test_an_error_that_advises_running_batches_again_also_names_their_state(
    position: Position, at: int, history: str, above: int
) -> None:
    """Spark would later load a snapshot of the state that these batches left behind."""
    mine = replace(found(at, history), keeps_state=lambda: True)
    text = str(refusal(position, view(MINE), mine, "the-log", Overrides()))
    assert f"In state/, at any depth, also delete the files whose names begin with a number above {above}, " in text
    stateless = replace(mine, keeps_state=lambda: False)
    text = str(refusal(position, view(MINE), stateless, "the-log", Overrides()))
    assert "state/" not in text
    assert "also delete its checksum file .<number>.crc" in text, "Spark could not write a deleted file again"


def test_another_writer_must_finish_its_batch_before_the_query_is_adopted() -> None:
    """``AdoptQuery`` would duplicate the rows of a half-written batch."""
    error = refusal(Position.UNADOPTED, view(None), batch_of(4, query_id=MINE), "the-log", Overrides())
    text = str(error)
    assert text.index("must not have begun batch 4") < text.index("start that writer again") < text.index("AdoptQuery")


def test_a_new_query_may_be_an_old_one_without_its_checkpoint() -> None:
    """``EndQuery`` would make it begin again, or skip what it has not read."""
    error = refusal(Position.NEW_QUERY, view(OTHER), batch_of(0, query_id=MINE), "the-log", Overrides())
    assert "the query's checkpointLocation is missing or has changed" in str(error)
    assert "If the old checkpoint still exists, set the query's checkpointLocation to it" in str(error)


@pytest.mark.parametrize(("position", "log", "batch", "history", "way_out"), CASES, ids=lambda case: str(case)[:20])
def test_an_error_that_advises_a_new_checkpoint_says_where_it_begins(
    position: Position, log: LogView, batch: int, history: str, way_out: str
) -> None:
    """By default, it would write every row again, or skip rows. The start completes the last decided batch."""
    text = str(refusal(position, log, found(batch, history), "the-log", Overrides()))
    assert ("startingOffsets" in text) is ("new checkpoint" in text)
    if "EndQuery" in way_out:
        assert f"'s last decided batch (batch 5: {offsets_of(5)[0]})" in text
        assert "completes" in text


def test_this_checkpoint_begins_where_spark_has_planned_its_first_batch() -> None:
    """Spark no longer reads ``startingOffsets`` when the toolkit refuses the start."""
    text = str(refusal(Position.NEW_QUERY, view(OTHER), batch_of(0, query_id=MINE), "the-log", Overrides()))
    assert "the startingOffsets with which Spark has already planned its first batch" in text
    assert "another, empty checkpoint" in text
    later = str(refusal(Position.NEW_QUERY, view(OTHER), batch_of(3, query_id=MINE), "the-log", Overrides()))
    assert "startingOffsets" not in later, "Spark has read the checkpoint's position, not the option"


@pytest.mark.parametrize(("position", "log", "batch", "history", "way_out"), CASES, ids=lambda case: str(case)[:20])
def test_an_error_says_that_a_new_checkpoint_loses_the_state(
    position: Position, log: LogView, batch: int, history: str, way_out: str
) -> None:
    """Totals would begin at 0 again. A query without state loses nothing."""
    if "EndQuery" not in way_out:
        return
    mine = replace(found(batch, history), keeps_state=lambda: True)
    text = str(refusal(position, log, mine, "the-log", Overrides()))
    assert text.count("state is lost") == 1 and "restore a savepoint" in text
    stateless = replace(mine, keeps_state=lambda: False)
    assert "state is lost" not in str(refusal(position, log, stateless, "the-log", Overrides()))


def test_a_start_that_cannot_complete_the_last_batch_asks_whether_it_is_visible() -> None:
    """The decisions are in the old checkpoint, and a new one does not read them."""
    mine = found(5, "x")
    text = str(refusal(Position.COPIED, view(MINE), mine, RegisterLog.name, Overrides()))
    assert "whose rows must all be visible" in text and "completes" not in text


def test_a_plan_that_is_newer_also_names_the_state_of_all_later_batches() -> None:
    """Spark has run three more batches, so their state must go, too."""
    mine = replace(found(8, LATER), keeps_state=lambda: True)
    assert locate(view(MINE), mine, Overrides()) is Position.PLANNED_AGAIN
    text = str(refusal(Position.PLANNED_AGAIN, view(MINE), mine, "the-log", Overrides()))
    assert "all files in offsets/ with numbers above 5, and all files in commits/ with the number 5 or above" in text
    assert "whose names begin with a number above 5, " in text


@pytest.mark.parametrize("resume_at", [None, 7])
def test_after_a_lost_decision_the_rest_of_its_rows_is_written_by_hand(resume_at: int | None) -> None:
    """The last driver may have died while it committed, and the sweep has ended the rest."""
    error = lost_decision("the-log", "s", batch_of(6, query_id=MINE), Overrides(), highest=5, resume_at=resume_at)
    text = str(error)
    assert text.index("Check the rows of batch 6") < text.index("Write missing rows by other means")
    assert ("end offsets of the last batch that the output shows" in text) is (resume_at is None)
    assert "last decided batch" not in text


def test_an_error_for_a_damaged_log_names_the_page_about_a_new_checkpoint() -> None:
    text = str(damaged(LogView(damage="x"), "the-log"))
    assert "new checkpoint" in text and "startingOffsets" in text and "docs/operations.md#new-checkpoint" in text


@pytest.mark.parametrize(("position", "log", "batch", "history", "way_out"), CASES, ids=lambda case: str(case)[:20])
def test_the_setting_quoted_in_a_refusal_resolves_it(
    position: Position, log: LogView, batch: int, history: str, way_out: str
) -> None:
    """``EndQuery`` applies to a new checkpoint, the other settings to this one."""
    override = eval(way_out.removeprefix("override="), vars(twopc.override))  # noqa: S307 - evaluates the text as the user would copy it
    overrides = Overrides.of(override)
    follower = batch_of(0, query_id="n") if overrides.end_query_ids else found(batch, history)
    assert locate(log, follower, overrides) is Position.FIRST, position


def test_every_refused_position_has_its_own_message() -> None:
    refused = {
        position
        for position in Position
        if lookup(view(MINE).status, Outcome.COMMITTED, position, staged=False).step is Step.REFUSE
    }
    assert refused == {case[0] for case in CASES}
    texts = {str(refusal(position, view(OTHER), batch_of(3), "log", Overrides())) for position in refused}
    assert len(texts) == len(refused)


def test_the_errors_for_damage_and_for_a_blocked_commit_say_what_to_do() -> None:
    assert "it starts at 7" in str(damaged(LogView(damage="it starts at 7"), "the-log"))
    assert "new sink name" in str(damaged(LogView(damage="x"), "the-log"))
    decision = view(MINE).decision
    assert decision is not None
    handles = {("k", number): FakeHandle(f"t{number}") for number in (1, 2)}
    unproven = Unproven(decision, handles, dict.fromkeys(handles, Evidence.UNKNOWN), MINE, Overrides())
    error = unproven.blocked()
    assert "batch 5" in str(error)
    assert "Restart the query" in str(error)
    assert isinstance(error, CommitBlockedError) and error.transactions == ("t1", "t2")
    assert f"override=Abandon(5, '{MINE}')." in str(error)
    assert "in time. key 'k': WRONGTYPE. Fix the cause, and restart the query" in str(
        replace(unproven, blockers=["key 'k': WRONGTYPE"]).blocked()
    )
