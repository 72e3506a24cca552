"""Choose the exit status of a driver whose query has ended. The status tells whether a restart is enough or somebody must act."""

from __future__ import annotations

import re
from typing import Final

from twopc import errors

#: A restart recovers (``EX_TEMPFAIL`` of ``sysexits.h``).
RESTART: Final = 75
#: Somebody must act: a restart fails again until something is changed (``EX_CONFIG``).
LOOK: Final = 78
#: The query was asked to stop, and has.
DONE: Final = 0
#: An error that is not ours, such as one in the user's code.
UNKNOWN: Final = 1

_NAME: Final = re.compile(r"twopc\.errors\.(\w+)")
#: Only the name, because the class is not in ``twopc.errors``, and this module does not import the commands.
_STOPPED: Final = "StoppedWithSavepointError"
_NEEDS_A_LOOK: Final = (
    errors.BadRecordError,
    errors.CheckpointExpiredError,
    errors.ConfigurationError,
    errors.DecisionLogDamagedError,
    errors.FencedError,
    errors.InDoubtError,
    errors.RefusedStartError,
    errors.SchemaError,
)


def exit_status(error: BaseException) -> int:
    """Return the exit status with which a driver should end.

    Args:
        error: the error that ``query.awaitTermination()`` raised, or any other error.

    Returns:
        0 if the query has stopped with a savepoint, because somebody asked it to; 75 if a restart recovers; 78 if a restart fails
        again until somebody follows the message; 1 if the error is not ours. Restart for 1, too, because a restart is the
        recovery from every failure.
    """
    kind = type(error)
    if _STOPPED in f"{kind.__name__} {error}":
        return DONE
    if not isinstance(error, errors.TwoPhaseCommitError):  # Spark's error has ours only as text
        found = _NAME.search(str(error))
        kind = getattr(errors, found[1], kind) if found is not None else kind
    if not issubclass(kind, errors.TwoPhaseCommitError):
        return UNKNOWN
    is_for_somebody = issubclass(kind, _NEEDS_A_LOOK) and not issubclass(kind, errors.DecisionInDoubtError)
    return LOOK if is_for_somebody else RESTART
