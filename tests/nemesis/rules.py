"""Define which requests a schedule hits, and what happens to them.

A :class:`Rule` serves every proxy; without type arguments, it is a rule for Kafka's requests. :class:`Selection` is Kafka's own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nemesis.frames import Api, Request, Response

#: The default limit of a hold. A hold that reaches the limit was forgotten, which the proxy reports when it closes.
LONGEST_HOLD_S: Final = 60.0


class Asked(Protocol):
    """A request."""

    @property
    def body(self) -> Any:
        """Its content, for messages."""


class Answered(Protocol):
    """A server's response."""

    @property
    def error(self) -> str:
        """The name of the response's error, or the protocol's word for success."""


RequestT = TypeVar("RequestT", bound=Asked, default="Request")
ResponseT = TypeVar("ResponseT", bound=Answered, default="Response")
WantedT_contra = TypeVar("WantedT_contra", bound=Asked, contravariant=True, default="Request")


class Wanted(Protocol[WantedT_contra]):
    """The requests that a rule applies to: from the ``nth`` match on, ``times`` of them."""

    @property
    def nth(self) -> int:
        """Counts from 1, and from the moment the rule is made."""

    @property
    def times(self) -> float:
        """May be infinite."""

    def matches(self, request: WantedT_contra) -> bool:
        """Whether a request matches, with any number."""


class Fault(Enum):
    """The effect of the network on a request or its response."""

    NOTHING = "only watched"
    DROP_REQUEST = "the broker never gets the request"
    DROP_RESPONSE = "the broker acts, the client gets no answer"
    HOLD_REQUEST = "the request and everything behind it on that connection waits"
    HOLD_RESPONSE = "the broker has acted, its answer waits"
    CLOSE_BEFORE = "the connection breaks before the broker gets the request"
    CLOSE_AFTER = "the broker acts, then the connection breaks without an answer"
    STRAND_REQUEST = "the connection breaks; the request waits, and arrives although its client has gone"
    ANSWER_FOR_GATEWAY = "the server acts, but a gateway answers that it got no answer"


@dataclass
class Exchange(Generic[RequestT, ResponseT]):
    """A request that went through the proxy, and its result.

    Attributes:
        request: as the client sent it.
        broker: the ``(host, port)`` it went to.
        response: the broker's response, whether or not the client received it; None until it answers.
        fault: the fault that the proxy injected into this request, or None.
    """

    request: RequestT
    broker: tuple[str, int]
    response: ResponseT | None = None
    fault: Fault | None = None
    _answered: threading.Event = field(default_factory=threading.Event, repr=False)

    def record(self, response: ResponseT) -> None:
        """Record the broker's response."""
        self.response = response
        self._answered.set()

    def wait(self, within_s: float = 10) -> ResponseT:
        """Wait for the broker's response.

        Raises:
            AssertionError: no response in time.
        """
        assert self._answered.wait(within_s), f"the broker did not respond to {self.request.body} within {within_s:g} s"
        assert self.response is not None
        return self.response

    def answer(self, within_s: float = 10) -> str:
        """Wait for the broker's response; return the name of its error, ``NONE`` for success.

        Raises:
            AssertionError: no response in time.
        """
        return self.wait(within_s).error


