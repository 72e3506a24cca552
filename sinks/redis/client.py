"""One way to Redis, whether it stands alone, behind Sentinel or in a cluster: calls, in order, until each is answered.

redis-py repeats a command after a lost reply by itself, which applies an ``INCRBY`` twice. That is switched off here;
what is repeated is repeated by :meth:`RedisLink.ask`, which takes only calls that may be.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from redis.cluster import RedisCluster
from redis.exceptions import AskError, NoScriptError, RedisError, SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sinks.redis.calls import FAILURES, NotReplicatedError, is_transient
from sinks.retry import ask_until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from sinks.redis.calls import Call, Safety

_BACKOFF_S: Final = 0.01
_BACKOFF_MAX_S: Final = 0.5
#: How much is sent before an answer is read: Redis serves nobody else while it works through one read of a socket.
_WINDOW: Final = 4_000
_PRIMARY: Final = "primary"
_LARGEST: Final = "proto-max-bulk-len"
_LARGEST_BYTES: Final = 512 * 1024 * 1024


class RedisLink:
    """Connections of one process, opened when they are needed. Used by one thread."""

    def __init__(self, connect: Callable[[], redis.Redis | RedisCluster], *, timeout_ms: int, safety: Safety) -> None:
        self._connect = connect
        self._client: redis.Redis | RedisCluster | None = None
        self._timeout_s = timeout_ms / 1000
        self._safety = safety

    def ask(self, calls: Sequence[Call], *, again: Callable[[Any], bool] = is_transient) -> list[Any]:
        """Make the calls, in order within a slot, and again those whose answer is ``again``, until the time is out.

        Returns:
            the last answer to each; an error is an answer.
        """
        answers: list[Any] = [RedisTimeoutError("not asked")] * len(calls)

        def recover(left: Sequence[int]) -> bool:
            # Once the scripts are known again there is nothing to wait for.
            if all(isinstance(answers[at], NoScriptError) for at in left):
                return False
            self._look_around()
            return True

        return ask_until_answered(
            answers,
            windows=lambda pending: _windows(pending, calls),
            make=lambda window: self._make([calls[at] for at in window], window, answers),
            again=again,
            recover=recover,
            timeout_s=self._timeout_s,
            pauses_s=(_BACKOFF_S, _BACKOFF_MAX_S),
        )

    def facts(self) -> list[Mapping[str, Any]]:
        """``INFO`` of every primary.

        Raises:
            Exception: one of ``FAILURES``: one of them does not answer.
        """
        return [node.info() for node in self._primaries()]

    def largest_word_bytes(self) -> int:
        """How long an argument of a command may be; where the user may not ask, Redis' default."""
        with contextlib.suppress(*FAILURES, KeyError):
            return min(int(str(node.config_get(_LARGEST)[_LARGEST])) for node in self._primaries())
        return _LARGEST_BYTES

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _make(self, calls: Sequence[Call], places: Sequence[int], answers: list[Any]) -> None:
        by_node: dict[int, tuple[redis.Redis, list[int]]] = {}
        for at, (call, place) in enumerate(zip(calls, places, strict=True)):
            try:
                node = self._node_of(call.slot, answers[place])
            except FAILURES as error:
                answers[place] = error
                continue
            by_node.setdefault(id(node), (node, []))[1].append(at)
        for node, mine in by_node.values():
            found = self._send(node, [calls[at] for at in mine], [answers[places[at]] for at in mine])
            for at, answer in zip(mine, found, strict=True):
                answers[places[at]] = answer

    def _send(self, node: redis.Redis, calls: Sequence[Call], before: Sequence[Any]) -> list[Any]:
        """Make calls to one node; ``before`` are their last answers."""
        wait = self._safety.command() if any(call.durable for call in calls) else None
        pipeline: Any = node.pipeline(transaction=False)
        for call, last in zip(calls, before, strict=True):
            if isinstance(last, AskError):
                pipeline.execute_command("ASKING")
            pipeline.execute_command(*_words(call, last))
        if wait is not None:
            pipeline.execute_command(*wait)
        try:
            raw = pipeline.execute(raise_on_error=False)
        except FAILURES as error:
            return [error] * len(calls)
        answers = iter(raw)
        found = [
            next(answers) if not isinstance(last, AskError) else (next(answers), next(answers))[1] for last in before
        ]
        if wait is not None and not self._safety.holds(raw[-1]):
            short = NotReplicatedError(f"{wait[0]} answered {raw[-1]} within {self._safety.timeout_ms} ms")
            return [
                short if call.durable and not isinstance(f, RedisError) else f
                for call, f in zip(calls, found, strict=True)
            ]
        return found

    @property
    def _connected(self) -> redis.Redis | RedisCluster:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _node_of(self, slot: int, last: Any) -> redis.Redis:
        client = self._connected
        if not isinstance(client, RedisCluster):
            return client
        if isinstance(last, AskError):
            node = client.nodes_manager.get_node(host=last.host, port=last.port)
        else:
            node = client.nodes_manager.get_node_from_slot(slot)
        if node is None:
            raise SlotNotCoveredError(f"no node for slot {slot}")
        return client.get_redis_connection(node)

    def _primaries(self) -> list[redis.Redis]:
        client = self._connected
        if not isinstance(client, RedisCluster):
            return [client]
        return [client.get_redis_connection(node) for node in client.nodes_manager.get_nodes_by_server_type(_PRIMARY)]

    def _look_around(self) -> None:
        """Ask a cluster anew who has what, Sentinel anew who is the primary."""
        with contextlib.suppress(*FAILURES):
            if isinstance(self._client, RedisCluster):
                self._client.nodes_manager.initialize()
            elif self._client is not None:
                self._client.connection_pool.disconnect(inuse_connections=False)


def _words(call: Call, last: Any) -> tuple[bytes | str | int, ...]:
    if call.script is None:
        return call.words
    if isinstance(last, NoScriptError):
        return ("EVAL", call.script.text, call.keys, *call.words)
    return ("EVALSHA", call.script.sha, call.keys, *call.words)


def _windows(places: Sequence[int], calls: Sequence[Call]) -> Iterator[list[int]]:
    window: list[int] = []
    weight = 0
    for place in places:
        if window and weight + calls[place].weight > _WINDOW:
            yield window
            window, weight = [], 0
        window.append(place)
        weight += calls[place].weight
    if window:
        yield window
