"""Check the batch number that a call passes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from twopc.integration.spark.mode import Query


def require_number(given: Any, query: Query) -> int:
    """Check that the given number is the number of the batch that Spark is processing, and return it.

    A wrong number could belong to a batch that has already been written. In that case, the current batch's rows would
    be skipped.

    Raises:
        ConfigurationError: ``given`` is a different number, or not a number.
    """
    actual = query.batch_id
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number != actual:
        raise ConfigurationError(
            f"the call passes batch {given!r} ({type(given).__name__}), but Spark is processing batch {actual}. This call "
            "wrote nothing. Pass the number that Spark gave your function, unchanged: "
            "def write(batch, batch_id): each(batch, batch_id)"
        )
    return actual
