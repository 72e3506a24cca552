"""Spark has finished batches that nothing decided: what ``status``, ``verify`` and ``savepoint create`` make of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.live.operate.support import command
from tests.unit.history_support import failed, write
from tests.unit.registers_support import BEGIN, claim, decision
from tests.unit.test_verify_history import history
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.operate import create_savepoint, restore_savepoint
from twopc.integration.operate import savepoint as savepoint_module
from twopc.integration.operate import status as status_module
from twopc.integration.operate.advice import advise
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.observe import SinkState
from twopc.integration.operate.subject import Connection
from twopc.integration.spark.checkpoint import numbers
from twopc.integration.spark.former_writers import Note
from twopc.integration.verify.checkpoint import check_checkpoint, finished_batches
from twopc.integration.verify.findings import Kind as FindingKind
from twopc.registers import RegisterLog
from twopc.sealed import seal, with_check
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twopc.integration.operate.checkpoint import CheckpointState
    from twopc.progress import Checkpoint
    from twopc.records import Record

_LAST = 20
_SINK = KafkaSink(name="s", bootstrap_servers="b:1", topic="out")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The checkpoint of query ``a``: Spark has finished batches 0 to 20."""
    root = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"a"}')
    for batch in range(_LAST + 1):
        finish(root, batch)
    return root


