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

from twopc.retry import retrying
from twopc.sinks.redis.errors import (
    FAILURES,
    FOREIGN_KEY,
    REMEDIES,
    SILENCES,
    NotReplicatedError,
    SlotMovingError,
    is_transient,
)
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
        timeout_ms: how long to wait for the replicas, and then for the disk.
    """

    replicas: int = 0
    aof: bool = False
    timeout_ms: int = 1_000

    def commands(self) -> list[tuple[str | int, ...]]:
        """Return the commands that wait for the copies. There are none if the primary's response is enough.

        This ``WAITAOF`` never waits for replicas, because the replicas would then need append-only files, too.
        """
        replicas = ("WAIT", self.replicas, self.timeout_ms)
        file = ("WAITAOF", 1, 0, self.timeout_ms)
        return [command for command, is_wanted in ((replicas, self.replicas), (file, self.aof)) if is_wanted]

    def short(self, answers: Sequence[Any]) -> str:
        """Say which response to :meth:`commands` fails to prove that the write is safe; return "" if there is none."""
        for command, answer in zip(self.commands(), answers, strict=True):
            copies = answer[0] if isinstance(answer, list) else answer
            if isinstance(answer, RedisError) or copies < command[1]:
                return (
                    f"{command[0]} returned {answer} within {self.timeout_ms} ms, so some of the required copies may not have "
                    "the write yet"
                )
        return ""


class RedisClient(StoreClient[Call]):
    """See :class:`StoreClient`. All changes within one hash slot are atomic. Only one thread may use a client."""

    system = "Redis"
    oldest = "Redis 6.2, Valkey 7.2"
    failures = FAILURES
    silences = SILENCES
    remedies = REMEDIES
    #: The maximum weight of the commands to send before a response is read. While Redis executes the commands from one
    #: read of a socket, it serves no other client.
    limits = (4_000,)
    backoff = wait_exponential(multiplier=0.01, max=0.5)
    is_transient = staticmethod(is_transient)

    def __init__(self, connect: Callable[[], redis.Redis | RedisCluster], *, timeout_ms: int, safety: Safety) -> None:
        super().__init__(timeout_s=timeout_ms / 1000)
        self._connect = connect
        self._redis: redis.Redis | RedisCluster | None = None
        self._safety = safety

    def server_info(self) -> list[Mapping[str, Any]]:
        """Read ``INFO`` from every primary. Raises one of ``FAILURES`` if a primary does not respond in time."""
        again = retrying(is_transient, timeout_s=self._timeout_s, backoff=self.backoff)
        return again(lambda: [node.info() for node in self._primaries()])

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
        waits = self._safety.commands() if any(calls[at].durable for at, _ in mine) else []
        pipeline: Any = server.pipeline(transaction=False)
        places = []
        for at, _ in mine:
            if _is_ask(answers[at]):
                pipeline.execute_command("ASKING")
            places.append(len(pipeline))
            pipeline.execute_command(*_words(calls[at], answers[at]))
        for wait in waits:
            pipeline.execute_command(*wait)
        found = pipeline.execute(raise_on_error=False)
        short = self._safety.short(found[-len(waits) :]) if waits else ""
        for (at, _), place in zip(mine, places, strict=True):
            answer = found[place]
            if _is_ask(answers[at]) and isinstance(answer, RedisError) and isinstance(found[place - 1], RedisError):
                answer = found[place - 1]  # without ASKING, the node only answers MOVED, which hides the cause
            answers[at] = _read(calls[at], answer)
            if short and calls[at].durable and not isinstance(answer, RedisError):
                answers[at] = NotReplicatedError(short)

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
    """Return whether the response is ASK, which names a node that only imports the slot.

    redis-py derives ``MovedError`` from ``AskError``, but MOVED names the node that owns the slot.
    """
    return isinstance(answer, AskError) and not isinstance(answer, MovedError)


def _read(call: Call, answer: Any) -> Any:
    """Return the response, or an error if the script has used the user's keys in a slot that moves; see :class:`SlotMovingError`.

    Such a script must not follow ASK. In its response, the third value is the reason why a command failed.
    """
    if call.script is None or not call.script.uses_data:
        return answer
    if _is_ask(answer):
        return SlotMovingError(call.slot, f"{answer.host}:{answer.port}")
    reason = str(answer).encode() if isinstance(answer, Exception) else b"".join(answer[2:3])
    return SlotMovingError(call.slot) if FOREIGN_KEY in reason else answer


def _words(call: Call, last: Any) -> tuple[bytes | str | int, ...]:
    if call.script is None:
        return call.words
    if isinstance(last, (NoScriptError, AskError)):  # the node that ASK names may not have the script
        return ("EVAL", call.script.text, call.keys, *call.words)
    return ("EVALSHA", call.script.sha, call.keys, *call.words)
