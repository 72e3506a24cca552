"""A network nemesis between a sink and its REST catalog: a proxy that holds a commit back, or loses its response.

A schedule names a request in advance, and what the network does to it (see :mod:`tests.nemesis.proxy`, which does it to Kafka)::

    with CatalogProxy(uri) as proxy:
        held = proxy.on(commit_of(1)).hold()
        …                                    # in a thread: the driver waits for the catalog's response
        late = held.wait()                   # the request has come; the catalog has not seen it
        held.release()
        assert late.answer() == "409 CommitFailedException"

A held request arrives even if its client has gone. Each driver has a separate proxy, so that a schedule can delay one
of them. The catalog acts first. Then every response that is delayed or lost waits until its rule is released.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tests.http_proxy import HttpAnswer, HttpProxy, send
from tests.nemesis.rules import LONGEST_HOLD_S, Exchange, Fault, Rule
from twopc.integration.services.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import BaseHTTPRequestHandler

_SUCCESS: Final = 200
_GATEWAY_TIMEOUT: Final = HttpAnswer(504, (), b"")
_ANSWER_FAULTS: Final = frozenset({Fault.HOLD_RESPONSE, Fault.CLOSE_AFTER, Fault.ANSWER_FOR_GATEWAY})


@dataclass(frozen=True)
class CatalogRequest:
    """A request to the catalog."""

    method: str
    path: str
    content: bytes = field(repr=False)

    @cached_property
    def body(self) -> Any:
        """The decoded content; None without content."""
        return json.loads(self.content) if self.content else None

    @property
    def summary(self) -> dict[str, str]:
        """The summary of the snapshot that a commit adds; empty for other requests."""
        updates = (self.body or {}).get("updates", ()) if self.method == "POST" else ()
        return next((update["snapshot"]["summary"] for update in updates if "snapshot" in update), {})

    @property
    def batch(self) -> int | None:
        """The batch whose rows a commit adds."""
        found = self.summary.get("twopc.batch")
        return None if found is None else int(found)

    @property
    def lost(self) -> list[str]:
        """The transactions that a commit declares lost for good."""
        return list(json.loads(self.summary.get("twopc.published", "{}")).get("lost", ()))


@dataclass(frozen=True)
class CatalogAnswer:
    """The catalog's response."""

    answer: HttpAnswer

    @property
    def error(self) -> str:
        """``200``, or the status with the catalog's name of the error."""
        status = self.answer.status
        return str(status) if status == _SUCCESS else f"{status} {json.loads(self.answer.content)['error']['type']}"


CatalogExchange = Exchange[CatalogRequest, CatalogAnswer]
CatalogRule = Rule[CatalogRequest, CatalogAnswer]


def commit_of(batch: int) -> Callable[[CatalogRequest], bool]:
    """Select the commits that add the rows of a batch."""
    return lambda request: request.batch == batch


def is_start(request: CatalogRequest) -> bool:
    """Select the commits by which a driver acquires the sink."""
    return bool(request.summary) and request.batch is None and not request.lost


def is_loss(request: CatalogRequest) -> bool:
    """Select the commits that declare transactions lost for good."""
    return bool(request.lost)


class CatalogProxy(HttpProxy):
    """See the module.

    Args:
        uri: the catalog's.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(urlsplit(uri).port or 0)
        self._lock = threading.Lock()
        self._rules: list[CatalogRule] = []
        self._errors: list[Exception] = []

    def close(self) -> None:
        """Release every hold, and raise the proxy's own error: no schedule may pass because its proxy was broken."""
        for rule in self._rules:
            rule.release()
        super().close()
        forgotten = [str(rule) for rule in self._rules if rule.is_forgotten]
        assert not forgotten, f"these rules were not released in time: {forgotten}"
        if self._errors:
            raise self._errors[0]

    def on(self, where: Callable[[CatalogRequest], bool], *, nth: int = 1, times: float = 1) -> Selection:
        """Select future requests; a method of the result says what happens to them."""
        return Selection(where, nth, times, self._arm)

    def serve(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        """See :class:`HttpProxy`."""
        exchange = CatalogExchange(CatalogRequest(request.command, request.path, content), (HOST, self.server_port))
        try:
            self._disturbed(request, exchange, self._judge(exchange))
        except Exception as error:  # noqa: BLE001 - close() raises it
            self._errors.append(error)
            request.close_connection = True

    def _disturbed(self, request: BaseHTTPRequestHandler, exchange: CatalogExchange, rule: CatalogRule | None) -> None:
        fault = rule.fault if rule else None
        if fault is Fault.STRAND_REQUEST:
            _break(request)
        if rule and fault in {Fault.HOLD_REQUEST, Fault.STRAND_REQUEST}:
            rule.block()
        answer = self.passed_on(request, exchange.request.content)
        exchange.record(CatalogAnswer(answer))
        if rule and fault in _ANSWER_FAULTS:
            rule.block()
        if fault is Fault.CLOSE_AFTER:
            _break(request)
        elif fault is not Fault.STRAND_REQUEST:
            with contextlib.suppress(OSError):  # the client may already be gone
                send(_GATEWAY_TIMEOUT if fault is Fault.ANSWER_FOR_GATEWAY else answer, request)

    def _judge(self, exchange: CatalogExchange) -> CatalogRule | None:
        """Return the rule that acts on a request: the oldest rule that is due and does not only watch."""
        with self._lock:
            due = [rule for rule in self._rules if rule.is_due(exchange.request)]  # every rule counts the request
        faults = [rule for rule in due if rule.fault is not Fault.NOTHING][:1]
        for rule in [*faults, *(rule for rule in due if rule.fault is Fault.NOTHING)]:
            rule.act(exchange)
        return faults[0] if faults else None

    def _arm(self, rule: CatalogRule) -> CatalogRule:
        with self._lock:
            self._rules.append(rule)
        return rule


@dataclass(frozen=True)
class Selection:
    """The requests that match: from the ``nth`` match on, ``times`` of them. Its methods arm a fault and return its rule."""

    where: Callable[[CatalogRequest], bool]
    nth: int
    times: float
    _arm: Callable[[CatalogRule], CatalogRule] = field(repr=False)

    def matches(self, request: CatalogRequest) -> bool:
        """Whether a request matches, with any number."""
        return self.where(request)

    def watch(self) -> CatalogRule:
        """Only watch."""
        return self._arm(CatalogRule(self, Fault.NOTHING))

    def hold(self) -> CatalogRule:
        """The request arrives when the rule is released. Its client waits."""
        return self._arm(CatalogRule(self, Fault.HOLD_REQUEST, LONGEST_HOLD_S))

    def strand(self) -> CatalogRule:
        """The request arrives when the rule is released. Its client's connection breaks at once."""
        return self._arm(CatalogRule(self, Fault.STRAND_REQUEST, LONGEST_HOLD_S))

    def hold_response(self) -> CatalogRule:
        """The response arrives when the rule is released."""
        return self._arm(CatalogRule(self, Fault.HOLD_RESPONSE, LONGEST_HOLD_S))

    def lose_response(self) -> CatalogRule:
        """The connection breaks in place of the response, when the rule is released."""
        return self._arm(CatalogRule(self, Fault.CLOSE_AFTER, LONGEST_HOLD_S))

    def time_out(self) -> CatalogRule:
        """A gateway answers 504 in place of the catalog, when the rule is released."""
        return self._arm(CatalogRule(self, Fault.ANSWER_FOR_GATEWAY, LONGEST_HOLD_S))


def _break(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True
    with contextlib.suppress(OSError):
        request.connection.shutdown(socket.SHUT_RDWR)
