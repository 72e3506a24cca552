"""The exit status of a driver agrees with the table of errors in docs/deployment.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import twopc
from twopc import errors, exit_status
from twopc.integration import operate
from twopc.sealed import OtherVersionError
from twopc.sinks.kafka.ledger_owner import NotTheOwnerError
from twopc.sinks.kafka.transactions import BrokersTooOldError

_TABLE = (
    (Path(__file__).parents[2] / "docs" / "deployment.md").read_text().partition("| error | ")[2].partition("\n\n")[0]
)


class OfAUsersSinkError(errors.ConfigurationError):
    """A class that the toolkit does not know."""


def _status_of(name: str, module: str = "twopc.errors") -> int:
    """The error as Spark raises it: the class is lost, and the name is in the text."""
    text = f"[STREAM_FAILED] Query [id = q] terminated with exception: Traceback …\n{module}.{name}: batch 3 …\n\nat java …"
    return exit_status(RuntimeError(text))


@pytest.mark.parametrize("row", _TABLE.splitlines()[2:], ids=lambda row: row[2:30])
def test_a_restart_is_advised_if_the_table_says_that_it_resumes_the_query(row: str) -> None:
    error, what = row.strip("| ").split(" | ")
    for name in re.findall(r"`(\w+)`", error):
        if "every restart" not in error:  # a single error does not show whether every restart fails
            assert _status_of(name) == (75 if what.startswith("the query resumes") else 78), name


def test_every_error_has_a_status_which_is_the_same_from_the_object_and_from_sparks_text() -> None:
    named = [
        one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.TwoPhaseCommitError)
    ]
    assert len(named) >= 13
    for kind in named:
        error = kind.__new__(kind)
        assert exit_status(error) == _status_of(kind.__name__) in {75, 78}, kind


@pytest.mark.parametrize("kind", [OtherVersionError, BrokersTooOldError, NotTheOwnerError, OfAUsersSinkError])
def test_an_error_of_another_module_has_the_status_of_its_public_class(kind: type[errors.TwoPhaseCommitError]) -> None:
    error = kind.__new__(kind)
    expected = exit_status(error)
    assert expected == _status_of(kind.__name__, kind.__module__) == _status_of(errors.public_class(error).__name__)


@pytest.mark.parametrize(
    "error", [RuntimeError("a task failed"), ValueError("twopc.errors.Nonsense: x"), KeyboardInterrupt()]
)
def test_any_other_error_has_status_1(error: BaseException) -> None:
    assert exit_status(error) == 1


def test_a_query_that_was_asked_to_stop_is_not_restarted() -> None:
    stopped = operate.StoppedWithSavepointError("stopped with savepoint /s/1")
    assert exit_status(stopped) == 0
    assert (
        exit_status(RuntimeError(f"[STREAM_FAILED] …\n{type(stopped).__module__}.StoppedWithSavepointError: {stopped}"))
        == 0
    )


def test_exit_status_is_public() -> None:
    assert twopc.exit_status is exit_status
