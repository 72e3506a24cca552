"""The same batch id is not the same batch."""

from __future__ import annotations

import pytest

from tests.unit.fake_sink import checkpoint, offsets_of
from twopc.checkpoint import Checkpoint, Permits, Position, locate
from twopc.decision import Attempt, Begin, Decision
from twopc.log_view import LogView

NONE = Permits()


def log(
    highest: int | None,
    *,
    first_batch: int = 0,
    lineage: str = "a",
    prior: tuple[str, ...] = (),
    ended: str | None = None,
) -> LogView:
    """The view of a log that has decided up to ``highest``; None: only begun."""
    decision = None
    if highest is not None:
        decision = Decision(
            lineage=lineage, batch=highest, attempt=Attempt(0, 1), offsets=offsets_of(highest), tasks=(), since={}
        )
    begin = Begin(lineage=lineage, first_batch=first_batch, prior_offsets=prior)
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
        (7, "x", Position.GAP),
    ],
)
def test_a_batch_is_placed_by_its_number_and_its_history(batch: int, history: str, position: Position) -> None:
    assert locate(log(5), checkpoint(batch, lineage="a", history=history), NONE) is position


def test_a_next_batch_whose_predecessor_the_checkpoint_has_forgotten_is_not_next() -> None:
    forgetful = Checkpoint(lineage="a", batch=6, offsets=offsets_of(6), offsets_of=lambda _: None)
    assert locate(log(5), forgetful, NONE) is Position.COPIED


def test_a_begun_lineage_goes_on_with_its_first_batch() -> None:
    assert locate(log(None), checkpoint(0, lineage="a"), NONE) is Position.NEXT
    adopted = log(None, first_batch=5, prior=offsets_of(4))
    assert locate(adopted, checkpoint(5, lineage="a"), NONE) is Position.NEXT
    assert locate(adopted, checkpoint(5, lineage="a", history="x"), NONE) is Position.COPIED


def test_the_batch_before_an_adopted_one_is_the_begin_records() -> None:
    adopted = log(None, first_batch=5, prior=offsets_of(4))
    assert locate(adopted, checkpoint(4, lineage="a"), NONE) is Position.SAME
    assert locate(adopted, checkpoint(4, lineage="a", history="x"), NONE) is Position.COPIED


@pytest.mark.parametrize(
    ("batch", "permits", "position"),
    [
        (0, NONE, Position.FIRST),
        (0, Permits(adopt_lineage="b"), Position.FIRST),
        (3, NONE, Position.UNADOPTED),
        (3, Permits(adopt_lineage="b"), Position.UNADOPTED),
        (3, Permits(adopt_lineage="a"), Position.FIRST),
    ],
)
def test_under_an_unused_name_only_batch_0_or_an_adopted_lineage_may_start(
    batch: int, permits: Permits, position: Position
) -> None:
    assert locate(LogView(), checkpoint(batch, lineage="a"), permits) is position


@pytest.mark.parametrize(
    ("batch", "permits", "position"),
    [
        (0, NONE, Position.NEW_LINEAGE),
        (0, Permits(end_lineage="b"), Position.NEW_LINEAGE),
        (0, Permits(end_lineage="a"), Position.FIRST),
        (3, Permits(adopt_lineage="b"), Position.NEW_LINEAGE),
        (3, Permits(end_lineage="a"), Position.UNADOPTED),
        (3, Permits(end_lineage="a", adopt_lineage="b"), Position.FIRST),
    ],
)
def test_under_a_used_name_a_new_lineage_must_name_the_one_it_ends(
    batch: int, permits: Permits, position: Position
) -> None:
    assert locate(log(5), checkpoint(batch, lineage="b"), permits) is position


@pytest.mark.parametrize("permits", [NONE, Permits(end_lineage="a"), Permits(adopt_lineage="b", end_lineage="a")])
def test_an_ended_lineage_may_not_come_back_whatever_is_permitted(permits: Permits) -> None:
    for batch in (0, 3, 6):
        assert locate(log(5, ended="b"), checkpoint(batch, lineage="b"), permits) is Position.ENDED
