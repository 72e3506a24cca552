"""Report that a batch's state may not match the written rows, or that a part of the state may be missing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Reports a message at most once per run.
    Tell = Callable[[str], None]

logger = logging.getLogger(__name__)

#: Since Spark 4.0, this setting chooses how Spark names the state's files.
STATE_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
#: The last format in which a batch that is evaluated several times has the state of its last evaluation.
LAST_FORMAT: Final = 1

_RISK: Final = (
    "No row is lost or duplicated. But if the state depends on values that change, such as uuid(), the clock or the order of "
    "rows, the state may not match the written rows."
)
_ONLY_ONCE: Final = "This run logs this warning only once"


def tell_once() -> Tell:
    """Return a function that logs only the first text that it receives."""
    told: list[str] = []

    def tell(text: str) -> None:
        if not told:
            logger.warning(text)
            told.append(text)

    return tell


class StateWarnings:
    """Warns about evaluations after which the state may not match the written rows. A run logs each warning at most once."""

    def __init__(self) -> None:
        self._for_state, self._by_several, self._later = tell_once(), tell_once(), tell_once()

    def evaluated_for_state(self, batch_id: int) -> None:
        """Report that the driver evaluates a batch again to write its state."""
        self._for_state(
            f"the sinks' rows do not show that Spark has evaluated all of batch {batch_id}. Either the rows are "
            "only a part of the batch, or the batch had already been evaluated. Therefore, Spark evaluates the batch a "
            f"second time, without output, to write the query's state. {_RISK} To avoid this, either pass the batch "
            "itself to exactly_once(), or persist and count the batch before you take a part of it. "
            f"{_ONLY_ONCE}"
        )

    def evaluated_by_several(self, batch_id: int) -> None:
        """Report that the jobs over a call's DataFrames have evaluated the batch more than once."""
        self._by_several(
            f"Spark evaluated at least a part of batch {batch_id} more than once, while it computed the sinks' rows. Either "
            "several of the DataFrames that your function passes read the batch, or another thread of your function evaluated "
            f"the batch. So Spark wrote the query's state again, after it had computed some of the rows. {_RISK} To avoid "
            f"this, persist the batch before you call exactly_once(). {_ONLY_ONCE}"
        )

    def evaluated_later(self, batch_id: int) -> None:
        """Report that a batch was evaluated again after the driver had checked its state."""
        self._later(
            f"Spark evaluated at least a part of batch {batch_id} again after exactly_once() had checked the batch's state, for "
            f"example in your function's code after the call. So Spark wrote the query's state again. {_RISK} To avoid "
            "this, persist the batch before you call exactly_once(), and unpersist it at the end of your function. "
            f"{_ONLY_ONCE}"
        )


def incomplete(batch_id: int, missing: str, cause: str, *, is_visible: bool) -> ConfigurationError:
    """Return the error for a batch that Spark has evaluated without writing all of its state."""
    return ConfigurationError(
        f"Spark has evaluated all rows of batch {batch_id}, but {missing}, so the next batch cannot start. "
        f"{_row_risk(is_visible=is_visible)}{cause}, for example because of a join with an empty table. Move that part of "
        "the plan into the foreachBatch function, and restart"
    )


def unclear(batch_id: int, names: str, *, is_visible: bool) -> ConfigurationError:
    """Return the error for a batch whose state several jobs have written, each of them only in part."""
    return ConfigurationError(
        f"the toolkit cannot tell whether {names} has written all of its state for batch {batch_id}. If a part is missing, the "
        f"next batch cannot start. {_row_risk(is_visible=is_visible)}An earlier job of the toolkit or of your function ran "
        "only some of the operator's tasks, for example because the job failed or was canceled. The log shows the "
        "cause. Fix the cause, and restart. The restart evaluates the batch again, and writes all of the state"
    )


def _row_risk(*, is_visible: bool) -> str:
    # If the batch is visible, the coordinator adds this to the error.
    return "" if is_visible else "No part of this attempt is decided or visible. "


def unfit_format(batch_id: int, state_format: int) -> ConfigurationError:
    """Return the error for a state format that does not fit a batch that is evaluated twice."""
    return ConfigurationError(
        f"batch {batch_id} belongs to a query that keeps state, and {STATE_FORMAT} is {state_format}. If a batch is evaluated "
        "twice in this format, Spark keeps the state of the first evaluation, but the rows come from the last one. Then the "
        f"state may not match the rows. This run has not written any part of the batch. Set {STATE_FORMAT} to 1, and restart the "
        "query. If Spark cannot read the checkpoint's state with this setting, write a new output from the beginning, with a "
        "new checkpoint and a new sink name. The old output cannot continue without the state"
    )
