"""Describe a check's findings. Each finding is a line in the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from twopc.sinks.kafka.errors import error_of

if TYPE_CHECKING:
    from twopc.errors import TwoPhaseCommitError


class Result(Enum):
    """The possible results of a check, from best to worst for the query."""

    PASS = "pass"  # noqa: S105 - not a password #: the check succeeded
    WARN = "warn"  #: the query runs, but its guarantee is weaker, or a check was skipped
    FAIL = "fail"  #: the query cannot run, or could lose or duplicate rows


@dataclass(frozen=True)
class Finding:
    """One line of the table. The line shows the check and its subject, the result, the reason, and the fix."""

    check: str  #: the name of the check
    subject: str  #: what was checked: a topic, transactional ids, brokers
    result: Result
    why: str  #: the reason, in one or two sentences
    fix: str = ""  #: what to do; empty if nothing has to be done


_TRY_AGAIN: Final = "Run the preflight again. If the preflight fails again, look for the cause in the brokers' logs"
_AS_IT_SAYS: Final = "Follow the sink's error message"
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def failed(check: str, subject: str, error: TwoPhaseCommitError, rights: str) -> Finding:
    """Build the finding for a check that raised an error. ``rights`` says what to allow if a permission is missing."""
    fix = _TRY_AGAIN if error.retriable else rights if is_denied(error) else _AS_IT_SAYS
    return Finding(check, subject, Result.FAIL, str(error), fix)


def is_denied(error: TwoPhaseCommitError) -> bool:
    """Whether a broker rejected a request because a permission is missing."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and error_of(cause).code() in _DENIED
