"""A client for Redis alone, behind Sentinel or in a cluster: executes calls in order and retries them until answered.

redis-py retries a command after a lost answer, which would apply an ``INCRBY`` twice. Its retries are switched off; the only
ones are those of :meth:`RedisClient.execute`, which takes calls that may be repeated.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from redis.cluster import RedisCluster
from redis.exceptions import AskError, NoScriptError, RedisError, SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError
from tenacity import wait_exponential

from sinks.redis.calls import FAILURES, NotReplicatedError, is_transient
from sinks.retry import execute_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

    from sinks.redis.calls import Call, Safety

_BACKOFF: Final = wait_exponential(multiplier=0.01, max=0.5)
#: The weight sent before an answer is read: Redis serves nobody else while it works through one read of a socket.
_WINDOW: Final = 4_000
_PRIMARY: Final = "primary"
_LARGEST: Final = "proto-max-bulk-len"
_LARGEST_BYTES: Final = 512 * 1024 * 1024


class RedisClient:
    """Connections of one process, opened when they are needed. Used by one thread."""

    def __init__(self, connect: Callable[[], redis.Redis | RedisCluster], *, timeout_ms: int, safety: Safety) -> None:
        self._connect = connect
        self._redis: redis.Redis | RedisCluster | None = None
        self._timeout_s = timeout_ms / 1000
        self._safety = safety

    def execute(self, calls: Sequence[Call], *, retry_if: Callable[[Any], bool] = is_transient) -> list[Any]:
        """Execute calls, in order within a hash slot; retry those that ``retry_if`` names until no call is answered in time.

        Returns:
            the last answer to each; an error is an answer.
        """
        answers: list[Any] = [RedisTimeoutError("not sent")] * len(calls)

        def recover(left: Sequence[int]) -> None:
            # A server that only forgot the scripts is the right one.
            if not all(isinstance(answers[at], NoScriptError) for at in left):
                self._find_primaries()

        return execute_all(
            answers,
            sizes=lambda at: (calls[at].weight,),
            limits=(_WINDOW,),
            execute=lambda window: self._execute([calls[at] for at in window], window, answers),
            retry_if=retry_if,
            recover=recover,
            timeout_s=self._timeout_s,
            backoff=_BACKOFF,
        )

    def server_info(self) -> list[Mapping[str, Any]]:
        """``INFO`` of every primary.

        Raises:
            Exception: one of ``FAILURES``: a primary does not answer.
        """
        return [node.info() for node in self._primaries()]

    def largest_argument_bytes(self) -> int:
        """How long an argument of a command may be; Redis' default where the user may not read the setting."""
        with contextlib.suppress(*FAILURES, KeyError):
            return min(int(str(node.config_get(_LARGEST)[_LARGEST])) for node in self._primaries())
        return _LARGEST_BYTES

    def close(self) -> None:
        """Close the connections."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def _execute(self, calls: Sequence[Call], places: Sequence[int], answers: list[Any]) -> None:
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
        """Send calls to one node; ``before`` are their last answers."""
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
        if self._redis is None:
            self._redis = self._connect()
        return self._redis

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

    def _find_primaries(self) -> None:
        """Ask the cluster again who serves which slot, or Sentinel who is the primary."""
        with contextlib.suppress(*FAILURES):
            if isinstance(self._redis, RedisCluster):
                self._redis.nodes_manager.initialize()
            elif self._redis is not None:
                self._redis.connection_pool.disconnect(inuse_connections=False)


def _words(call: Call, last: Any) -> tuple[bytes | str | int, ...]:
    if call.script is None:
        return call.words
    if isinstance(last, NoScriptError):
        return ("EVAL", call.script.text, call.keys, *call.words)
    return ("EVALSHA", call.script.sha, call.keys, *call.words)
