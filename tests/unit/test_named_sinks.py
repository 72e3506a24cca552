"""``--sinks module:name`` imports the user's sinks, and never shows the text of an error in the user's code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import command
from twopc.errors import ConfigurationError
from twopc.integration.operate.named_sinks import load_sinks
from twopc.integration.operate.subject import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CODE = """
from twopc import DeltaSink, KafkaSink

ONE = DeltaSink(name="one", table_uri="/none/one")
SEVERAL = [ONE, DeltaSink(name="two", table_uri="/none/two")]
NUMBER, NOTHING = 5, []
KAFKA = [KafkaSink(name="k", bootstrap_servers="there:1", topic="out"), ONE]

def made():
    return ONE

def broken():
    raise ValueError("dsn=postgresql://me:top-secret@db")

def one_by_one():
    yield ONE
    raise ValueError("dsn=postgresql://me:top-secret@db")

def wrong():
    return DeltaSink(name="a b", table_uri="/none")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, which is not on the path."""
    (tmp_path / "shop_sinks.py").write_text(_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "shop_sinks"
    sys.modules.pop("shop_sinks", None)


@pytest.mark.parametrize(("name", "found"), [("ONE", ["one"]), ("SEVERAL", ["one", "two"]), ("made", ["one"])])
def test_one_sink_or_several_sinks_or_a_function_can_be_imported_from_the_current_directory(
    module: str, name: str, found: list[str]
) -> None:
    assert [sink.name for sink in load_sinks(f"{module}:{name}")] == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "has no attribute 'missing'"),
        ("NUMBER", "must be a sink, a list of sinks"),
        ("NOTHING", "must be a sink, a list of sinks"),
        ("broken", r"ValueError in .*shop_sinks\.py, line 13"),
        ("one_by_one", r"ValueError in .*shop_sinks\.py, line 17"),
        ("wrong", r"DeltaSink\(name='a b'\)"),
        ("", "not in the form module:name"),
    ],
)
def test_a_wrong_sink_reference_is_reported_without_the_text_of_the_users_error(
    module: str, name: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        load_sinks(f"{module}:{name}")
    assert "top-secret" not in str(raised.value)


def test_a_kafka_sink_among_the_named_sinks_needs_no_other_address(module: str) -> None:
    bound = {"k": {"ledger": "twopc-ledger-k"}, "l": {"ledger": "twopc-ledger-l"}, "one": {"id": "i"}}

    def found(servers: str | None) -> list[tuple[str, str]]:
        sinks = Connection(servers, sinks=f"{module}:KAFKA").bound_sinks(bound)
        return [(sink.name, sink.bootstrap_servers) for sink in sinks]

    assert found(None) == [("k", "there:1")]
    assert found("here:1") == [("k", "there:1"), ("l", "here:1")]
    assert Connection(None, sinks=f"{module}:KAFKA").bound_sinks({}) == ()


def test_a_sink_on_another_cluster_is_left_out(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "cluster", "here")
    bound = {name: {"ledger": f"twopc-ledger-{name}", "cluster": at} for name, at in (("k", "there"), ("l", "here"))}
    assert [sink.name for sink in Connection("here:1").bound_sinks(bound)] == ["l"]
    assert [sink.name for sink in Connection("here:1", sinks=f"{module}:KAFKA").bound_sinks(bound)] == ["k", "l"]
    with pytest.raises(ConfigurationError, match=r"belong to cluster here, .* sink 'k' is on cluster there"):
        Connection("here:1").bound_sinks({"k": bound["k"]})


def test_a_sink_reference_to_a_missing_module_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="No module named 'no_such_module'"):
        load_sinks("no_such_module:SINKS")


def test_status_for_several_sinks_is_refused_without_a_checkpoint() -> None:
    for words in (["orders"], []):
        said = command(
            "status", *words, "--bootstrap-servers", "127.0.0.1:1", "--sinks", "tests.live.stores.named:SINKS"
        )
        assert said.status == 2 and said.out == ""
        assert "--sinks" in said.error
