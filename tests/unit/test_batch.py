"""Placing a batch relative to the log. Equal batch ids alone do not make two batches the same."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.unit.fake_sink import batch_of, offsets_of
from twopc.attempt import Attempt
from twopc.batch import Batch, Position, locate
from twopc.log_view import LogView
from twopc.offsets import is_same
from twopc.override import Overrides, ResumeAt
from twopc.records import Begin, Decision
from twopc.times import Times

NONE = Overrides()


def log(
    highest: int | None,
    *,
    first_batch: int = 0,
    query_id: str = "a",
    prior: tuple[str, ...] = (),
    ended: str | None = None,
) -> LogView:
    """A log view with decisions up to ``highest``; None: only a begin record."""
    decision = None
    if highest is not None:
        decision = Decision(
            query_id=query_id,
            batch_id=highest,
            attempt=Attempt(0, 1),
            offsets=offsets_of(highest),
            tasks=(),
            scan_start={},
        )
    begin = Begin(query_id=query_id, first_batch=first_batch, prior_offsets=prior)
    return LogView(begin=begin, decision=decision, ended=frozenset({ended} if ended else ()))


@pytest.mark.parametrize(
    ("batch", "history", "position"),
    [
        (0, "", Position.REWOUND),
        (4, "", Position.REWOUND),
        (5, "", Position.SAME),
        (5, "x", Position.COPIED),
        (6, "", Position.NEXT),
        (6, "x", Position.COPIED),
        (7, "", Position.GAP),
        (7, "x", Position.COPIED),
    ],
)
def test_a_batch_is_located_by_its_number_and_its_history(batch: int, history: str, position: Position) -> None:
    assert locate(log(5), batch_of(batch, query_id="a", history=history), NONE) is position


def test_a_batch_counts_as_copied_if_the_checkpoint_no_longer_contains_its_predecessor() -> None:
    forgetful = Batch(query_id="a", batch_id=6, offsets=offsets_of(6), offsets_of=lambda _: None)
    assert locate(log(5), forgetful, NONE) is Position.COPIED


@pytest.mark.parametrize(
    ("batch", "named", "history", "position"),
    [
        (17, 17, "", Position.FIRST),
        (17, 16, "", Position.GAP),
        (18, 17, "", Position.GAP),
        (17, 17, "x", Position.COPIED),
        (5, 5, "", Position.SAME),
        (6, 6, "", Position.NEXT),
        (4, 4, "", Position.REWOUND),
    ],
)
def test_a_gap_is_accepted_only_at_the_given_batch_and_in_the_same_history(
    batch: int, named: int, history: str, position: Position
) -> None:
    overrides = Overrides(resume_at=ResumeAt(named))
    assert locate(log(5), batch_of(batch, query_id="a", history=history), overrides) is position


def set_back(at: int, back_to: int, *, known: bool = True) -> Batch:
    """A batch after a gap that begins after batch 5. In the gap, the sources went back to the offsets of an earlier batch."""

    def offsets(of: int) -> tuple[str, ...] | None:
        if of == 6:
            return offsets_of(back_to)
        return offsets_of(of) if known or of != 4 else None

    return Batch(query_id="a", batch_id=at, offsets=offsets_of(at), offsets_of=offsets)


@pytest.mark.parametrize(("copied", "position"), [(4, Position.SET_BACK), (5, Position.FIRST)])
def test_the_times_show_whether_a_decided_batch_without_data_was_skipped(copied: int, position: Position) -> None:
    """Its offsets are those of the batch before. Fails if the rows of its windows and timers are written twice."""
    view = log(5)
    assert view.decision is not None
    view = replace(view, decision=msgspec.structs.replace(view.decision, times=Times(0, 5)))
    batch = Batch(
        query_id="a",
        batch_id=7,
        offsets=offsets_of(5),
        offsets_of=lambda _: offsets_of(5),
        times_of=lambda of: Times(0, copied if of == 6 else of),
    )
    assert locate(view, batch, Overrides(resume_at=ResumeAt(7))) is position


@pytest.mark.parametrize("overrides", [NONE, Overrides(resume_at=ResumeAt(7)), Overrides(resume_at=ResumeAt(8))])
@pytest.mark.parametrize("at", [7, 8])
def test_a_gap_in_which_the_sources_went_back_is_accepted_under_no_override(at: int, overrides: Overrides) -> None:
    """Spark's repartition of the state does this if it may skip a failed batch. Fails if that batch is written twice."""
    assert locate(log(5), set_back(at, back_to=4), overrides) is Position.SET_BACK


def test_a_gap_in_which_the_sources_stayed_where_they_were_is_accepted() -> None:
    """Spark's repartition of the state does this if the last batch was complete."""
    resumed = Overrides(resume_at=ResumeAt(7))
    assert locate(log(5), set_back(7, back_to=5), resumed) is Position.FIRST
    assert locate(log(5), set_back(7, back_to=5), NONE) is Position.GAP
    idle = Batch(query_id="a", batch_id=7, offsets=offsets_of(5), offsets_of=lambda _: offsets_of(5))
    assert locate(log(5), idle, resumed) is Position.FIRST  # the decided batch had no data
    assert locate(log(5), set_back(7, back_to=4, known=False), resumed) is Position.FIRST


COUNTER, OTHER = '{"logOffset":5}', '{"t":{"0":7}}'
DIGEST, SECOND = '{"digest":"0a","logOffset":5}', '{"digest":"0b","logOffset":5}'


