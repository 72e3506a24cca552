"""Counts the cost of a batch: requests to brokers, calls to the JVM, calls to Python functions.

Counts, unlike times, do not depend on the machine, so a test can hold bounds. A wait is a loop that repeats its
request, so a batch on a busy machine may have higher counts. The cost of a batch is the minimum of several batches, so
anything added to every batch raises it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import JavaClient
from py4j.java_gateway import GatewayClient

from tests.nemesis.proxy import Api, KafkaProxy
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from tests.nemesis.rules import Exchange, Rule

BYTES = "bytes of requests"
CONNECTIONS = "connections"
PYTHON = "calls of Python functions"
#: The Python calls for one round of a wait for a commit, which describes the transactions once.
REPETITION = 143
JVM = "calls of the JVM"
#: Counted instead of the requests, whose number depends on a race: librdkafka's thread sends the partitions that it
#: knows so far while our own thread continues.
PARTITIONS = "partitions that were added to transactions"
#: How many tasks write a plan's rows, by the plan's number of partitions: at most two for each of the session's two
#: slots.
WRITERS = {2: 2, 64: 4, 200: 4}
#: `make test` measures only one of these plans.
PLANS = [count if count == 64 else pytest.param(count, marks=pytest.mark.whole) for count in WRITERS]


class CountingProxy(KafkaProxy):
    """Counts the requests that pass through, by kind, and their bytes; for AddPartitionsToTxn, the partitions.

    Attributes:
        connections: the number of connections opened so far.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._counting = threading.Lock()
        self._counted: Counter[str] = Counter()
        self.connections = 0

    @property
    def counted(self) -> Counter[str]:
        """The counts so far."""
        with self._counting:
            return Counter(self._counted)

    def _serve(self, client: socket.socket, broker: tuple[str, int]) -> None:
        with self._counting:
            self.connections += 1
        super()._serve(client, broker)

    def _judge(self, exchange: Exchange) -> Rule | None:
        request = exchange.request
        kind, count = _name(request.api_key), 1
        if request.api_key == Api.ADD_PARTITIONS_TO_TXN:
            kind, count = PARTITIONS, sum(len(topic.partitions) for topic in request.body.v3_and_below_topics)
        with self._counting:
            self._counted[kind] += count
            self._counted[BYTES] += len(request.payload)
        return super()._judge(exchange)


def _name(api_key: int) -> str:
    return Api(api_key).name if api_key in set(Api) else f"api key {api_key}"


@contextlib.contextmanager
def counting_calls() -> Iterator[Counter[str]]:
    """Count this thread's calls to Python functions, which an enclosing count excludes, and all calls to the JVM.

    A wait for a commit repeats one request, more often on a slow machine. The calls of each repetition therefore do not
    count: the proxy counts its request.
    """
    counted: Counter[str] = Counter()
    repeated = TransactionClient.describe.__code__

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            counted[PYTHON] += 1 if frame.f_code is not repeated else 1 - REPETITION

    with contextlib.ExitStack() as stack:
        for client in (GatewayClient, JavaClient):
            _count_commands(client, counted, stack)
        stack.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(on_event)
        yield counted


def _count_commands(client: Any, counted: Counter[str], stack: contextlib.ExitStack) -> None:
    send = client.__dict__.get("send_command")
    if send is None:
        return

    def counting(self: Any, *arguments: Any, **named: Any) -> Any:
        counted[JVM] += 1
        return send(self, *arguments, **named)

    client.send_command = counting
    stack.callback(setattr, client, "send_command", send)


@contextlib.contextmanager
def counting_method(owner: Any, name: str) -> Iterator[list[str]]:
    """Record each call to a method, from any thread. Each call is a round trip."""
    calls: list[str] = []
    really = getattr(owner, name)

    def counting(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return really(*arguments, **named)

    setattr(owner, name, counting)
    try:
        yield calls
    finally:
        setattr(owner, name, really)


def least(batches: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The cost of a batch: the minimum of each count over the batches."""
    kinds = sorted({kind for batch in batches for kind in batch})
    return {kind: min(batch.get(kind, 0) for batch in batches) for kind in kinds}


def require_within(found: Mapping[str, float], bounds: Mapping[str, float]) -> None:
    """Check that nothing was counted more often than its bound allows, and that nothing without a bound was counted."""
    over = {
        kind: f"{count}, at most {bounds.get(kind, 0)}" for kind, count in found.items() if count > bounds.get(kind, 0)
    }
    assert not over, (
        f"a batch costs more than before: {over}. If the cost is justified, raise the bounds. All counts: {dict(found)}"
    )
