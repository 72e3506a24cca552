"""An error's class tells the caller what to do next."""

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
def test_every_error_has_the_common_base_the_error_suffix_and_a_docstring(
    kind: type[TwoPhaseCommitError],
) -> None:
    assert issubclass(kind, TwoPhaseCommitError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_only_subclasses_of_retriable_error_are_retriable(kind: type[TwoPhaseCommitError]) -> None:
    assert kind.retriable == issubclass(kind, RetriableError)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not TwoPhaseCommitError])
def test_every_error_is_exactly_one_of_retriable_fatal_in_doubt_and_blocked(kind: type[TwoPhaseCommitError]) -> None:
    answers = (RetriableError, FatalError, InDoubtError, CommitBlockedError)
    assert sum(issubclass(kind, answer) for answer in answers) == 1


def test_a_decision_in_doubt_is_not_retriable() -> None:
    assert not DecisionInDoubtError.retriable
    assert issubclass(DecisionInDoubtError, InDoubtError)


def test_an_in_doubt_error_lists_its_transactions() -> None:
    error = InDoubtError("batch 3", committed=["a", "b"], lost=["c"])
    assert str(error) == "batch 3; committed: a, b; lost: c"
    assert (error.committed, error.lost, error.unknown) == (("a", "b"), ("c",), ())


def test_a_blocked_commit_error_lists_its_transactions() -> None:
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
def test_an_error_is_the_same_after_it_is_pickled_and_unpickled(error: TwoPhaseCommitError) -> None:
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - the bytes are our own
    assert (type(copied), str(copied), copied.__dict__) == (type(error), str(error), error.__dict__)
