"""Choose a driver's exit status after its query has stopped. The status shows whether a restart is enough or you must act."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from twopc import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A restart recovers the query (``EX_TEMPFAIL`` in ``sysexits.h``).
RESTART: Final = 75
#: The user must act, because every restart fails until something is changed (``EX_CONFIG``).
LOOK: Final = 78
#: The query stopped on request.
DONE: Final = 0
#: An error that does not come from this toolkit, such as one in the user's code.
UNKNOWN: Final = 1

#: A word of a Python traceback that may be a class's full name.
_NAME: Final = re.compile(r"\w+(?:\.\w+)+")
#: Only the class's name, because this module does not import the commands.
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
        classes = {f"{one.__module__}.{one.__qualname__}": one for one in _classes(errors.TwoPhaseCommitError)}
        kind = next((classes[name] for name in _NAME.findall(str(error)) if name in classes), kind)
    if not issubclass(kind, errors.TwoPhaseCommitError):
        return UNKNOWN
    needs_user = issubclass(kind, _NEEDS_A_LOOK) and not issubclass(kind, errors.DecisionInDoubtError)
    return LOOK if needs_user else RESTART


def _classes(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    """List a class and all of its subclasses. A sink may define its own subclasses in a module that the driver has imported."""
    yield kind
    for one in kind.__subclasses__():
        yield from _classes(one)
