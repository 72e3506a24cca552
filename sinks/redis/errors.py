"""Decide which Redis errors to retry, and give advice for the others."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions
from redis.exceptions import RedisError

from twopc.errors import BadRecordError, ConfigurationError, RetriableError, UnavailableError
from twopc.sinks.staged.client import remedies

#: All errors that redis-py raises. With a cluster, some errors do not derive from RedisError.
FAILURES: Final = (RedisError, exceptions.RedisClusterException, OSError)
#: The errors that redis-py raises if a server cannot be reached, or responds too late.
SILENCES: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
#: The advice by error message, because an error inside a script has no class.
REMEDIES: Final = remedies(
    (
        r"No master found.*(WRONGPASS|NOAUTH|NOPERM|[Aa]uthentication|[Ii]nvalid (username|password))",
        ConfigurationError,
        "Check the user and password of the Sentinels in sentinel_options",
    ),
    (
        r"WRONGPASS|NOAUTH|[Ii]nvalid (username|password)|[Aa]uthentication",
        ConfigurationError,
        "Check the user and password in the url",
    ),
    (
        r"NOPERM|[Pp]ermission",
        ConfigurationError,
        (
            "Grant the Redis user the mapping's command and the TYPE command on the data keys. On the sink's own keys, "
            "'twopc:<sink name>:*', grant the commands that docs/redis.md lists"
        ),
    ),
    # redis-py mistakes these two responses for lost connections.
    ("BusyLoading", UnavailableError, "Wait until the server has loaded its data"),
    ("max number of clients", UnavailableError, "Raise maxclients"),
    (r"\bOOM\b|maxmemory", RetriableError, "Staged rows need memory in addition to the data: raise maxmemory"),
    (
        r"proto-max-bulk-len|invalid bulk length|exceeds maximum allowed size",
        BadRecordError,
        "A row exceeds Redis's size limit: raise proto-max-bulk-len, or make the row smaller",
    ),
    # redis-py reports the same message for every error after CLUSTER SLOTS.
    (
        "Cluster mode is not enabled",
        ConfigurationError,
        (
            "The server is not part of a cluster, or the user may not run CLUSTER SLOTS. In the first case, remove "
            "cluster=True. In the second case, grant the user the cluster commands listed in docs/redis.md"
        ),
    ),
)


class NotReplicatedError(RedisError):
    """The write is on fewer replicas or disks than the sink's settings require. A failover may lose the write."""


class SlotMovingError(RedisError):
    """A script that uses the user's keys must not run while these keys may be on either of two nodes.

    During the move, the new node would execute the script even if the user's keys are still on the old node. The script
    would then create a second copy of each key on the new node.
    """

    def __init__(self, slot: int, target: str = "another node") -> None:
        super().__init__(
            f"hash slot {slot} is moving to {target}. Until the move ends, the slot's keys may be on either node, so "
            "the sink does not write its rows for this slot yet. No row is lost. If the move has stopped, finish it "
            "(redis-cli --cluster fix)"
        )


#: After these errors, or errors of derived classes, a retry may succeed.
_TRANSIENT: Final = (
    NotReplicatedError,
    SlotMovingError,
    OSError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.AskError,
    exceptions.NoScriptError,
    exceptions.RedisClusterException,
)
#: A script gets this error for a key that has left the slot's node, or that does not exist there yet.
FOREIGN_KEY: Final = b"non local key"
#: The messages of transient errors that come from inside a script, or that have no class in redis-py.
_TRANSIENT_TEXT: Final = re.compile(r"BUSY|MISCONF|NOREPLICAS|UNBLOCKED|TRYAGAIN|CLUSTERDOWN|READONLY|LOADING")
#: redis-py reports a wrong password as a ConnectionError.
_FINAL: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)


def is_transient(answer: object) -> bool:
    """Return whether a response is an error that a retry may clear."""
    if not isinstance(answer, Exception) or isinstance(answer, _FINAL):
        return False
    return isinstance(answer, _TRANSIENT) or is_transient_text(str(answer))


def is_transient_text(text: str) -> bool:
    """Return whether the text is from an error that a retry may clear."""
    return _TRANSIENT_TEXT.search(text) is not None
