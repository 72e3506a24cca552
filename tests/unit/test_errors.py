"""What a caller may do next is on the error's class."""

from __future__ import annotations

import inspect
import pickle

import pytest

from twopc import errors
from twopc.errors import (
    CommitBlockedError,
    DecisionInDoubtError,
    FatalError,
    InDoubtError,
    RefusedStartError,
    RetriableError,
    TwoPhaseCommitError,
)

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, Exception)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_in_the_one_tree_with_the_one_suffix_and_says_what_it_means(
    kind: type[TwoPhaseCommitError],
) -> None:
    assert issubclass(kind, TwoPhaseCommitError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_only_the_retriable_are_retriable(kind: type[TwoPhaseCommitError]) -> None:
    assert kind.retriable == issubclass(kind, RetriableError)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not TwoPhaseCommitError])
def test_failed_retriable_unknown_and_decided_are_never_the_same(kind: type[TwoPhaseCommitError]) -> None:
    answers = (RetriableError, FatalError, InDoubtError, CommitBlockedError)
    assert sum(issubclass(kind, answer) for answer in answers) == 1


def test_a_decision_in_doubt_is_not_to_be_tried_again() -> None:
    assert not DecisionInDoubtError.retriable
    assert issubclass(DecisionInDoubtError, InDoubtError)


def test_a_doubt_names_its_transactions_in_its_message() -> None:
    error = InDoubtError("batch 3", committed=["a", "b"], lost=["c"])
    assert str(error) == "batch 3; committed: a, b; lost: c"
    assert (error.committed, error.lost, error.unknown) == (("a", "b"), ("c",), ())


def test_a_blocked_commit_names_its_transactions_in_its_message() -> None:
    assert str(CommitBlockedError("batch 3", transactions=["a", "b"])) == "batch 3; not yet proven: a, b"
    assert str(CommitBlockedError("batch 3")) == "batch 3"


@pytest.mark.parametrize(
    "error",
    [
        InDoubtError("m", committed=["a"], lost=["b"], unknown=["c"]),
        CommitBlockedError("m", transactions=["a"]),
        RefusedStartError("m", case="gap"),
        RetriableError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_from_a_worker(error: TwoPhaseCommitError) -> None:
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copied), str(copied), copied.__dict__) == (type(error), str(error), error.__dict__)
