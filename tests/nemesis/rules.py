"""What happens to which request: the words of a schedule."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nemesis.frames import Api, Request, Response

#: A hold that is longer, if its schedule says no other time, was forgotten: the proxy tells on leaving.
LONGEST_HOLD_S: Final = 60.0


class Fault(Enum):
    """What the network does to a request or to its response."""

    NOTHING = "it is watched"
    DROP_REQUEST = "the broker never gets it"
    DROP_RESPONSE = "the broker acts on it, the client hears nothing"
    HOLD_REQUEST = "it is on its way, and everything behind it on that connection, too"
    HOLD_RESPONSE = "the broker has acted, its answer is on its way"
    CLOSE_BEFORE = "the connection breaks, the broker never gets it"
    CLOSE_AFTER = "the broker acts on it, the connection breaks instead of the answer"


@dataclass
class Exchange:
    """A request that went through the proxy, and what became of it.

    Attributes:
        request: as the client sent it.
        broker: ``(host, port)`` that it went to.
        response: what the broker said, whether the client got it or not; None so far.
        fault: what the proxy did to it; None for nothing.
    """

    request: Request
    broker: tuple[str, int]
    response: Response | None = None
    fault: Fault | None = None
    _answered: threading.Event = field(default_factory=threading.Event, repr=False)

    def note(self, response: Response) -> None:
        """The broker has answered."""
        self.response = response
        self._answered.set()

    def wait(self, within_s: float = 10) -> Response:
        """Wait until the broker has answered.

        Raises:
            AssertionError: it has not, in that time.
        """
        assert self._answered.wait(within_s), f"the broker has not answered {self.request.body} in {within_s:g} s"
        assert self.response is not None
        return self.response

    def answer(self, within_s: float = 10) -> str:
        """The name of the broker's error, ``NONE`` for success; waits for it.

        Raises:
            AssertionError: there is none in time.
        """
        return self.wait(within_s).error


class Rule:
    """A fault that waits for its requests. Thread-safe.

    Attributes:
        hits: the exchanges it has hit, in order.
        is_forgotten: what it held was not released in time, and went on.
    """

    def __init__(self, selection: Selection, fault: Fault, hold_s: float = 0.0, *, is_delay: bool = False) -> None:
        self._selection = selection
        self.fault = fault
        self.hits: list[Exchange] = []
        self._hold_s = hold_s
        self._is_delay = is_delay
        self.is_forgotten = False
        self._seen = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._released = threading.Event()

    @property
    def injected(self) -> int:
        """How many faults that were."""
        return 0 if self.fault is Fault.NOTHING else len(self.hits)

    def is_due(self, request: Request) -> bool:
        """Whether it is this request's turn; counts those that it is about."""
        if not self._selection.matches(request):
            return False
        with self._changed:
            if self._is_over:
                return False
            self._seen += 1
            first = self._selection.nth
            return first <= self._seen < first + self._selection.times

    def act(self, exchange: Exchange) -> None:
        """It acts on this one."""
        with self._changed:
            if self.fault is not Fault.NOTHING:
                exchange.fault = self.fault
            self.hits.append(exchange)
            self._changed.notify_all()

    def wait(self, within_s: float = 30, *, hits: int = 1) -> Exchange:
        """Wait until it has acted ``hits`` times; returns the last of these exchanges.

        Raises:
            AssertionError: it has not, in that time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.hits) >= hits, within_s)
        assert done, f"{self._selection} was met {self._seen} times in {within_s:g} s, acted on {len(self.hits)}"
        return self.hits[hits - 1]

    def release(self) -> None:
        """Let go what is held."""
        self._released.set()

    def disarm(self) -> None:
        """From here on it acts on nothing; what it holds stays held."""
        with self._changed:
            self._is_over = True

    def stand_still(self) -> None:
        """Until released, or the time of the hold is over."""
        self.is_forgotten |= not (self._released.wait(self._hold_s) or self._is_delay)

    def __str__(self) -> str:
        return f"{self.fault.name} of {self._selection}"


@dataclass(frozen=True)
class Selection:
    """Which requests: all conditions hold, from the ``nth`` such request on, for ``times`` of them.

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
        """Whether a request is one of these, whatever its turn."""
        if request.api_key != self.api:
            return False
        pattern = self.transactional_id
        if pattern is not None and not any(fnmatchcase(tid, pattern) for tid in request.transactional_ids):
            return False
        if self.committed is not None and request.committed is not self.committed:
            return False
        return self.where is None or self.where(request)

    def watch(self) -> Rule:
        """Nothing happens to it; the rule tells when it came and, by its exchange, when it was answered."""
        return self._arm(Rule(self, Fault.NOTHING))

    def drop_request(self) -> Rule:
        """The broker never gets it; the connection goes on.

        As no network would do it: a client that takes the answers in turn (kafka-python's) closes the connection at the next
        one, and asks again for all that was under way there.
        """
        return self._arm(Rule(self, Fault.DROP_REQUEST))

    def drop_response(self) -> Rule:
        """The broker acts on it, its answer is lost; the connection goes on."""
        return self._arm(Rule(self, Fault.DROP_RESPONSE))

    def delay(self, seconds: float) -> Rule:
        """It arrives so much later, even if its client has given up by then."""
        return self._arm(Rule(self, Fault.HOLD_REQUEST, seconds, is_delay=True))

    def delay_response(self, seconds: float) -> Rule:
        """Its answer arrives so much later."""
        return self._arm(Rule(self, Fault.HOLD_RESPONSE, seconds, is_delay=True))

    def hold(self, *, longest_s: float = LONGEST_HOLD_S) -> Rule:
        """It arrives when the rule is released, even if its client has given up by then."""
        return self._arm(Rule(self, Fault.HOLD_REQUEST, longest_s))

    def hold_response(self, *, longest_s: float = LONGEST_HOLD_S) -> Rule:
        """Its answer arrives when the rule is released."""
        return self._arm(Rule(self, Fault.HOLD_RESPONSE, longest_s))

    def close_connection(self, *, answered: bool = False) -> Rule:
        """The connection breaks: before the broker gets it or, with ``answered``, in place of the answer."""
        return self._arm(Rule(self, Fault.CLOSE_AFTER if answered else Fault.CLOSE_BEFORE))
