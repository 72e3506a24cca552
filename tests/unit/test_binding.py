"""The binding records which log and which sinks a checkpoint belongs to."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import Uuid

from twopc.attempt import Claim
from twopc.binding import Binding
from twopc.bound import FORMAT, Bound
from twopc.decision_log import ABSENT, NO_ID
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.integration.verify.checkpoint import facts_of
from twopc.integration.verify.deciding import NOTHING_KNOWN, DecisionsElsewhereError, Where, log_in_checkpoint
from twopc.override import Overrides
from twopc.records import Acquired
from twopc.registers import RegisterLog
from twopc.sealed import seal
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

BOUND = Bound(format=FORMAT, log="ledger", log_identity="id-1", sinks={"k": {"cluster": "c1"}})
WITH_REDIS = msgspec.structs.replace(BOUND, sinks={**BOUND.sinks, "r": {"server": "s1"}})
WITH_BOTH = msgspec.structs.replace(WITH_REDIS, sinks={**WITH_REDIS.sinks, "a": {}})


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "twopc")


@pytest.fixture
def bound(files: LocalFiles) -> LocalFiles:
    Binding(files).bind(BOUND, 0)
    return files


def test_an_unbound_checkpoint_accepts_any_binding_and_checking_writes_nothing(files: LocalFiles) -> None:
    binding = Binding(files)
    binding.check(BOUND, Overrides())
    assert binding.log is None
    assert files.names("") == []


def test_the_next_run_finds_the_binding(bound: LocalFiles) -> None:
    binding = Binding(bound)
    binding.check(BOUND, Overrides())
    assert binding.log == "ledger"


def test_binding_the_same_sinks_again_writes_no_file(bound: LocalFiles) -> None:
    Binding(bound).bind(BOUND, 0)
    assert bound.names("") == ["binding-000001.json"]


@pytest.mark.parametrize(
    ("changed", "way_out"),
    [
        (msgspec.structs.replace(BOUND, sinks={}), r"Pass each missing sink \(k\) again"),
        (msgspec.structs.replace(BOUND, sinks={"renamed": {"cluster": "c1"}}), r"Pass each missing sink \(k\) again"),
        (msgspec.structs.replace(BOUND, sinks={"k": {"cluster": "c2"}}), "Point the sink back"),
        (msgspec.structs.replace(BOUND, log="other"), "a new checkpoint and a new sink name"),
        (msgspec.structs.replace(BOUND, log_identity="id-2"), "a new checkpoint and a new sink name"),
        (WITH_REDIS, r"override=AddSink\('r'\)"),
    ],
    ids=["dropped", "renamed", "moved", "other log", "log recreated", "added"],
)
def test_a_changed_binding_is_refused_and_the_error_offers_a_way_out(
    changed: Bound, way_out: str, bound: LocalFiles
) -> None:
    with pytest.raises(RefusedStartError, match=way_out) as refused:
        Binding(bound).check(changed, Overrides())
    assert refused.value.case == "binding"
    assert bound.location in str(refused.value)


def test_a_bound_fact_that_the_sink_no_longer_reports_is_not_compared(files: LocalFiles) -> None:
    """PostgreSQL's server has a new identity after pg_upgrade, although its data is the same."""
    older = msgspec.structs.replace(BOUND, sinks={"k": {"cluster": "c1", "server": "before the upgrade"}})
    Binding(files).bind(older, 0)
    binding = Binding(files)
    binding.check(BOUND, Overrides())
    binding.bind(BOUND, 0)
    assert Binding(files).sinks == {"k": {"cluster": "c1"}}


def test_a_fact_that_a_new_version_of_a_sink_adds_is_not_compared_until_it_is_bound(bound: LocalFiles) -> None:
    """The checkpoint cannot say whether the fact has changed. If it counted as changed, no upgrade could start."""
    newer, moved = (msgspec.structs.replace(BOUND, sinks={"k": {"cluster": "c1", "rack": rack}}) for rack in "12")
    binding = Binding(bound)
    binding.check(newer, Overrides())
    binding.bind(newer, 1)
    assert Binding(bound).sinks == newer.sinks
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        Binding(bound).check(moved, Overrides())


def test_a_sink_of_another_kind_under_a_bound_name_is_refused(bound: LocalFiles) -> None:
    """It has no fact in common with the bound sink, so no fact differs."""
    other_kind = msgspec.structs.replace(BOUND, sinks={"k": {"table": "t1"}})
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        Binding(bound).check(other_kind, Overrides())


def test_topic_ids_that_appear_with_a_broker_upgrade_do_not_count_as_a_change_and_are_bound_once_known(
    files: LocalFiles,
) -> None:
    """A broker without topic ids answers with the zero UUID. A recreated ledger is still detected if its id was ever known."""
    without, known, recreated = (ledger_with(one) for one in (NO_ID, "id-1", "id-2"))
    for number, current in enumerate([without, known, without]):
        binding = Binding(files)
        binding.check(current, Overrides())
        binding.bind(current, number)
    assert (Binding(files).log_identity, Binding(files).sinks["k"]["ledger_id"]) == ("id-1", "id-1")
    assert files.names("") == ["binding-000001.json", "binding-000002.json"]
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        Binding(files).check(recreated, Overrides())


def test_a_ledger_without_an_id_is_refused_if_it_no_longer_exists(files: LocalFiles) -> None:
    Binding(files).bind(ledger_with(NO_ID), 0)
    for current in (ledger_with(ABSENT), msgspec.structs.replace(ledger_with(NO_ID), log_identity=ABSENT)):
        with pytest.raises(RefusedStartError):
            Binding(files).check(current, Overrides())


