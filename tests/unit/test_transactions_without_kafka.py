"""The commands about Kafka's transactions say so if no sink of the checkpoint is a Kafka sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import command
from twopc.sealed import with_check

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    bound = b'{"format":1,"log":"registers","log_identity":"i","sinks":{"r":{"id":"i"},"t":{"id":"j","table":"7"}}}'
    (tmp_path / "twopc").mkdir()
    (tmp_path / "twopc" / "binding-000001.json").write_bytes(with_check(bound))
    (tmp_path / "metadata").write_text('{"id":"q"}')
    return tmp_path


@pytest.mark.parametrize(
    "words", ["transactions list", "transactions prove", "transactions commit", "transactions abort", "resolve"]
)
def test_a_checkpoint_without_a_kafka_sink_has_no_transactions(words: str, checkpoint: Path) -> None:
    said = command(*words.split(), str(checkpoint), "--bootstrap-servers", "127.0.0.1:1")
    assert (said.status, said.out) == (2, "")
    assert "no sink of this checkpoint (r, t) is a Kafka sink" in said.error and "twopc status" in said.error


def test_status_lists_the_sinks_that_it_has_not_compared(checkpoint: Path) -> None:
    said = command("status", str(checkpoint), "--json")
    [others] = [one for one in said.facts["advice"] if one["urgency"] == "watch"]
    assert (said.status, others["what"]) == (0, "the decisions were not compared with the stores of these sinks: r, t")
    assert others["runbook"].endswith("#the-stores-of-sinks")
