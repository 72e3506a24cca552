"""After a signal, a command cleans up and exits with the signal's status, whatever became of the handler's exception."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from twopc.errors import RetriableError
from twopc.integration.reported import reported
from twopc.integration.signals import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The build server may ignore Ctrl-C, and ``nohup`` ignores the end of the terminal."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, found in before.items():
        signal.signal(number, found)


def replaced(number: signal.Signals, error: Exception) -> None:
    """Receive a signal inside a C extension that replaces the handler's exception."""
    try:
        signal.raise_signal(number)
    except BaseException:  # noqa: BLE001 - stands in for the C extension
        raise error from None


def given(number: signal.Signals, act: Callable[[], object], cleaned: list[str]) -> int:
    def command() -> int:
        try:
            act()
        finally:
            cleaned.append(number.name)
        return 0

    return reported("x", command, not_done=2)


@pytest.mark.parametrize("error", [None, TypeError("replaced"), SystemError("replaced"), AssertionError("replaced")])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_command_after_its_cleanup(
    number: signal.Signals, error: Exception | None, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned: list[str] = []
    act = (lambda: signal.raise_signal(number)) if error is None else (lambda: replaced(number, error))
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            given(number, act, cleaned)
    else:
        with pytest.raises(SystemExit) as ended:
            given(number, act, cleaned)
        assert ended.value.code == 128 + number
    assert cleaned == [number.name]
    assert not capsys.readouterr().err


def test_the_error_of_a_failed_cleanup_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    error = RetriableError("deleting the topic x failed")
    assert given(signal.SIGTERM, lambda: replaced(signal.SIGTERM, error), []) == 2
    assert "deleting the topic x failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "Input/output error")]
)
def test_an_error_of_the_system_after_a_signal_is_reported(error: OSError, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if it counts as the signal's own: the user would not hear that the cleanup is incomplete."""
    assert given(signal.SIGTERM, lambda: replaced(signal.SIGTERM, error), []) == 2
    assert str(error) in capsys.readouterr().err


def test_a_commands_own_error_after_a_signal_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class ServiceError(RuntimeError): ...

    def act() -> int:
        replaced(signal.SIGTERM, ServiceError("the server does not stop"))
        return 0

    assert reported("x", act, not_done=2, expected={ServiceError: 3}) == 3
    assert "the server does not stop" in capsys.readouterr().err


def test_a_closed_terminal_is_no_error() -> None:
    """After its terminal has closed, a command can print nothing more."""
    with pytest.raises(SystemExit) as ended:
        given(signal.SIGHUP, lambda: replaced(signal.SIGHUP, OSError(errno.EIO, "Input/output error")), [])
    assert ended.value.code == 128 + signal.SIGHUP


@pytest.mark.parametrize("error", [BrokenPipeError("Broken pipe"), ConnectionRefusedError("Connection refused")])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_connection_to_a_process_that_the_signal_has_ended_is_no_error(
    number: signal.Signals, error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal sends its signals to all processes of a pipeline. Seen: Ctrl-C printed a traceback of a broken pipe."""
    with pytest.raises(BaseException) as ended:  # noqa: PT011 - the next line names the types
        given(number, lambda: replaced(number, error), [])
    assert ended.type is (KeyboardInterrupt if number == signal.SIGINT else SystemExit)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_interrupt_the_cleanup(second: signal.Signals) -> None:
    """A shell may send SIGHUP twice."""
    done: list[str] = []

    def act() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(second)
            done.append("cleaned")

    with pytest.raises(SystemExit):
        given(signal.SIGHUP, act, [])
    assert done == ["cleaned"]


def test_a_later_signal_ends_a_command_that_has_missed_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores an exception that a signal handler raises in a finalizer."""

    def act() -> None:
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr("twopc.integration.signals._SAME_S", 0)  # some time later
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        given(signal.SIGTERM, act, [])


def test_without_a_signal_an_unknown_error_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise TypeError("a fault")

    assert given(signal.SIGTERM, fail, []) == 2
    assert "unexpected TypeError (a fault)" in capsys.readouterr().err


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert given(signal.SIGHUP, lambda: signal.raise_signal(signal.SIGHUP), []) == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_handlers_are_restored_and_nested_handlers_run() -> None:
    received: list[int] = []
    signal.signal(signal.SIGTERM, own := lambda number, _: received.append(number))
    with pytest.raises(SystemExit), ended_by_signals(), ended_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_thread_other_than_the_main_thread_leaves_the_handlers_alone() -> None:
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(given(signal.SIGTERM, lambda: None, [])))
    thread.start()
    thread.join()
    assert statuses == [0]