def test_the_placeholder_id_of_a_topic_without_an_id_is_the_protocols_zero_id() -> None:
    assert str(Uuid(0, 0)) == NO_ID


def ledger_with(topic_id: str) -> Bound:
    sinks = {"k": {"cluster": "c1", "ledger": "ledger", "ledger_id": topic_id}}
    return Bound(format=FORMAT, log="ledger", log_identity=topic_id, sinks=sinks)


def test_add_sink_binds_one_more_sink(bound: LocalFiles) -> None:
    binding = Binding(bound)
    binding.check(WITH_REDIS, Overrides(added_sinks={"r"}))
    binding.bind(WITH_REDIS, 0)
    assert bound.names("") == ["binding-000001.json", "binding-000002.json"]
    Binding(bound).check(WITH_REDIS, Overrides())
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(r\) again"):
        Binding(bound).check(BOUND, Overrides(added_sinks={"r"}))


def test_add_sink_for_one_sink_does_not_admit_another_one(bound: LocalFiles) -> None:
    with pytest.raises(RefusedStartError, match=r"override=\[AddSink\('a'\), AddSink\('r'\)\]"):
        Binding(bound).check(WITH_BOTH, Overrides(added_sinks={"a"}))


def test_the_message_for_several_new_sinks_names_all_of_them(bound: LocalFiles) -> None:
    """Seen: they had to be added one at a time, and no order was safe if they contained a batch of an ended query."""
    with pytest.raises(RefusedStartError, match=r"override=\[AddSink\('a'\), AddSink\('r'\)\]"):
        Binding(bound).check(WITH_BOTH, Overrides())
    Binding(bound).check(WITH_BOTH, Overrides(added_sinks={"a", "r"}))


def test_a_check_sees_the_newest_binding_of_another_driver(bound: LocalFiles) -> None:
    stale, other = Binding(bound), Binding(bound)
    other.bind(WITH_REDIS, 0)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(r\) again"):
        stale.check(BOUND, Overrides())


def test_the_second_of_two_drivers_binding_at_once_is_refused_unless_both_bind_the_same(files: LocalFiles) -> None:
    first, second, third = Binding(files), Binding(files), Binding(files)
    first.bind(BOUND, 0)
    second.bind(BOUND, 0)
    with pytest.raises(RefusedStartError, match="just bound"):
        third.bind(WITH_REDIS, 0)
    assert files.names("") == ["binding-000001.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":1}'])
def test_a_torn_binding_file_counts_as_damage(data: bytes, files: LocalFiles) -> None:
    files.put_if_absent("binding-000001.json", data)
    with pytest.raises(DecisionLogDamagedError, match=r"binding-000001\.json"):
        Binding(files)


def test_a_newer_binding_format_is_refused(files: LocalFiles) -> None:
    files.put_if_absent("binding-000001.json", seal(msgspec.structs.replace(BOUND, format=2)))
    with pytest.raises(RefusedStartError, match="Use the version that wrote the file"):
        Binding(files)


def test_verify_finds_the_deciding_ledger_among_ledgers_without_ids(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    sinks = {name: {"cluster": f"of-{name}", "ledger": f"of-{name}", "ledger_id": NO_ID} for name in ("a", "b")}
    Binding(LocalFiles(tmp_path / "twopc")).bind(Bound(format=FORMAT, log="of-b", log_identity=NO_ID, sinks=sinks), 0)
    assert facts_of(LocalFiles(tmp_path)).bound == Where("of-b", "of-b")


def acquired(log: str, cluster: str = "", query_id: str = "q") -> Acquired:
    return Acquired(
        query_id=query_id, run="r", deciding_log=log, deciding_cluster=cluster, driver="d", at_ms=0, sink="k"
    )


def test_a_topic_named_like_the_log_in_a_checkpoint_is_not_that_log() -> None:
    in_checkpoint, in_topic = acquired(RegisterLog.name), acquired(RegisterLog.name, "a cluster")
    assert [NOTHING_KNOWN.where(one).is_checkpoint for one in (in_checkpoint, in_topic)] == [True, False]


def test_decisions_are_read_only_from_the_log_to_which_the_checkpoint_is_bound(tmp_path: Path) -> None:
    own, sink = LocalFiles(tmp_path / "twopc"), KafkaSink(name="k", bootstrap_servers="b:1", topic="out")
    (tmp_path / "metadata").write_text('{"id":"q"}')
    log = RegisterLog(own)
    log.acquire(Claim(query_id="q", run="r", deciding_log=log.name))
    Binding(own).bind(Bound(format=FORMAT, log=log.name, log_identity=log.identity(), sinks={"k": {}}), 0)
    facts, last = facts_of(LocalFiles(tmp_path)), acquired(log.name)
    assert log_in_checkpoint(sink, last, facts).inspect().start == 0
    assert facts.checkpoint_of(last) == str(tmp_path)
    with pytest.raises(DecisionsElsewhereError, match=r"in the checkpoint of query other.* belongs to query q"):
        log_in_checkpoint(sink, acquired(log.name, query_id="other"), facts)
    shutil.rmtree(tmp_path / "twopc" / "registers")
    with pytest.raises(DecisionLogDamagedError, match="is missing, so registers/ was deleted"):
        log_in_checkpoint(sink, last, facts)
