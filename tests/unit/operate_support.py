"""A sink's state and its open transactions, as the commands observe them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twopc.integration.operate.observe import SinkState
from twopc.integration.operate.opened import OpenTransaction, Standing

STATE = SinkState(sink="s", ledger="twopc-ledger-s", query_id="q", driver="host:1", driver_epoch=2, last_decided=4)


def one(standing: Standing, **changes: Any) -> OpenTransaction:
    found = OpenTransaction(
        transactional_id="s.2.w.0",
        producer_id=7,
        producer_epoch=0,
        state="Ongoing",
        standing=standing,
        age_s=10.0,
        expires_in_s=50.0,
        batch=4 if standing is Standing.DECIDED else None,
    )
    return replace(found, **changes)