@pytest.mark.parametrize(
    ("decided", "found", "expected"),
    [
        pytest.param((DIGEST, OTHER), (DIGEST, OTHER), True, id="equal"),
        pytest.param((COUNTER, OTHER), (DIGEST, OTHER), True, id="decided by an earlier release"),
        pytest.param((f"a:{COUNTER}",), (f"a:{DIGEST}",), True, id="decided by an earlier release, with a name"),
        pytest.param(('{"logOffset":4}', OTHER), (DIGEST, OTHER), False, id="another counter"),
        pytest.param((DIGEST, OTHER), (SECOND, OTHER), False, id="other files"),
        pytest.param((DIGEST, OTHER), (COUNTER, OTHER), False, id="the files are no longer known"),
        pytest.param((COUNTER,), (DIGEST, OTHER), False, id="one more source"),
    ],
)
def test_offsets_are_compared_without_a_digest_only_if_the_decision_has_none(
    decided: tuple[str, ...], found: tuple[str, ...], *, expected: bool
) -> None:
    """The first start after an upgrade must still recognize the last batch of the earlier release."""
    assert is_same(decided, found) is expected
    view = log(None, first_batch=5, prior=decided)
    same, following = (
        Batch(query_id="a", batch_id=number, offsets=found, offsets_of=lambda _: found) for number in (4, 5)
    )
    assert locate(view, same, NONE) is (Position.SAME if expected else Position.COPIED)
    assert locate(view, following, NONE) is (Position.NEXT if expected else Position.COPIED)


def test_a_gap_is_accepted_after_the_checkpoint_has_forgotten_the_offsets_before_it() -> None:
    forgetful = Batch(query_id="a", batch_id=300, offsets=offsets_of(300), offsets_of=lambda _: None)
    assert locate(log(5), forgetful, Overrides(resume_at=ResumeAt(300))) is Position.FIRST
    assert locate(log(5), forgetful, NONE) is Position.GAP


@pytest.mark.parametrize(("query_id", "position"), [("a", Position.FIRST), ("z", Position.GAP), (None, Position.GAP)])
def test_a_gap_in_a_later_querys_batches_is_accepted_only_with_the_id_of_that_query(
    query_id: str | None, position: Position
) -> None:
    """A setting without an id may have been left in the code by the query that this one has replaced."""
    overrides = Overrides(resume_at=ResumeAt(17, query_id))
    assert locate(log(5, ended="z"), batch_of(17, query_id="a"), overrides) is position


def test_another_query_is_not_accepted_because_of_its_batch_number() -> None:
    assert locate(log(5), batch_of(17, query_id="b"), Overrides(resume_at=ResumeAt(17))) is Position.NEW_QUERY


def test_a_query_without_decisions_continues_with_its_first_batch() -> None:
    assert locate(log(None), batch_of(0, query_id="a"), NONE) is Position.NEXT
    adopted = log(None, first_batch=5, prior=offsets_of(4))
    assert locate(adopted, batch_of(5, query_id="a"), NONE) is Position.NEXT
    assert locate(adopted, batch_of(5, query_id="a", history="x"), NONE) is Position.COPIED


def test_the_begin_record_stands_for_the_batch_before_an_adopted_one() -> None:
    adopted = log(None, first_batch=5, prior=offsets_of(4))
    assert locate(adopted, batch_of(4, query_id="a"), NONE) is Position.SAME
    assert locate(adopted, batch_of(4, query_id="a", history="x"), NONE) is Position.COPIED


@pytest.mark.parametrize(
    ("batch", "overrides", "position"),
    [
        (0, NONE, Position.FIRST),
        (0, Overrides(adopt_query_id="b"), Position.FIRST),
        (3, NONE, Position.UNADOPTED),
        (3, Overrides(adopt_query_id="b"), Position.UNADOPTED),
        (3, Overrides(adopt_query_id="a"), Position.FIRST),
    ],
)
def test_an_unused_sink_name_accepts_only_batch_0_or_an_adopted_query(
    batch: int, overrides: Overrides, position: Position
) -> None:
    assert locate(LogView(), batch_of(batch, query_id="a"), overrides) is position


@pytest.mark.parametrize(
    ("batch", "overrides", "position"),
    [
        (0, NONE, Position.NEW_QUERY),
        (0, Overrides(end_query_ids={"b"}), Position.NEW_QUERY),
        (0, Overrides(end_query_ids={"a"}), Position.FIRST),
        (3, Overrides(adopt_query_id="b"), Position.NEW_QUERY),
        (3, Overrides(end_query_ids={"a"}), Position.UNADOPTED),
        (3, Overrides(end_query_ids={"a"}, adopt_query_id="b"), Position.FIRST),
    ],
)
def test_a_used_sink_name_accepts_a_new_query_only_if_that_query_identifies_the_one_it_ends(
    batch: int, overrides: Overrides, position: Position
) -> None:
    assert locate(log(5), batch_of(batch, query_id="b"), overrides) is position


@pytest.mark.parametrize(
    "overrides", [NONE, Overrides(end_query_ids={"a"}), Overrides(adopt_query_id="b", end_query_ids={"a"})]
)
def test_an_ended_query_stays_ended_under_every_override(overrides: Overrides) -> None:
    for batch in (0, 3, 6):
        assert locate(log(5, ended="b"), batch_of(batch, query_id="b"), overrides) is Position.ENDED