def finish(root: Path, batch: int) -> None:
    (root / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{batch}")
    (root / "commits" / str(batch)).write_text("v1\n{}")


def run_with(root: Path, *records: Record) -> None:
    """Do what a driver does that keeps its decisions in the checkpoint. It binds the checkpoint if it decides."""
    log = RegisterLog(LocalFiles(root / "twopc"))
    log.acquire(claim("r"))
    if records:
        bound = {"format": 1, "log": log.name, "log_identity": log.identity(), "sinks": {"s": {}}}
        (root / "twopc/binding-000001.json").write_bytes(with_check(json.dumps(bound).encode()))
        log.append(records)


def bound(root: Path, log: str = "twopc-ledger-s") -> None:
    """Bind the checkpoint to a ledger."""
    (root / "twopc").mkdir(exist_ok=True)
    facts = {"format": 1, "log": log, "log_identity": "id", "sinks": {"s": {}}}
    (root / "twopc/binding-000001.json").write_bytes(with_check(json.dumps(facts).encode()))


def saved(root: Path, ledger: str, *records: Record) -> int:
    """Take a savepoint with a Kafka sink whose decisions are in this ledger. Return the savepoint's batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(savepoint_module, "_ledger", lambda _: (ledger, history(*records).view, 0))
        return create_savepoint(root, root.parent / "kept", sinks=[_SINK]).manifest.batch_id


def decided(last: int, first: int = 0) -> Sequence[Record]:
    begin = msgspec.structs.replace(BEGIN, first_batch=first)
    return (begin, *(decision(batch) for batch in range(first, last + 1)))


def hand_over(root: Path, batch: int, kind: Kind = Kind.NOTHING, *, is_back: bool = False, of: str = "a") -> None:
    found = Handover(query_id=of, batch_id=batch, offsets=(), kind=kind, topics={}, is_back=is_back)
    (root / "twopc").mkdir(exist_ok=True)
    Handovers(LocalFiles(root / "twopc")).add(found)


def restored_at(root: Path, batch: int) -> None:
    """Leave the note that a restore leaves."""
    (root / "twopc").mkdir(exist_ok=True)
    note = Note(savepoint="s", former_query_id="old", batch_id=batch)
    (root / "twopc/restored.json").write_bytes(seal(note))


def shown(root: Path) -> tuple[int, list[str]]:
    """The exit status, and what an operator must act on."""
    found = command("status", str(root), "--json")
    acts = [one["runbook"].partition("#")[2] for one in found.facts["advice"] if one["urgency"] == "act"]
    return found.status, acts


def advised(root: Path) -> list[tuple[Urgency, str]]:
    """The advice about a Kafka sink whose ledger contains no decision."""
    return [
        (one.urgency, one.anchor) for one in advise(SinkState(sink="s", ledger="twopc-ledger-s"), read_checkpoint(root))
    ]


def verified(root: Path, *records: Record) -> list[tuple[FindingKind, str]]:
    files = LocalFiles(root)
    return [
        (one.kind, one.where)
        for one in check_checkpoint(files, finished_batches(files), history(*records), "twopc-ledger-s")
    ]


REFUSED = (1, ["the-start-is-refused"])
HEALTHY: tuple[int, list[str]] = (0, [])


def test_status_reports_that_no_finished_batch_was_decided(checkpoint: Path) -> None:
    assert shown(checkpoint) == REFUSED
    assert advised(checkpoint) == [(Urgency.ACT, "the-start-is-refused")]
    text = command("status", str(checkpoint)).out
    assert "Spark has finished batch 20, but no batch of this query has been decided" in text
    assert "If another sink wrote all of these batches, start the query with override=AdoptQuery('a')" in text


def test_status_says_that_the_other_sink_must_finish_the_batch_that_it_may_have_begun(checkpoint: Path) -> None:
    """AdoptQuery writes this batch completely, which would duplicate the rows of a half-written batch."""
    (checkpoint / "offsets" / str(_LAST + 1)).write_text("v1\n{}\n{}")
    text = " ".join(command("status", str(checkpoint)).out.split())
    assert (
        f"let that sink also finish batch {_LAST + 1} (" in text and "Then start the query with override=Adop" in text
    )


def test_a_driver_that_decided_nothing_changes_nothing(checkpoint: Path) -> None:
    """The driver acquired the decision log, and its first batch failed."""
    run_with(checkpoint)
    assert shown(checkpoint) == REFUSED


def test_verify_reports_that_no_finished_batch_was_decided(checkpoint: Path) -> None:
    assert verified(checkpoint) == [(FindingKind.COMMITTED_UNDECIDED, "batches 0-20")]
    begin = msgspec.structs.replace(BEGIN, first_batch=15)
    assert verified(checkpoint, begin) == [(FindingKind.COMMITTED_UNDECIDED, "batches 15-20")]


def test_the_ledger_of_another_query_says_nothing_about_the_batches_of_this_query(checkpoint: Path) -> None:
    begin = msgspec.structs.replace(BEGIN, query_id="other")
    assert verified(checkpoint, begin) == [(FindingKind.QUERY_DIFFERS, str(checkpoint))]


@pytest.mark.parametrize("trace", ["a register", "a history"])
def test_a_query_that_decided_nothing_gives_no_savepoint(checkpoint: Path, tmp_path: Path, trace: str) -> None:
    if trace == "a register":
        run_with(checkpoint)
    else:
        write(checkpoint, [failed(0, "RetriableError", "no broker responds")])
        (checkpoint / "metadata").write_text('{"id":"a"}')
    with pytest.raises(ConfigurationError, match=r"batches 0 to 20 are not in .*no batch has been decided.*AdoptQuery"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_query_that_never_used_the_toolkit_gives_a_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_batches_beyond_the_decisions_in_the_checkpoint_are_reported(checkpoint: Path, tmp_path: Path) -> None:
    run_with(checkpoint, *decided(10))
    assert shown(checkpoint) == REFUSED
    assert "but the last decided batch is 10" in command("status", str(checkpoint)).out
    with pytest.raises(ConfigurationError, match="batches 11 to 20 are not in registers"):
        create_savepoint(checkpoint, tmp_path / "kept")


@pytest.mark.parametrize("last", [_LAST, _LAST + 1])
def test_decided_batches_need_no_one(checkpoint: Path, tmp_path: Path, last: int) -> None:
    run_with(checkpoint, *decided(last))
    assert shown(checkpoint) == HEALTHY
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_the_batches_before_an_adopted_query_need_no_decision(checkpoint: Path, tmp_path: Path) -> None:
    """The driver has recorded the adoption, and is writing its first batch."""
    adopted = msgspec.structs.replace(BEGIN, first_batch=_LAST + 1)
    run_with(checkpoint, adopted)
    assert shown(checkpoint) == HEALTHY
    assert verified(checkpoint, adopted) == [(FindingKind.BINDING_DIFFERS, str(checkpoint))]
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


@pytest.mark.parametrize(
    "former",
    [
        lambda root: restored_at(root, _LAST),
        lambda root: hand_over(root, _LAST),
        lambda root: hand_over(root, _LAST + 1, Kind.REST),
        lambda root: hand_over(root, 3, is_back=True),  # the old sink has written on
    ],
    ids=["restored", "handed over", "handed over half-written", "handed back"],
)
def test_the_batches_of_a_former_writer_need_no_decision(checkpoint: Path, tmp_path: Path, former: object) -> None:
    assert callable(former)
    former(checkpoint)
    assert shown(checkpoint) == HEALTHY
    assert advised(checkpoint) == [(Urgency.NONE, "healthy")]
    assert verified(checkpoint) == []
    run_with(checkpoint)
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


@pytest.mark.parametrize(
    "former",
    [
        lambda root: restored_at(root, 15),
        lambda root: hand_over(root, 15),
        lambda root: hand_over(root, 16, Kind.REST),
    ],
    ids=["restored", "handed over", "handed over half-written"],
)
def test_the_batches_after_a_former_writer_need_a_decision(checkpoint: Path, tmp_path: Path, former: object) -> None:
    assert callable(former)
    former(checkpoint)
    assert shown(checkpoint) == REFUSED
    assert advised(checkpoint) == [(Urgency.ACT, "the-start-is-refused")]
    assert verified(checkpoint) == [(FindingKind.COMMITTED_UNDECIDED, "batches 16-20")]
    run_with(checkpoint)
    with pytest.raises(ConfigurationError, match="batches 16 to 20 are not in"):
        create_savepoint(checkpoint, tmp_path / "kept")


def test_a_hand_over_of_another_query_does_not_count(checkpoint: Path) -> None:
    hand_over(checkpoint, _LAST, of="other")
    assert shown(checkpoint) == REFUSED


def test_a_restored_savepoint_needs_no_decision_before_its_first_start(checkpoint: Path, tmp_path: Path) -> None:
    run_with(checkpoint, *decided(_LAST))
    restored = restore_savepoint(create_savepoint(checkpoint, tmp_path / "kept").path, tmp_path / "new")
    assert shown(restored.checkpoint) == HEALTHY


@pytest.mark.parametrize(("old", "new"), [(b'"batch_id":20', b'"batch_id":21'), (b"{", b"")])
def test_a_torn_or_altered_note_of_a_restore_is_reported(checkpoint: Path, old: bytes, new: bytes) -> None:
    restored_at(checkpoint, _LAST)
    note = checkpoint / "twopc/restored.json"
    note.write_bytes(note.read_bytes().replace(old, new))
    found = command("status", str(checkpoint))
    assert found.status == 2 and f"{checkpoint}/twopc/restored.json cannot be read" in found.error


def test_a_first_batch_that_is_finished_during_the_check_does_not_count_as_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look reads the binding just before the first batch binds the checkpoint, and then lists the first batch."""
    root = tmp_path / "checkpoint"
    (root / "offsets").mkdir(parents=True)
    (root / "commits").mkdir()
    (root / "metadata").write_text('{"id":"a"}')

    def read(path: Path) -> CheckpointState:
        return replace(read_checkpoint(path), planned=0, finished=0)

    monkeypatch.setattr(status_module, "read_checkpoint", read)
    [one] = status_module.look(f"{root}/", Connection(None)).own
    assert one.urgency is not Urgency.ACT


def test_a_first_batch_that_is_finished_during_a_savepoint_counts_as_decided(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide_and_list(files: LocalFiles, name: str) -> set[int]:
        run_with(checkpoint, *decided(_LAST))
        return numbers(files, name)

    monkeypatch.setattr(savepoint_module, "numbers", decide_and_list)
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


# -- logs that say nothing about the query's batches -------------------------------------------------------------------


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_query_that_another_query_has_ended_still_gives_a_savepoint(checkpoint: Path, *, is_bound: bool) -> None:
    """The old checkpoint is the way back to the query's position. The ledger now belongs to the query that replaced it."""
    if is_bound:
        bound(checkpoint)
    replacement = msgspec.structs.replace(BEGIN, query_id="b", ends="a")
    assert saved(checkpoint, "twopc-ledger-s", *decided(_LAST), replacement) == _LAST


def test_a_sink_that_has_not_joined_the_query_yet_says_nothing_about_its_batches(checkpoint: Path) -> None:
    bound(checkpoint, "twopc-ledger-other")
    assert advised(checkpoint) == [(Urgency.NONE, "healthy")]
    assert verified(checkpoint) == [(FindingKind.BINDING_DIFFERS, str(checkpoint))]
    assert saved(checkpoint, "twopc-ledger-s") == _LAST


def test_a_sink_that_has_not_joined_the_decisions_in_the_checkpoint_says_nothing(checkpoint: Path) -> None:
    run_with(checkpoint, *decided(_LAST))
    assert advised(checkpoint) == [(Urgency.NONE, "healthy")]
    assert saved(checkpoint, "twopc-ledger-s") == _LAST


def test_the_ledger_of_the_checkpoint_contains_no_decision(checkpoint: Path) -> None:
    """The checkpoint is bound before the first decision, so this ledger has lost the decisions, or none was made."""
    bound(checkpoint)
    assert advised(checkpoint) == [(Urgency.ACT, "the-start-is-refused")]
    assert verified(checkpoint) == [(FindingKind.COMMITTED_UNDECIDED, "batches 0-20")]
    with pytest.raises(ConfigurationError, match="batches 0 to 20 are not in twopc-ledger-s"):
        saved(checkpoint, "twopc-ledger-s")


# -- the old sink has written on after a rollback, and the query was cut over again ------------------------------------


def cut_over_again(root: Path, batch: int) -> None:
    """The query decided batches 0 to 10. After a rollback, the old sink wrote the batches up to ``batch``."""
    run_with(root, *decided(10))
    hand_over(root, 10, is_back=True)
    hand_over(root, batch)


def test_the_batches_between_a_rollback_and_the_next_cut_over_need_no_decision(
    checkpoint: Path, tmp_path: Path
) -> None:
    cut_over_again(checkpoint, _LAST)
    assert shown(checkpoint) == HEALTHY
    assert verified(checkpoint, *decided(10)) == [(FindingKind.BINDING_DIFFERS, str(checkpoint))]
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_the_batches_after_a_rollback_need_no_decision(checkpoint: Path, tmp_path: Path) -> None:
    run_with(checkpoint, *decided(10))
    hand_over(checkpoint, 10, is_back=True)
    assert shown(checkpoint) == HEALTHY
    assert verified(checkpoint, *decided(10)) == [(FindingKind.BINDING_DIFFERS, str(checkpoint))]
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_the_batches_after_the_second_cut_over_need_a_decision(checkpoint: Path, tmp_path: Path) -> None:
    cut_over_again(checkpoint, 15)
    assert shown(checkpoint) == REFUSED
    found = verified(checkpoint, *decided(10))
    assert found[-1] == (FindingKind.COMMITTED_UNDECIDED, "batches 16-20")
    with pytest.raises(ConfigurationError, match="batches 16 to 20 are not in registers"):
        create_savepoint(checkpoint, tmp_path / "kept")


# -- a refused start ---------------------------------------------------------------------------------------------------


def record(root: Path, *attempts: Checkpoint | bytes) -> None:
    write(root, attempts)
    (root / "metadata").write_text('{"id":"a"}')


def refused(batch: int, run: str) -> Checkpoint:
    return failed(batch, "RefusedStartError", "not adopted", run_id=run)


def test_a_refused_start_does_not_prevent_a_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    """The starts lacked AdoptQuery. The old sink writes on, and the user wants a savepoint before the next start."""
    record(checkpoint, refused(_LAST, "r"), refused(_LAST, "s"))
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_a_query_that_ignores_its_refused_start_gives_no_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    """The refusal did not stop the run, so its function has caught the error."""
    record(checkpoint, refused(_LAST - 1, "r"), refused(_LAST, "r"))
    with pytest.raises(ConfigurationError, match="no batch has been decided"):
        create_savepoint(checkpoint, tmp_path / "kept")


def test_a_failed_first_batch_that_spark_has_not_finished_does_not_prevent_a_savepoint(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The output topic is missing, for example. The error has stopped the query, so nothing is skipped."""
    record(checkpoint, failed(_LAST + 1, "ConfigurationError", "no topic", run_id="r"), refused(_LAST + 1, "s"))
    assert create_savepoint(checkpoint, tmp_path / "kept").manifest.batch_id == _LAST


def test_a_history_that_cannot_be_read_gives_no_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    record(checkpoint, b"torn")
    with pytest.raises(ConfigurationError, match="no batch has been decided"):
        create_savepoint(checkpoint, tmp_path / "kept")