class Rule(Generic[RequestT, ResponseT]):
    """A fault and the requests it applies to. Thread-safe.

    Attributes:
        hits: the exchanges it has hit, in order.
        is_forgotten: a hold ran out before its release.
    """

    def __init__(
        self, selection: Wanted[RequestT], fault: Fault, hold_s: float = 0.0, *, is_delay: bool = False
    ) -> None:
        self._selection = selection
        self.fault = fault
        self.hits: list[Exchange[RequestT, ResponseT]] = []
        self._hold_s = hold_s
        self._is_delay = is_delay
        self.is_forgotten = False
        self._seen = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._released = threading.Event()

    @property
    def injected(self) -> int:
        """The number of faults it has injected."""
        return 0 if self.fault is Fault.NOTHING else len(self.hits)

    def is_due(self, request: RequestT) -> bool:
        """Whether it applies to this request; counts every request that it matches."""
        if not self._selection.matches(request):
            return False
        with self._changed:
            if self._is_over:
                return False
            self._seen += 1
            first = self._selection.nth
            return first <= self._seen < first + self._selection.times

    def act(self, exchange: Exchange[RequestT, ResponseT]) -> None:
        """Record that it acts on this request."""
        with self._changed:
            if self.fault is not Fault.NOTHING:
                exchange.fault = self.fault
            self.hits.append(exchange)
            self._changed.notify_all()

    def wait(self, within_s: float = 30, *, hits: int = 1) -> Exchange[RequestT, ResponseT]:
        """Wait until it has acted ``hits`` times; returns the exchange of the last time.

        Raises:
            AssertionError: no response in time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.hits) >= hits, within_s)
        assert done, (
            f"{self._selection} matched {self._seen} requests within {within_s:g} s, and the rule acted on "
            f"{len(self.hits)} of them"
        )
        return self.hits[hits - 1]

    def release(self) -> None:
        """Let held requests go."""
        self._released.set()

    def disarm(self) -> None:
        """Act on no request from now on. Held requests stay held."""
        with self._changed:
            self._is_over = True

    def block(self) -> None:
        """Block until it is released or the hold runs out."""
        self.is_forgotten |= not (self._released.wait(self._hold_s) or self._is_delay)

    def __str__(self) -> str:
        return f"{self.fault.name} of {self._selection}"


@dataclass(frozen=True)
class Selection:
    """The requests that match all conditions: from the ``nth`` match on, ``times`` of them.

    Its methods arm a fault and return its :class:`Rule`.
    """

    api: Api
    transactional_id: str | None
    committed: bool | None
    where: Callable[[Request], bool] | None
    nth: int
    times: float
    _arm: Callable[[Rule], Rule] = field(repr=False)

    def matches(self, request: Request) -> bool:
        """Whether a request matches, with any number."""
        if request.api_key != self.api:
            return False
        pattern = self.transactional_id
        if pattern is not None and not any(fnmatchcase(tid, pattern) for tid in request.transactional_ids):
            return False
        if self.committed is not None and request.committed is not self.committed:
            return False
        return self.where is None or self.where(request)

    def watch(self) -> Rule:
        """Only watch: the rule reports when the request came and, by its exchange, when it was answered."""
        return self._arm(Rule(self, Fault.NOTHING))

    def drop_request(self) -> Rule:
        """The broker never receives the request; the connection stays open.

        No real network does this. A client that expects answers in order (kafka-python's) closes the connection at the next
        answer, and repeats all requests that were pending there.
        """
        return self._arm(Rule(self, Fault.DROP_REQUEST))

    def drop_response(self) -> Rule:
        """The broker acts on it, but its response is lost; the connection stays open."""
        return self._arm(Rule(self, Fault.DROP_RESPONSE))

    def delay(self, seconds: float) -> Rule:
        """The request arrives after this delay, even if its client has given up by then."""
        return self._arm(Rule(self, Fault.HOLD_REQUEST, seconds, is_delay=True))

    def delay_response(self, seconds: float) -> Rule:
        """The response arrives after this delay."""
        return self._arm(Rule(self, Fault.HOLD_RESPONSE, seconds, is_delay=True))

    def hold(self, *, longest_s: float = LONGEST_HOLD_S) -> Rule:
        """The request arrives when the rule is released, even if its client has given up by then."""
        return self._arm(Rule(self, Fault.HOLD_REQUEST, longest_s))

    def hold_response(self, *, longest_s: float = LONGEST_HOLD_S) -> Rule:
        """The response arrives when the rule is released."""
        return self._arm(Rule(self, Fault.HOLD_RESPONSE, longest_s))

    def close_connection(self, *, answered: bool = False) -> Rule:
        """Break the connection before the broker receives the request, or with ``answered``, instead of the response."""
        return self._arm(Rule(self, Fault.CLOSE_AFTER if answered else Fault.CLOSE_BEFORE))
