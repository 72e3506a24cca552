"""Redis' errors as this project's: what happened, where, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sinks.redis.calls import is_transient
from twopc.errors import BadRecordError, ConfigurationError, RetriableError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A pattern of the error's text, the class to raise, the remedy. By text, because inside a script an error has no class.
_REMEDIES: Final[Sequence[tuple[re.Pattern[str], type[TwoPhaseCommitError], str]]] = (
    (
        re.compile(r"WRONGPASS|NOAUTH|[Ii]nvalid (username|password)|[Aa]uthentication"),
        ConfigurationError,
        "Check the user and password in the url",
    ),
    (
        re.compile(r"NOPERM|[Pp]ermission"),
        ConfigurationError,
        "Allow the user the mapping's command and TYPE on its data, and what docs/redis.md lists on 'twopc:*'",
    ),
    (
        re.compile(r"\bOOM\b|maxmemory"),
        RetriableError,
        "Staged rows need memory beside the data: raise maxmemory",
    ),
    (
        re.compile(r"proto-max-bulk-len|invalid bulk length|exceeds maximum allowed size"),
        BadRecordError,
        "A row exceeds Redis' limit: raise proto-max-bulk-len, or make the row smaller",
    ),
    (
        re.compile(r"Cluster mode is not enabled"),
        ConfigurationError,
        "The server is not a cluster: leave cluster=True out",
    ),
)


def translate(error: object, what: str) -> TwoPhaseCommitError:
    """The error to raise for a failure before the decision.

    Args:
        error: what redis-py raised or answered.
        what: sink and step; the message begins with it.
    """
    text = f"{what}: {error}"
    for pattern, kind, remedy in _REMEDIES:
        if pattern.search(str(error)):
            return kind(f"{text}. {remedy}")
    if is_transient(error):
        return RetriableError(text)
    return ConfigurationError(f"{text}. Redis rejects the command: check that it is Redis 6.2, Valkey 7.2 or newer")
