"""Calls to Redis that may be repeated, and which of their answers call for a retry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import exceptions
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError

if TYPE_CHECKING:
    from sinks.redis.scripts import Script

#: All that redis-py raises; some of a cluster's errors are not a RedisError.
FAILURES: Final = (RedisError, exceptions.RedisClusterException, OSError)
_TRANSIENT: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.ReadOnlyError,
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.NoScriptError,
    exceptions.SlotNotCoveredError,
    exceptions.RedisClusterException,
    MasterNotFoundError,
)
#: Errors that are known by their text: from inside a script, or without a class in redis-py.
_TRANSIENT_TEXT: Final = re.compile(
    r"BUSY|MISCONF|NOREPLICAS|UNBLOCKED|non local key|TRYAGAIN|CLUSTERDOWN|READONLY|LOADING"
)


class NotReplicatedError(RedisError):
    """Fewer replicas or disks have the write than the sink's settings ask for; a failover may lose it."""


class Call(NamedTuple):
    """A command that may be repeated.

    Attributes:
        slot: the hash slot of its keys; ignored without a cluster.
        words: the command, or the keys and arguments of ``script``.
        script: the script to run.
        keys: how many of the words are keys.
        weight: about how many single commands it is worth.
        durable: whether it counts as answered only when it is as safe as :class:`Safety` says.
    """

    slot: int
    words: tuple[bytes | str | int, ...]
    script: Script | None = None
    keys: int = 0
    weight: int = 1
    durable: bool = False


@dataclass(frozen=True)
class Safety:
    """Who must have a write before it counts.

    Attributes:
        replicas: how many must have it in memory (WAIT).
        aof: whether the primary must have it on disk (WAITAOF).
        timeout_ms: how long to wait for both.
    """

    replicas: int = 0
    aof: bool = False
    timeout_ms: int = 1_000

    def command(self) -> tuple[str | int, ...] | None:
        """The command that waits; None: the primary's answer is enough."""
        if self.aof:
            return ("WAITAOF", 1, self.replicas, self.timeout_ms)
        return ("WAIT", self.replicas, self.timeout_ms) if self.replicas else None

    def holds(self, answer: Any) -> bool:
        """Whether the answer to :meth:`command` says that the write is safe."""
        if isinstance(answer, RedisError):
            return False
        if self.aof:
            return bool(answer[0] >= 1 and answer[1] >= self.replicas)
        return bool(answer >= self.replicas)


def is_transient(answer: object) -> bool:
    """Whether an answer is an error that a retry may clear."""
    # redis-py reports a wrong password as a ConnectionError.
    if not isinstance(answer, Exception) or isinstance(
        answer, exceptions.AuthenticationError | exceptions.AuthorizationError
    ):
        return False
    return isinstance(answer, (*_TRANSIENT, NotReplicatedError, OSError)) or is_transient_text(str(answer))


def is_transient_text(text: str) -> bool:
    """Whether the text is that of an error that a retry may clear."""
    return _TRANSIENT_TEXT.search(text) is not None
