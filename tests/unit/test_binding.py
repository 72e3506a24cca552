"""The binding records which log and which sinks a checkpoint belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from twopc.binding import FORMAT, Binding, Bound
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.sealed import seal

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
    binding.check(BOUND, add_sink=None)
    assert binding.log is None
    assert files.names("") == []


def test_the_next_run_finds_the_binding(bound: LocalFiles) -> None:
    binding = Binding(bound)
    binding.check(BOUND, add_sink=None)
    assert binding.log == "ledger"


def test_binding_the_same_again_writes_nothing(bound: LocalFiles) -> None:
    Binding(bound).bind(BOUND, 0)
    assert bound.names("") == ["binding-000001.json"]


@pytest.mark.parametrize(
    ("changed", "way_out"),
    [
        (msgspec.structs.replace(BOUND, sinks={}), "Pass k again"),
        (msgspec.structs.replace(BOUND, sinks={"renamed": {"cluster": "c1"}}), "Pass k again"),
        (msgspec.structs.replace(BOUND, sinks={"k": {"cluster": "c2"}}), "Point the sink back"),
        (msgspec.structs.replace(BOUND, log="other"), "a new checkpoint and a new sink name"),
        (msgspec.structs.replace(BOUND, log_identity="id-2"), "a new checkpoint and a new sink name"),
        (WITH_REDIS, r"override=AddSink\('r'\)"),
    ],
    ids=["dropped", "renamed", "moved", "other log", "log recreated", "added"],
)
def test_a_changed_binding_is_refused_with_a_way_out(changed: Bound, way_out: str, bound: LocalFiles) -> None:
    with pytest.raises(RefusedStartError, match=way_out) as refused:
        Binding(bound).check(changed, add_sink=None)
    assert refused.value.case == "binding"
    assert bound.location in str(refused.value)


def test_a_fact_that_the_sink_no_longer_states_may_differ(files: LocalFiles) -> None:
    """PostgreSQL's server has a new identity after pg_upgrade, although its data is the same."""
    older = msgspec.structs.replace(BOUND, sinks={"k": {"cluster": "c1", "server": "before the upgrade"}})
    Binding(files).bind(older, 0)
    binding = Binding(files)
    binding.check(BOUND, add_sink=None)
    binding.bind(BOUND, 0)
    assert Binding(files).sinks == {"k": {"cluster": "c1"}}
    with pytest.raises(RefusedStartError, match="Point the sink back"):
        Binding(files).check(older, add_sink=None)


def test_add_sink_binds_one_more_sink(bound: LocalFiles) -> None:
    binding = Binding(bound)
    binding.check(WITH_REDIS, add_sink="r")
    binding.bind(WITH_REDIS, 0)
    assert bound.names("") == ["binding-000001.json", "binding-000002.json"]
    Binding(bound).check(WITH_REDIS, add_sink=None)
    with pytest.raises(RefusedStartError, match="Pass r again"):
        Binding(bound).check(BOUND, add_sink="r")


def test_add_sink_for_one_sink_does_not_cover_another(bound: LocalFiles) -> None:
    with pytest.raises(RefusedStartError, match=r"override=AddSink\('r'\)"):
        Binding(bound).check(WITH_BOTH, add_sink="a")


def test_a_check_sees_the_newest_binding_of_another_driver(bound: LocalFiles) -> None:
    stale, other = Binding(bound), Binding(bound)
    other.bind(WITH_REDIS, 0)
    with pytest.raises(RefusedStartError, match="Pass r again"):
        stale.check(BOUND, add_sink=None)


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
