"""Make a copy of the query's sink, but with separate names, so that a trial cannot affect the query."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twopc.sinks.kafka import KafkaSink

#: How long a transaction can stay open after its preflight has been killed, in milliseconds.
_TRANSACTION_TIMEOUT_MS: Final = 30_000
_OWN: Final = "preflight-"


def topic_prefix(sink: KafkaSink) -> str:
    """Return the prefix that the topics of all of a sink's preflights share. No other sink's ledger begins with this prefix.

    An ACL for the prefix ``<ledger>`` would also cover the ledgers of other sinks, such as ``<ledger>-eu``.
    """
    return f"{sink.ledger}.{_OWN}"


def stand_in_for(sink: KafkaSink) -> KafkaSink:
    """Copy the sink under the name ``<name>.preflight-<random>``, with ``<ledger>.preflight-<random>`` as its only topic.

    The transactional ids begin with the sink's prefix, so the sink's prefixed ACL also applies to them. The stand-in's names
    cannot clash with another sink's names, because no sink name contains a dot. So no driver or task uses the stand-in's ids,
    no sweep mistakes them for a task's ids (``driver_epoch_of``), and no ledger has the topic's name.
    """
    own = f"{_OWN}{uuid.uuid4().hex[:12]}"
    made = copy.copy(sink)
    differences: dict[str, Any] = {
        "name": f"{sink.name}.{own}",
        "ledger_topic": f"{sink.ledger}.{own}",
        "topic": f"{sink.ledger}.{own}",
        # A sink with a weaker guarantee also decides in transactions, and the user may strengthen the guarantee later.
        "guarantee": "EXACTLY_ONCE",
        "options": {
            **sink.options,
            "kafka.transaction.timeout.ms": min(sink.transaction_timeout_ms, _TRANSACTION_TIMEOUT_MS),
        },
    }
    for field, value in differences.items():
        object.__setattr__(made, field, value)  # the constructor rejects this name on purpose
    return made
