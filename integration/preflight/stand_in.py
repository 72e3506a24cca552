"""Make a sink like the query's, but with the preflight's own names, so that a trial cannot affect the query."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twopc.sinks.kafka import KafkaSink

#: How long a transaction can stay open after its preflight was killed.
_TRANSACTION_TIMEOUT_MS: Final = 30_000


def stand_in_for(sink: KafkaSink) -> KafkaSink:
    """Make the same sink with the name ``<name>.preflight-<random>``, and one topic ``<ledger>.preflight-<random>``.

    The ids and the topic have the same prefixes as the sink's, so the same prefixed ACLs apply. The dot, which no sink's name
    has, keeps them apart: no driver or task has such an id, no sweep takes it for the id of a task (``driver_epoch_of``),
    and no ledger has such a name.
    """
    own = f"preflight-{uuid.uuid4().hex[:12]}"
    made = copy.copy(sink)
    differences: dict[str, Any] = {
        "name": f"{sink.name}.{own}",
        "ledger_topic": f"{sink.ledger}.{own}",
        "topic": f"{sink.ledger}.{own}",
        "guarantee": "EXACTLY_ONCE",  # a weaker guarantee still decides in transactions, and the user may raise it any time
        "options": {
            **sink.options,
            "kafka.transaction.timeout.ms": min(sink.transaction_timeout_ms, _TRANSACTION_TIMEOUT_MS),
        },
    }
    for field, value in differences.items():
        object.__setattr__(made, field, value)  # the constructor refuses such a name on purpose
    return made
