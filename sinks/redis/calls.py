"""What may be asked of Redis again and again, and which of its answers are worth asking again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import exceptions
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError

if TYPE_CHECKING:
    from sinks.redis.scripts import Script

#: All that redis-py raises; some of a cluster's errors are no RedisError.
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
#: Answers that come as text: from inside a script, or of a kind for which redis-py has no class.
_TRANSIENT_TEXT: Final = re.compile(
    r"BUSY|MISCONF|NOREPLICAS|UNBLOCKED|non local key|TRYAGAIN|CLUSTERDOWN|READONLY|LOADING"
)


class NotReplicatedError(RedisError):
    """Fewer replicas or disks have the write than was asked for; it may still be lost."""


class Call(NamedTuple):
    """A command that may be repeated.

    Attributes:
        slot: of its keys; of no interest without a cluster.
        words: the command, or a script's arguments.
        script: what is run, with ``words`` = keys and arguments.
        keys: how many of the words are keys.
        weight: about how many single commands it is worth.
        durable: answered only when it is as safe as :class:`Safety` says.
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
        replicas: that have it in memory (WAIT).
        aof: whether the primary has it on disk (WAITAOF).
        timeout_ms: how long to wait for that.
    """

    replicas: int = 0
    aof: bool = False
    timeout_ms: int = 1_000

    def command(self) -> tuple[str | int, ...] | None:
        """What to ask; None where the primary's word is enough."""
        if self.aof:
            return ("WAITAOF", 1, self.replicas, self.timeout_ms)
        return ("WAIT", self.replicas, self.timeout_ms) if self.replicas else None

    def holds(self, answer: Any) -> bool:
        """Whether the answer says so."""
        if isinstance(answer, RedisError):
            return False
        if self.aof:
            return bool(answer[0] >= 1 and answer[1] >= self.replicas)
        return bool(answer >= self.replicas)


def is_transient(answer: object) -> bool:
    """Whether an answer is an error that may be another one in a moment."""
    # A wrong password is a ConnectionError of redis-py.
    if not isinstance(answer, Exception) or isinstance(
        answer, exceptions.AuthenticationError | exceptions.AuthorizationError
    ):
        return False
    return isinstance(answer, (*_TRANSIENT, NotReplicatedError, OSError)) or is_transient_text(str(answer))


def is_transient_text(text: str) -> bool:
    """The same for an error's text."""
    return _TRANSIENT_TEXT.search(text) is not None
