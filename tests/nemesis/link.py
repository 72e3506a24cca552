"""One client's connection through the proxy: one thread per direction."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.nemesis.frames import Request, Response, correlation_id_of, framed, read_frames
from tests.nemesis.rules import Exchange, Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How long a broker may take to respond to requests that the client is no longer waiting for.
_DRAIN_S: Final = 10.0


class Link:
    """One client's connection through the proxy.

    Args:
        client: the client's end.
        broker: the broker's end.
        address: the broker's address.
        judge: returns the rule that acts on a request, and records the request.
        rewrite: turns a response into the one that the client receives.
        bytes_per_s: how fast it carries requests; None: as fast as it can.
    """

    def __init__(
        self,
        client: socket.socket,
        broker: socket.socket,
        address: tuple[str, int],
        judge: Callable[[Exchange], Rule | None],
        rewrite: Callable[[Response], bytes],
        bytes_per_s: float | None = None,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._client = client
        self._broker = broker
        self._address = address
        self._judge = judge
        self._rewrite = rewrite
        self._waiting: dict[int, tuple[Exchange, Rule | None]] = {}
        self._changed = threading.Condition()
        self._broker_is_gone = False
        self._errors: list[Exception] = []
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Forward until both ends are done.

        Raises:
            Exception: something received could not be decoded.
        """
        answers = threading.Thread(target=self._from_broker, name="nemesis-answers", daemon=True)
        answers.start()
        try:
            self._from_client()
            # Requests that have arrived are executed even if no one waits for the response: a late request has its effect.
            with self._changed:
                self._changed.wait_for(lambda: self._broker_is_gone or not self._waiting, _DRAIN_S)
        finally:
            _shut(self._broker)
            answers.join()
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """Break the connection."""
        for end in (self._client, self._broker):
            _shut(end)
            end.close()

    def _from_client(self) -> None:
        for payload in _payloads_from(self._client):
            exchange = Exchange(Request(payload), self._address)
            rule = self._judge(exchange)
            if rule is not None:
                if rule.fault is Fault.DROP_REQUEST:
                    continue
                if rule.fault is Fault.CLOSE_BEFORE:
                    _shut(self._client)
                    return
                if rule.fault is Fault.HOLD_REQUEST:
                    rule.block()
            with self._changed:
                self._waiting[exchange.request.correlation_id] = (exchange, rule)
            if self._bytes_per_s:
                time.sleep(len(payload) / self._bytes_per_s)
            if not _sent(self._broker, payload):
                return

    def _from_broker(self) -> None:
        try:
            for payload in _payloads_from(self._broker):
                self._answer(payload)
        except Exception as error:  # noqa: BLE001 - raised by run()
            self._errors.append(error)
        finally:
            with self._changed:
                self._broker_is_gone = True
                self._changed.notify_all()
            _shut(self._client)

    def _answer(self, payload: bytes) -> None:
        with self._changed:
            exchange, rule = self._waiting[correlation_id_of(payload)]
        response = Response(payload, exchange.request)
        exchange.record(response)
        fault = rule.fault if rule else None
        if rule and fault is Fault.HOLD_RESPONSE:
            rule.block()
        if fault is Fault.CLOSE_AFTER:
            _shut(self._client)
        elif fault is not Fault.DROP_RESPONSE:
            _sent(self._client, self._rewrite(response))  # a no-op if the client is gone
        with self._changed:
            del self._waiting[exchange.request.correlation_id]
            self._changed.notify_all()


def _payloads_from(end: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError), end.makefile("rb") as stream:
        yield from read_frames(stream)


def _sent(end: socket.socket, payload: bytes) -> bool:
    try:
        end.sendall(framed(payload))
    except OSError:
        return False
    return True


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
