"""Choose a driver's exit status after its query has stopped. The status shows whether a restart is enough or you must act."""

from __future__ import annotations

import re
from typing import Final

from twopc import errors

#: A restart recovers the query (``EX_TEMPFAIL`` in ``sysexits.h``).
RESTART: Final = 75
#: The user must act, because every restart fails until something is changed (``EX_CONFIG``).
LOOK: Final = 78
#: The query stopped on request.
DONE: Final = 0
#: An error that does not come from this toolkit, such as one in the user's code.
UNKNOWN: Final = 1

_NAME: Final = re.compile(r"twopc\.errors\.(\w+)")
#: This is only the class's name, because ``twopc.errors`` does not contain the class, and this module does not import the
#: commands.
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
    """Return a driver's exit status.

    Args:
        error: the error that ``query.awaitTermination()`` raised, or any other error.

    Returns:
        0 if the query stopped with a savepoint on request; 75 if a restart is enough; 78 if every restart fails until
        you follow the message; 1 if the error is not from this toolkit. Restart after status 1, too, because recovery
        always begins with a restart.
    """
    kind = type(error)
    if _STOPPED in f"{kind.__name__} {error}":
        return DONE
    if not isinstance(error, errors.TwoPhaseCommitError):  # Spark's error contains the toolkit's error only as text
        found = _NAME.search(str(error))
        kind = getattr(errors, found[1], kind) if found is not None else kind
    if not issubclass(kind, errors.TwoPhaseCommitError):
        return UNKNOWN
    needs_user = issubclass(kind, _NEEDS_A_LOOK) and not issubclass(kind, errors.DecisionInDoubtError)
    return LOOK if needs_user else RESTART
