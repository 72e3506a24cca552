"""Talk to standalone Redis, to Redis behind Sentinel, or to a cluster.

redis-py retries a command after a lost response, which would apply an ``INCRBY`` twice. The sink therefore disables redis-py's
retries. Only :meth:`RedisClient.execute` retries, and it accepts only calls that may be repeated.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.cluster import RedisCluster
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, SlotNotCoveredError
from tenacity import wait_exponential

from twopc.sinks.redis.errors import FAILURES, REMEDIES, NotReplicatedError, SlotMovingError, is_transient
from twopc.sinks.staged.client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

    from twopc.sinks.redis.scripts import Script

_PRIMARY: Final = "primary"
_LARGEST: Final = "proto-max-bulk-len"
_LARGEST_BYTES: Final = 512 * 1024 * 1024


class Call(NamedTuple):
    """A command that may be repeated.

    Attributes:
        slot: the keys' hash slot; ignored without a cluster.
        words: the command, or the keys and arguments for ``script``.
        script: the script to run, if any.
        keys: the number of keys in ``words``.
        weight: the call's approximate cost, in single commands.
        durable: whether the response counts only if the write is as safe as :class:`Safety` demands.
    """

    slot: int
    words: tuple[bytes | str | int, ...]
    script: Script | None = None
    keys: int = 0
    weight: int = 1
    durable: bool = False


@dataclass(frozen=True)
class Safety:
    """The copies that the sink requires before it treats a write as safe.

    Attributes:
        replicas: the number of replicas that must have the write in memory (WAIT).
        aof: whether the primary must have the write on disk (WAITAOF).
        timeout_ms: how long to wait for the replicas and the disk.
    """

    replicas: int = 0
    aof: bool = False
    timeout_ms: int = 1_000

    def command(self) -> tuple[str | int, ...] | None:
        """Return the command that waits for the copies. Return None if the primary's response is enough."""
        if self.aof:
            return ("WAITAOF", 1, self.replicas, self.timeout_ms)
        return ("WAIT", self.replicas, self.timeout_ms) if self.replicas else None

    def holds(self, answer: Any) -> bool:
        """Return whether the response to :meth:`command` proves that the write is safe."""
        if isinstance(answer, RedisError):
            return False
        if self.aof:
            return bool(answer[0] >= 1 and answer[1] >= self.replicas)
        return bool(answer >= self.replicas)


class RedisClient(StoreClient[Call]):
    """See :class:`StoreClient`. All changes within one hash slot are atomic. Only one thread may use a client."""

    system = "Redis"
    oldest = "Redis 6.2, Valkey 7.2"
    failures = FAILURES
    remedies = REMEDIES
    #: The maximum weight to send before reading a response. While Redis executes the commands from one read of a socket, it
    #: serves no other client.
    limits = (4_000,)
    backoff = wait_exponential(multiplier=0.01, max=0.5)
    is_transient = staticmethod(is_transient)

    def __init__(self, connect: Callable[[], redis.Redis | RedisCluster], *, timeout_ms: int, safety: Safety) -> None:
        super().__init__(timeout_s=timeout_ms / 1000)
        self._connect = connect
        self._redis: redis.Redis | RedisCluster | None = None
        self._safety = safety

    def server_info(self) -> list[Mapping[str, Any]]:
        """Read ``INFO`` from every primary. Raises one of ``FAILURES`` if a primary does not respond."""
        return [node.info() for node in self._primaries()]

    def largest_argument_bytes(self) -> int:
        """Return the maximum size of a command's argument in bytes.

        Return Redis's default if the user has no permission to read the setting.
        """
        with contextlib.suppress(*FAILURES, KeyError):
            return min(int(str(node.config_get(_LARGEST)[_LARGEST])) for node in self._primaries())
        return _LARGEST_BYTES

    def close(self) -> None:
        """See :class:`StoreClient`."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def _sizes(self, call: Call) -> tuple[int]:
        return (call.weight,)

    def _send(
        self, server: redis.Redis, calls: Sequence[Call], mine: Sequence[tuple[int, None]], answers: list[Any]
    ) -> None:
        wait = self._safety.command() if any(calls[at].durable for at, _ in mine) else None
        pipeline: Any = server.pipeline(transaction=False)
        places = []
        for at, _ in mine:
            if _is_ask(answers[at]):
                pipeline.execute_command("ASKING")
            places.append(len(pipeline))
            pipeline.execute_command(*_words(calls[at], answers[at]))
        if wait is not None:
            pipeline.execute_command(*wait)
        found = pipeline.execute(raise_on_error=False)
        is_safe = wait is None or self._safety.holds(found[-1])
        for (at, _), place in zip(mine, places, strict=True):
            answers[at] = _read(calls[at], found[place])
            if wait and calls[at].durable and not is_safe and not isinstance(found[place], RedisError):
                answers[at] = NotReplicatedError(f"{wait[0]} returned {found[-1]} within {self._safety.timeout_ms} ms")

    def _recover(self, calls: Sequence[Call], answers: Sequence[Any]) -> None:
        """Ask the cluster again for each slot's node, or ask Sentinel for the primary."""
        del calls
        if all(isinstance(answer, NoScriptError) for answer in answers):
            return  # the servers are still the right ones, but they have lost the scripts
        with contextlib.suppress(*FAILURES):
            if isinstance(self._redis, RedisCluster):
                self._redis.nodes_manager.initialize()
            elif self._redis is not None:
                self._redis.connection_pool.disconnect(inuse_connections=False)

    def _connected(self) -> redis.Redis | RedisCluster:
        if self._redis is None:
            self._redis = self._connect()
        return self._redis

    def _find(self, call: Call, last: Any) -> tuple[redis.Redis, None]:
        client = self._connected()
        if not isinstance(client, RedisCluster):
            return client, None
        if isinstance(last, AskError):
            node = client.nodes_manager.get_node(host=last.host, port=last.port)
        else:
            node = client.nodes_manager.get_node_from_slot(call.slot)
        if node is None:
            raise SlotNotCoveredError(f"no node serves slot {call.slot}")
        return client.get_redis_connection(node), None

    def _primaries(self) -> list[redis.Redis]:
        client = self._connected()
        if not isinstance(client, RedisCluster):
            return [client]
        return [client.get_redis_connection(node) for node in client.nodes_manager.get_nodes_by_server_type(_PRIMARY)]


def _is_ask(answer: Any) -> bool:
    """Return whether the node only imports the slot. For redis-py, MOVED is a kind of ASK, but that node owns the slot."""
    return isinstance(answer, AskError) and not isinstance(answer, MovedError)


def _read(call: Call, answer: Any) -> Any:
    """Return the response. A script that uses the user's keys must not follow ASK; see :class:`SlotMovingError`."""
    if call.script is not None and call.script.uses_data and _is_ask(answer):
        return SlotMovingError(call.slot, f"{answer.host}:{answer.port}")
    return answer


def _words(call: Call, last: Any) -> tuple[bytes | str | int, ...]:
    if call.script is None:
        return call.words
    if isinstance(last, (NoScriptError, AskError)):  # the node that ASK names may not have the script
        return ("EVAL", call.script.text, call.keys, *call.words)
    return ("EVALSHA", call.script.sha, call.keys, *call.words)
