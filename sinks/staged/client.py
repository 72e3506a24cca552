"""Implement the part of a client that is the same for all stores: retries and error translation."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from operator import add, gt
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from twopc.errors import ConfigurationError, UnavailableError
from twopc.retry import repeating
from twopc.step_failures import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tenacity import RetryCallState
    from tenacity.wait import wait_base

    from twopc.errors import TwoPhaseCommitError

CallT = TypeVar("CallT")


Remedy = tuple[re.Pattern[str], type["TwoPhaseCommitError"], str]
"""A pattern that matches an error's class and text, the error class to raise, and the advice at the end of the message."""


def remedies(*given: tuple[str, type[TwoPhaseCommitError], str]) -> tuple[Remedy, ...]:
    """Compile the patterns. Only the first match is used."""
    return tuple((re.compile(pattern), error, advice) for pattern, error, advice in given)


class StoreClient(ABC, Generic[CallT]):
    """Manages one process's connections, and opens them when needed.

    Attributes:
        system: the store's name, for error messages.
        oldest: the oldest supported versions, for error messages.
        failures: every error that a call may raise or receive as its response.
        silences: the failures that mean that no response arrived.
        remedies: the advice for the errors in ``failures``.
        limits: the maximum total sizes of calls that are sent together, in the units of :meth:`_sizes`.
        backoff: the pauses between retries.
    """

    system: ClassVar[str]
    oldest: ClassVar[str]
    failures: ClassVar[tuple[type[Exception], ...]]
    silences: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    remedies: ClassVar[Sequence[Remedy]]
    limits: ClassVar[Sequence[int]]
    backoff: ClassVar[wait_base]

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def execute(self, calls: Sequence[CallT], *, retry_if: Callable[[Any], bool] | None = None) -> list[Any]:
        """Execute repeatable calls. Calls to the same place in the store keep their order.

        Retry a call while ``retry_if`` is true for its response. By default, only transient errors are retried. Give up if
        no call receives a response before the timeout. Every response restarts the timeout.

        Returns:
            the last response to each call, which may be an error.
        """
        answers: list[Any] = [TimeoutError("not sent")] * len(calls)
        retry_if = retry_if or self.is_transient
        pending: list[int] = list(range(len(calls)))
        deadline = time.monotonic() + self._timeout_s

        def is_over(_: object = None) -> bool:
            return time.monotonic() > deadline

        def execute_pending() -> list[int]:
            nonlocal pending, deadline
            left: list[int] = []
            for window in self._windows(calls, pending):
                self._execute(calls, window, answers)
                unanswered = [at for at in window if retry_if(answers[at])]
                if len(unanswered) < len(window):
                    deadline = time.monotonic() + self._timeout_s
                left += unanswered
                if left and is_over():
                    break
            pending = left
            return left

        def pause_s(state: RetryCallState) -> float:
            return min(self.backoff(state), max(0.0, deadline - time.monotonic()))

        def recover(_: RetryCallState) -> None:
            self._recover([calls[at] for at in pending], [answers[at] for at in pending])

        repeating(stop=is_over, backoff=pause_s, before_sleep=recover)(execute_pending)
        return answers

    def _windows(self, calls: Sequence[CallT], places: Sequence[int]) -> Iterator[list[int]]:
        """Group the calls to send together, without exceeding ``limits``.

        A single call that exceeds a limit is sent alone.
        """
        window: list[int] = []
        used: tuple[int, ...] = (0,) * len(self.limits)
        for place in places:
            size = self._sizes(calls[place])
            grown = tuple(map(add, used, size))
            if window and any(map(gt, grown, self.limits)):
                yield window
                window, grown = [], tuple(size)
            window.append(place)
            used = grown
        if window:
            yield window

    def execute_one(self, call: CallT) -> Any:
        """Execute one call. May raise one of ``failures``."""
        return checked(self.execute([call]))[0]

    def translate(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """Build the error for a failure before the decision. The message begins with ``what``: the sink and the step."""
        text = f"{what}: {text_of(error)}"
        if remedy := self._remedy_of(error):
            kind, advice = remedy
            return kind(f"{text}. {advice}")
        if self.is_transient(error):
            return UnavailableError(text)
        return ConfigurationError(
            f"{text}. {self.system} rejected the call: check that its version is {self.oldest} or newer"
        )

    def reason(self, error: Exception) -> str:
        """Describe a failure that stops a decided batch."""
        if remedy := self._remedy_of(error):
            return f"{text_of(error)}. {remedy[1]}"
        if isinstance(error, self.silences):
            return f"{self.system} does not respond: {text_of(error)}"
        return text_of(error)

    def _remedy_of(self, error: Exception) -> tuple[type[TwoPhaseCommitError], str] | None:
        return self.remedy(f"{getattr(error, 'kind', type(error).__name__)} {error}")

    def remedy(self, text: str) -> tuple[type[TwoPhaseCommitError], str] | None:
        """Look up the error class and the advice for this text. Return None if ``remedies`` has no match."""
        found = ((kind, advice) for pattern, kind, advice in self.remedies if pattern.search(text))
        return next(found, None)

    def _execute(self, calls: Sequence[CallT], window: Sequence[int], answers: list[Any]) -> None:
        by_server: dict[Any, list[tuple[int, Any]]] = {}
        failure: Exception | None = None
        deadline = time.monotonic() + self._timeout_s
        for at in window:
            if failure is not None and time.monotonic() > deadline:
                answers[at] = failure  # no server responds, so do not wait again for each of the remaining calls
                continue
            try:
                server, place = self._find(calls[at], answers[at])
            except self.failures as error:
                answers[at] = failure = error.with_traceback(None)  # as below
                continue
            by_server.setdefault(server, []).append((at, place))
        for server, mine in by_server.items():
            try:
                self._send(server, calls, mine, answers)
            except self.failures as error:
                for at, _ in mine:
                    answers[at] = error.with_traceback(None)  # the traceback would keep this frame and the error alive

    @staticmethod
    @abstractmethod
    def is_transient(answer: object) -> bool:
        """Return whether a response is an error that a retry may clear."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _sizes(self, call: CallT) -> Sequence[int]:
        """Return a call's size in the unit of each limit in ``limits``."""

    @abstractmethod
    def _find(self, call: CallT, last: Any) -> tuple[Any, Any]:
        """Choose the server for a call, and the call's destination on that server, such as a region.

        The call's last response may name a different server.
        """

    @abstractmethod
    def _send(self, server: Any, calls: Sequence[CallT], mine: Sequence[tuple[int, Any]], answers: list[Any]) -> None:
        """Send calls to one server, and overwrite each call's last response. ``mine`` lists each call's position and place."""

    @abstractmethod
    def _recover(self, calls: Sequence[CallT], answers: Sequence[Any]) -> None:
        """Before a retry, look up the servers for these calls again."""


AnswersT = TypeVar("AnswersT", bound="Collection[Any]")


def checked(answers: AnswersT) -> AnswersT:
    """Return the responses, or raise the first error among them."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
