"""A Kafka sink joins a query without one, so its decisions stay in the checkpoint. The commands read them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.live.operate.support import ask, spark_files
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, die, driver_of, playing
from tests.unit.fake_sink import FakeSink, World
from twopc.integration.verify.deciding import GIVE_CHECKPOINT
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

_FORCED: Final = ("--yes", "--force", "--reason", "the host is gone")


def join(play: Play, point: str) -> str:
    """Batch 0 has no Kafka sink. The driver of batch 1 adds one and dies at ``point``. Return the query's checkpoint."""
    for batch in range(2):
        play.batch(batch, offsets=(f'{{"in":{{"0":{batch}}}}}',))  # the offsets in Spark's files
    store = FakeSink(World())
    driver_of(play, [store]).process(play.batch(0), Tasks(play, ROWS, sinks=[store]))  # type: ignore[list-item]
    both = [store, play.sink]
    driver = driver_of(play, both, add_sink=play.name)  # type: ignore[arg-type]
    with pytest.raises(InjectedFault), at(point, die):
        driver.process(play.batch(1), Tasks(play, ROWS, sinks=both))  # type: ignore[arg-type]
    return str(spark_files(play, finished=0, planned=1))


def test_a_batch_is_committed_as_the_checkpoint_decided(play: Play) -> None:
    checkpoint = join(play, "driver.decided")
    status = ask(play, "status", checkpoint, "--json")
    [advice] = status.facts["sinks"][0]["advice"]
    printed = advice["action"].split("`")[1].split()[1:]
    assert printed == ["transactions", "commit", play.name, "--checkpoint", checkpoint]
    done = ask(play, *printed, "--yes")
    assert done.status == 0, done
    assert play.visible() == VISIBLE


def test_resolve_and_verify_read_the_decisions_in_the_checkpoint(play: Play) -> None:
    checkpoint = join(play, "driver.decided")
    resolved = ask(play, "resolve", play.name, "--checkpoint", checkpoint, "--json")
    assert (resolved.status, resolved.facts[0]["batch"]) == (1, 1), resolved
    assert f"transactions commit {play.name} --checkpoint {checkpoint}" in resolved.facts[0]["next"]
    checked = ask(play, "verify", "--sink", play.name, "--checkpoint", checkpoint)
    assert checked.status == 0, checked


@pytest.mark.whole
def test_without_the_checkpoint_every_command_asks_for_it(play: Play) -> None:
    checkpoint = join(play, "driver.decided")
    status = ask(play, "status", play.name, "--json")
    [advice] = status.facts["sinks"][0]["advice"]
    assert GIVE_CHECKPOINT in advice["what"] and "start it" in advice["action"], advice
    listed = ask(play, "transactions", "list", play.name, "--json")
    assert GIVE_CHECKPOINT in listed.facts[0]["problem"], listed
    assert ask(play, "transactions", "list", checkpoint, "--json").facts[0]["problem"] is None
    assert ask(play, "transactions", "prove", checkpoint).status == 1  # decided, and not committed yet
    wanted = f"the decisions of sink '{play.name}' are in the checkpoint of query {play.query_id}"
    for words in (
        ("transactions", "commit", play.name, "--yes"),
        ("transactions", "prove", play.name),
        ("resolve", play.name),
        ("verify", "--sink", play.name),
    ):
        refused = ask(play, *words)
        assert refused.status == 2 and wanted in refused.error and GIVE_CHECKPOINT in refused.error, refused
        assert "--sinks" not in refused.error and "another cluster" not in refused.error, refused


def test_the_checkpoint_of_another_query_is_refused(kafka: KafkaService, play: Play, tmp_path: Path) -> None:
    join(play, "driver.decided")
    with playing(kafka, tmp_path / "other") as other:
        another = join(other, "driver.decided")
        refused = ask(play, "transactions", "commit", play.name, "--checkpoint", another, "--yes")
    assert refused.status == 2 and f"The given checkpoint belongs to query {other.query_id}" in refused.error, refused
    assert len(play.open_transactions()) == 2


def test_no_transaction_is_aborted_by_what_an_older_copy_of_the_checkpoint_says(play: Play) -> None:
    """The driver died after its decision. An older copy lacks the decision, so the transaction seems undecided."""
    checkpoint = join(play, "driver.decided")
    registers = play.root / "twopc" / "registers"
    decision = max(path for path in registers.iterdir() if path.name.isdigit())
    assert b'"decision"' in decision.read_bytes()
    decision.unlink()
    refused = ask(
        play, "transactions", "abort", play.name, *play.open_transactions(), "--checkpoint", checkpoint, *_FORCED
    )
    assert refused.status == 3 and "An older copy of a checkpoint lacks the newest decisions" in refused.error, refused
    assert len(play.open_transactions()) == 2
