"""The same batch id is not the same batch."""

from __future__ import annotations

import pytest

from tests.unit.fake_sink import batch_of, offsets_of
from twopc.attempt import Attempt
from twopc.batch import Batch, Overrides, Position, locate
from twopc.log_view import LogView
from twopc.records import Begin, Decision

NONE = Overrides()


def log(
    highest: int | None,
    *,
    first_batch: int = 0,
    query_id: str = "a",
    prior: tuple[str, ...] = (),
    ended: str | None = None,
) -> LogView:
    """The view of a log that has decided up to ``highest``; None: only begun."""
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
        (7, "x", Position.GAP),
    ],
)
def test_a_batch_is_placed_by_its_number_and_its_history(batch: int, history: str, position: Position) -> None:
    assert locate(log(5), batch_of(batch, query_id="a", history=history), NONE) is position


def test_a_next_batch_whose_predecessor_the_checkpoint_has_forgotten_is_not_next() -> None:
    forgetful = Batch(query_id="a", batch_id=6, offsets=offsets_of(6), offsets_of=lambda _: None)
    assert locate(log(5), forgetful, NONE) is Position.COPIED


def test_a_begun_query_goes_on_with_its_first_batch() -> None:
    assert locate(log(None), batch_of(0, query_id="a"), NONE) is Position.NEXT
    adopted = log(None, first_batch=5, prior=offsets_of(4))
    assert locate(adopted, batch_of(5, query_id="a"), NONE) is Position.NEXT
    assert locate(adopted, batch_of(5, query_id="a", history="x"), NONE) is Position.COPIED


def test_the_batch_before_an_adopted_one_is_the_begin_records() -> None:
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
def test_under_an_unused_name_only_batch_0_or_an_adopted_query_may_start(
    batch: int, overrides: Overrides, position: Position
) -> None:
    assert locate(LogView(), batch_of(batch, query_id="a"), overrides) is position


@pytest.mark.parametrize(
    ("batch", "overrides", "position"),
    [
        (0, NONE, Position.NEW_QUERY),
        (0, Overrides(end_query_id="b"), Position.NEW_QUERY),
        (0, Overrides(end_query_id="a"), Position.FIRST),
        (3, Overrides(adopt_query_id="b"), Position.NEW_QUERY),
        (3, Overrides(end_query_id="a"), Position.UNADOPTED),
        (3, Overrides(end_query_id="a", adopt_query_id="b"), Position.FIRST),
    ],
)
def test_under_a_used_name_a_new_query_must_name_the_one_it_ends(
    batch: int, overrides: Overrides, position: Position
) -> None:
    assert locate(log(5), batch_of(batch, query_id="b"), overrides) is position


@pytest.mark.parametrize(
    "overrides", [NONE, Overrides(end_query_id="a"), Overrides(adopt_query_id="b", end_query_id="a")]
)
def test_an_ended_query_may_not_come_back_whatever_is_allowed(overrides: Overrides) -> None:
    for batch in (0, 3, 6):
        assert locate(log(5, ended="b"), batch_of(batch, query_id="b"), overrides) is Position.ENDED
