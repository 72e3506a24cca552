"""What ``twopc resolve`` concludes from a checkpoint that does not match the sink. These tests need no server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.unit.operate_support import one
from tests.unit.test_log_view import BEGIN, decision
from tests.unit.test_verify_checks import SINK, task
from tests.unit.test_verify_history import history
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError
from twopc.integration.operate import resolve as resolve_module
from twopc.integration.operate.checkpoint import CheckpointState
from twopc.integration.operate.observe import Proof, SinkState
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.subject import Connection, Subject

if TYPE_CHECKING:
    from twopc.integration.operate.printing import Answer

_BEGIN = msgspec.structs.replace(BEGIN, first_batch=12)
_LOST = (
    Proof(batch=12, task=0, transaction="t", rows=5, evidence=Evidence.ABORTED, text="because"),
    Proof(batch=12, task=1, transaction="u", rows=5, evidence=Evidence.COMMITTED, text="because"),
)
_STATE = SinkState(
    sink="s",
    ledger="twopc-ledger-s",
    query_id="a",
    last_decided=12,
    proofs=_LOST,
    history=history(_BEGIN, decision(12, task("t"))),
)
_CHECKPOINT = CheckpointState(location="c", query_id="a", planned=12, finished=11, log="l", sinks={})
_OPEN = one(Standing.DECIDED, batch=12)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Resolve a sink. The command reads the checkpoint before it observes the sink, and again afterward."""

    def resolve(state: SinkState, before: CheckpointState, after: CheckpointState | None = None) -> Answer:
        monkeypatch.setattr(resolve_module, "subject_of", lambda *_, **__: Subject((SINK,), before))
        monkeypatch.setattr(resolve_module, "observe", lambda *_: state)
        monkeypatch.setattr(resolve_module, "read_checkpoint", lambda _: after or before)
        return resolve_module.resolve("s", Connection(None), checkpoint=Path("c"), is_sure=False, may_ask=False)

    return resolve


def test_a_matching_checkpoint_says_whether_spark_will_replay_the_batch(resolved: Any) -> None:
    [replayed] = resolved(_STATE, _CHECKPOINT).facts
    assert (replayed["case"], replayed["step"]) == ("some lost", "repair")
    [left] = resolved(_STATE, replace(_CHECKPOINT, finished=12)).facts
    assert left["case"] == "lost and left behind" and "override=Abandon(12, 'a')" in left["next"]


def test_the_checkpoint_of_another_query_is_rejected_and_never_leads_to_an_override(resolved: Any) -> None:
    """The checkpoint's query was replaced. Its batch numbers say nothing about the batches of its successor."""
    former = replace(_CHECKPOINT, query_id="former", planned=5000, finished=5000)
    with pytest.raises(ConfigurationError, match=r"belongs to query former, but .* belongs to query a") as caught:
        resolved(_STATE, former)
    assert "Pass the checkpoint of query a" in str(caught.value)
    assert "override" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"planned": 7, "finished": 7}, "the checkpoint is an older copy"),
        ({"planned": 20, "finished": 20}, "the query ran without the sink"),
    ],
)
def test_a_refused_start_is_predicted(resolved: Any, changed: dict[str, Any], what: str) -> None:
    answer = resolved(_STATE, replace(_CHECKPOINT, **changed))
    [found] = answer.facts
    assert (answer.status, found["step"]) == (1, "refuse")
    assert what in found["next"] and "Abandon" not in found["next"]
    assert "transactions commit" not in found["next"]
    assert found["runbook"].endswith("#the-start-is-refused")


def test_open_transactions_are_committed_before_a_start_that_is_refused(resolved: Any) -> None:
    [found] = resolved(replace(_STATE, transactions=(_OPEN,)), replace(_CHECKPOINT, planned=7, finished=7)).facts
    assert "First, run `twopc transactions commit s`" in found["next"]


def test_a_batch_that_the_query_decides_during_the_look_does_not_make_the_checkpoint_an_older_copy(
    resolved: Any,
) -> None:
    before = replace(_CHECKPOINT, planned=11, finished=11)
    [found] = resolved(_STATE, before, replace(before, planned=12)).facts
    assert found["case"] == "some lost"


def test_a_batch_that_the_query_repairs_and_finishes_during_the_look_is_not_left_behind(resolved: Any) -> None:
    [found] = resolved(_STATE, _CHECKPOINT, replace(_CHECKPOINT, planned=13, finished=12)).facts
    assert found["case"] == "some lost"


@pytest.mark.parametrize(("first", "written"), [(13, "batches 13 to 20"), (20, "batch 20")])
def test_the_batches_that_the_old_sink_wrote_after_a_rollback_are_passed_with_an_override(
    resolved: Any, first: int, written: str
) -> None:
    proofs = tuple(replace(one, batch=first - 1, evidence=Evidence.COMMITTED) for one in _LOST)
    begin = msgspec.structs.replace(_BEGIN, first_batch=first - 1)
    state = replace(
        _STATE, last_decided=first - 1, proofs=proofs, history=history(begin, decision(first - 1, task("t")))
    )
    cut_over = replace(_CHECKPOINT, planned=20, finished=20, former=20)
    [found] = resolved(state, cut_over).facts
    assert found["step"] != "refuse"
    assert f"Another sink has written {written} since then" in found["next"]
    assert "override=ResumeAt(21, 'a')" in found["next"]


@pytest.mark.parametrize("finished", [12, 20])
def test_a_query_that_was_rolled_back_is_cut_over_again_before_its_next_start(resolved: Any, finished: int) -> None:
    rolled_back = replace(_CHECKPOINT, planned=finished, finished=finished, former=None)
    [found] = resolved(_STATE, rolled_back).facts
    assert found["step"] != "refuse"
    assert "`twopc migrate cutover --apply`" in found["next"]
