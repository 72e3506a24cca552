"""A call that a cluster redirects is sent again in the right way, and a start asks again for the facts of a slow server."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.exceptions import AskError, MovedError, NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from twopc.sinks.redis.client import Call, RedisClient, Safety


class _Node(list[Any]):
    """A node that records the commands of a pipeline."""

    def pipeline(self, *, transaction: bool) -> _Node:
        assert not transaction
        return self

    def execute_command(self, *words: Any) -> None:
        self.append(words)

    def execute(self, *, raise_on_error: bool) -> list[bytes]:
        assert not raise_on_error
        return [b"OK" for _ in self]


@pytest.mark.parametrize(
    ("last", "sent"),
    [
        (AskError("1 h:1"), [("ASKING",), ("HGET", "key", "field")]),
        (MovedError("1 h:1"), [("HGET", "key", "field")]),
    ],
    ids=["ask", "moved"],
)
def test_only_the_response_ask_opens_a_slot_that_a_node_is_importing(last: Exception, sent: list[Any]) -> None:
    """The response MOVED may be out of date. If the node in it imports the slot, the keys may still be on the slot's owner."""

    def connect() -> Any:
        raise AssertionError("the test must not connect to a server")

    node: Any = _Node()
    answers: list[Any] = [last]
    client = RedisClient(connect, timeout_ms=1, safety=Safety())
    client._send(node, [Call(1, ("HGET", "key", "field"))], [(0, None)], answers)
    assert (node, answers) == (sent, [b"OK"])


def test_a_node_that_rejects_asking_explains_why_it_sends_the_call_back() -> None:
    """Otherwise, the client follows MOVED until its time is up, and the error names no missing permission."""
    client, refused = (
        RedisClient(lambda: cast("Any", None), timeout_ms=1, safety=Safety()),
        NoPermissionError("'asking'"),
    )
    for sent, answer in (([refused, MovedError("1 h:1")], refused), ([refused, b"1"], b"1"), ([b"OK", b"1"], b"1")):
        node: Any = _Node()
        node.execute = lambda sent=sent, **_: sent
        answers: list[Any] = [AskError("1 h:1")]
        client._send(node, [Call(1, ("HGET", "key", "field"))], [(0, None)], answers)
        assert answers == [answer]


def test_a_server_that_does_not_respond_at_once_is_asked_again_for_its_facts() -> None:
    answers: list[Any] = [RedisTimeoutError("Timeout reading from socket"), {"redis_version": "7.2.0"}]

    class Server:
        def info(self) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    server: Any = Server()
    client = RedisClient(lambda: server, timeout_ms=5_000, safety=Safety())
    assert client.server_info() == [{"redis_version": "7.2.0"}]
