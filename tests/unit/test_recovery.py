"""The recovery table, exhaustively: every log status x evidence of up to three handles x position x staging."""

from __future__ import annotations

from itertools import product

import pytest

from twopc.batch import Position
from twopc.handle import Evidence
from twopc.log_view import LogStatus
from twopc.recovery import RECOVERY_TABLE, Outcome, Step, lookup, outcome_of

ALL_EVIDENCE = [found for handles in range(4) for found in product(Evidence, repeat=handles)]
COMBINATIONS = list(product(LogStatus, ALL_EVIDENCE, Position, [False, True]))


def expected_step(  # noqa: PLR0911 - the protocol in prose, case by case, independent of the table's shape
    status: LogStatus, evidence: tuple[Evidence, ...], position: Position, *, staged: bool
) -> Step:
    """What the protocol's text demands."""
    if status is LogStatus.CORRUPT:
        return Step.DAMAGED
    if position not in {Position.SAME, Position.NEXT, Position.FIRST}:
        return Step.REFUSE
    replayed = position is Position.SAME
    if status is LogStatus.UNDECIDED or all(found is Evidence.COMMITTED for found in evidence):
        return Step.FINISH if replayed else Step.WRITE
    if any(found is Evidence.UNKNOWN for found in evidence):
        return Step.BLOCKED
    if staged:
        return Step.PUBLISH
    if not replayed:
        return Step.IN_DOUBT
    return Step.REWRITE if all(found is Evidence.ABORTED for found in evidence) else Step.REPAIR


def test_exactly_one_row_answers_every_combination() -> None:
    assert len(COMBINATIONS) == 4 * 40 * 9 * 2
    for status, evidence, position, staged in COMBINATIONS:
        outcome = outcome_of(evidence)
        matching = [case.label for case in RECOVERY_TABLE if case.matches(status, outcome, position, staged=staged)]
        assert len(matching) == 1, (status, evidence, position, staged, matching)


def test_every_combination_is_answered_as_the_protocol_demands() -> None:
    for status, evidence, position, staged in COMBINATIONS:
        case = lookup(status, outcome_of(evidence), position, staged=staged)
        expected = expected_step(status, evidence, position, staged=staged)
        assert case.step is expected, (status, evidence, position, staged, case.label)


def test_every_row_is_reached_and_every_label_is_one_rows() -> None:
    reached = {lookup(s, outcome_of(e), p, staged=staged).label for s, e, p, staged in COMBINATIONS}
    labels = [case.label for case in RECOVERY_TABLE]
    assert reached == set(labels)
    assert len(labels) == len(set(labels))


def test_every_step_is_some_rows() -> None:
    assert {case.step for case in RECOVERY_TABLE} == set(Step)


def test_nothing_is_written_while_anything_decided_is_unknown_or_half_in() -> None:
    for status, evidence, position, staged in COMBINATIONS:
        step = lookup(status, outcome_of(evidence), position, staged=staged).step
        if status in {LogStatus.DECIDED, LogStatus.REPAIRED} and step in {Step.WRITE, Step.REWRITE}:
            assert len(set(evidence)) <= 1
            assert Evidence.UNKNOWN not in evidence


@pytest.mark.parametrize("evidence", ALL_EVIDENCE)
def test_the_outcome_sums_up_the_evidence_in_any_order(evidence: tuple[Evidence, ...]) -> None:
    found = set(evidence)
    expected = {
        frozenset(): Outcome.COMMITTED,
        frozenset({Evidence.COMMITTED}): Outcome.COMMITTED,
        frozenset({Evidence.ABORTED}): Outcome.LOST,
        frozenset({Evidence.COMMITTED, Evidence.ABORTED}): Outcome.PARTLY_LOST,
    }.get(frozenset(found), Outcome.UNKNOWN)
    assert outcome_of(evidence) is outcome_of(reversed(evidence)) is expected
