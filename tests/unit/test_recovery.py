"""The recovery table, exhaustively: every log status x evidence of up to three handles x position x staging x abandoning."""

from __future__ import annotations

from itertools import product

import pytest

from twopc.attempt import Evidence
from twopc.batch import Position
from twopc.log_view import LogStatus
from twopc.recovery import RECOVERY_TABLE, Outcome, Step, lookup, outcome_of

ALL_EVIDENCE = [found for handles in range(4) for found in product(Evidence, repeat=handles)]
COMBINATIONS = list(product(LogStatus, ALL_EVIDENCE, Position, [False, True], [False, True]))


def expected_step(  # noqa: PLR0911 - the protocol in prose, case by case, independent of the table's shape
    status: LogStatus, evidence: tuple[Evidence, ...], position: Position, *, staged: bool, abandoned: bool
) -> Step:
    """The step that the protocol's text requires."""
    if status is LogStatus.CORRUPT:
        return Step.DAMAGED
    if position not in {Position.SAME, Position.NEXT, Position.FIRST}:
        return Step.REFUSE
    replayed = position is Position.SAME
    if status is LogStatus.UNDECIDED or all(found is Evidence.COMMITTED for found in evidence):
        return Step.FINISH if replayed else Step.WRITE
    if any(found is Evidence.UNKNOWN for found in evidence):
        return Step.ABANDON if abandoned else Step.BLOCKED
    if staged:
        return Step.PUBLISH
    if replayed and all(found is Evidence.ABORTED for found in evidence):
        return Step.REWRITE
    if abandoned:
        return Step.ABANDON
    return Step.REPAIR if replayed else Step.IN_DOUBT


def test_every_combination_of_facts_matches_exactly_one_row_of_the_table() -> None:
    assert len(COMBINATIONS) == 4 * 40 * 11 * 2 * 2
    for status, evidence, position, staged, abandoned in COMBINATIONS:
        facts = (status, outcome_of(evidence), position)
        matching = [case for case in RECOVERY_TABLE if case.matches(*facts, staged=staged, abandoned=abandoned)]
        assert len(matching) == 1, (facts, staged, abandoned, matching)


def test_every_combination_of_facts_leads_to_the_step_that_the_protocol_requires() -> None:
    for status, evidence, position, staged, abandoned in COMBINATIONS:
        case = lookup(status, outcome_of(evidence), position, staged=staged, abandoned=abandoned)
        expected = expected_step(status, evidence, position, staged=staged, abandoned=abandoned)
        assert case.step is expected, (status, evidence, position, staged, abandoned, case.label)


def test_every_row_is_reachable_and_has_its_own_label() -> None:
    reached = {lookup(s, outcome_of(e), p, staged=kept, abandoned=a).label for s, e, p, kept, a in COMBINATIONS}
    labels = [case.label for case in RECOVERY_TABLE]
    assert reached == set(labels)
    assert len(labels) == len(set(labels))


def test_every_step_occurs_in_the_recovery_table() -> None:
    assert {case.step for case in RECOVERY_TABLE} == set(Step)


def test_no_rows_are_written_while_a_decided_batch_is_unknown_or_partly_lost() -> None:
    for status, evidence, position, staged, abandoned in COMBINATIONS:
        step = lookup(status, outcome_of(evidence), position, staged=staged, abandoned=abandoned).step
        if status in {LogStatus.DECIDED, LogStatus.REPAIRED} and step in {Step.WRITE, Step.REWRITE}:
            assert len(set(evidence)) <= 1
            assert Evidence.UNKNOWN not in evidence


def test_only_a_batch_that_nothing_can_complete_is_abandoned() -> None:
    for status, evidence, position, staged, _ in COMBINATIONS:
        facts = (status, outcome_of(evidence), position)
        named, unnamed = (lookup(*facts, staged=staged, abandoned=abandoned).step for abandoned in (True, False))
        assert unnamed is not Step.ABANDON
        assert named is unnamed or unnamed in {Step.BLOCKED, Step.IN_DOUBT, Step.REPAIR}


@pytest.mark.parametrize("evidence", ALL_EVIDENCE)
def test_the_outcome_depends_only_on_the_set_of_evidence(evidence: tuple[Evidence, ...]) -> None:
    found = set(evidence)
    expected = {
        frozenset(): Outcome.COMMITTED,
        frozenset({Evidence.COMMITTED}): Outcome.COMMITTED,
        frozenset({Evidence.ABORTED}): Outcome.LOST,
        frozenset({Evidence.COMMITTED, Evidence.ABORTED}): Outcome.PARTLY_LOST,
    }.get(frozenset(found), Outcome.UNKNOWN)
    assert outcome_of(evidence) is outcome_of(reversed(evidence)) is expected
