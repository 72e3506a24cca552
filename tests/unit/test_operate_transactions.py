"""The exit status of ``twopc transactions``: 0 promises that nothing is left to do. These tests need no server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.operate_support import one
from twopc.attempt import Evidence
from twopc.integration.operate import transactions
from twopc.integration.operate.observe import Proof, SinkState
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.subject import Connection
from twopc.integration.operate.transactions import ByHand, abort, commit, list_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.operate.printing import Answer

CONNECTION = Connection("localhost:1")
OPEN = one(Standing.UNJUDGED)


def proof(evidence: Evidence) -> Proof:
    return Proof(batch=4, task=0, transaction="s.2.w.0 (u)", rows=5, evidence=evidence, text="because")


def committing() -> Answer:
    return commit("s", (), CONNECTION, ByHand())


def aborting() -> Answer:
    return abort("s", (), CONNECTION, ByHand())


def listing() -> Answer:
    return list_open("s", CONNECTION)


@pytest.mark.parametrize(
    ("act", "found", "status"),
    [
        (committing, {"proofs": (proof(Evidence.COMMITTED),)}, 0),
        (committing, {"proofs": (proof(Evidence.ABORTED),)}, 1),
        (committing, {"proofs": (proof(Evidence.UNKNOWN),)}, 1),
        (committing, {"is_complete": False}, 1),
        (aborting, {}, 0),
        (aborting, {"proofs": (proof(Evidence.ABORTED),)}, 0),  # an abort would not change that
        (aborting, {"is_complete": False}, 1),
        (aborting, {"problem": "the topic does not exist", "transactions": (OPEN,)}, 1),
        (listing, {}, 0),
        (listing, {"is_complete": False}, 1),
        (listing, {"problem": "the topic does not exist"}, 1),
        (listing, {"problem": "they are on another cluster", "is_elsewhere": True}, 0),
    ],
)
def test_a_command_that_finds_no_transaction_to_end_succeeds_only_if_none_is_left_open(
    act: Callable[[], Answer], found: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SinkState(sink="s", ledger="twopc-ledger-s", last_decided=4, **found)
    monkeypatch.setattr(transactions, "observe", lambda *_: state)
    assert act().status == status
