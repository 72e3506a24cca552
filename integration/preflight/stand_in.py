"""A sink like the query's, whose names are the preflight's own: what is tried with it cannot touch the query."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twopc.sinks.kafka import KafkaSink

#: How long an open transaction of a preflight that was killed outlives it.
_TRANSACTION_TIMEOUT_MS: Final = 30_000


def stand_in_for(sink: KafkaSink) -> KafkaSink:
    """The same sink with a name ``<name>.preflight-<random>``, and one topic ``<ledger>.preflight-<random>`` for all.

    Ids and topic start as the sink's do, so the same prefixed ACLs hold. The dot, which no sink's name has, keeps them apart:
    no driver or task has such an id, no sweep takes it for a task's (``driver_epoch_of``), and no sink has such a ledger.
    """
    own = f"preflight-{uuid.uuid4().hex[:12]}"
    made = copy.copy(sink)
    differences: dict[str, Any] = {
        "name": f"{sink.name}.{own}",
        "ledger_topic": f"{sink.ledger}.{own}",
        "topic": f"{sink.ledger}.{own}",
        "guarantee": "EXACTLY_ONCE",  # a weaker one still decides in transactions, and it may be changed at any time
        "options": {
            **sink.options,
            "kafka.transaction.timeout.ms": min(sink.transaction_timeout_ms, _TRANSACTION_TIMEOUT_MS),
        },
    }
    for field, value in differences.items():
        object.__setattr__(made, field, value)  # the checks of a new sink refuse such a name, which is the point of it
    return made
