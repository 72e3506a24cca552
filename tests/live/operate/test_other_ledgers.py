"""A sink with ``ledger_topic``, and ledgers that are not the sink's: no decided transaction may seem undecided."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import ask, spark_files
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, crash, playing
from twopc.errors import ConfigurationError
from twopc.integration.operate.observe import observe
from twopc.integration.operate.opened import Standing
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

_FORCED = ("--yes", "--force", "--reason", "the host is gone")


def leave_decided(play: Play) -> str:
    """Let the query's driver die after its decision, and return the query's checkpoint."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    return str(spark_files(play, finished=-1, planned=0))


def named_ledger(play: Play) -> None:
    play.sink = dataclasses.replace(play.sink, ledger_topic=f"ledgers.{uuid.uuid4().hex}")


def test_the_printed_commands_find_a_ledger_named_by_the_user(play: Play) -> None:
    named_ledger(play)
    checkpoint = leave_decided(play)
    status = ask(play, "status", checkpoint, "--json")
    [advice] = status.facts["sinks"][0]["advice"]
    printed = advice["action"].split("`")[1].split()[1:]
    assert printed[:3] == ["transactions", "commit", play.name]
    done = ask(play, *printed, "--yes")
    assert done.status == 0, done
    assert play.visible() == VISIBLE


def test_the_checkpoint_names_the_ledger_of_a_sink(play: Play) -> None:
    named_ledger(play)
    checkpoint = leave_decided(play)
    lost = ask(play, "transactions", "commit", play.name, "--yes")
    assert lost.status == 2 and "the query's checkpoint" in lost.error and "--ledger-topic" in lost.error
    done = ask(play, "transactions", "commit", play.name, "--checkpoint", checkpoint, "--yes")
    assert done.status == 0, done
    assert play.visible() == VISIBLE


def test_the_checkpoint_names_the_ledger_to_verify(play: Play) -> None:
    named_ledger(play)
    play.driver().process(play.batch(0, offsets=('{"in":{"0":0}}',)), Tasks(play, ROWS))  # the offsets in Spark's files
    checkpoint = str(spark_files(play, finished=0))
    alone = ask(play, "verify", "--sink", play.name)
    assert alone.status == 2 and "--checkpoint" in alone.error, alone
    named = ask(play, "verify", "--sink", play.name, "--checkpoint", checkpoint)
    assert named.status == 0, named


def test_an_earlier_querys_ledger_does_not_turn_a_decided_transaction_into_an_orphan(
    play: Play, tmp_path: Path
) -> None:
    """The default ledger is still there, and its drivers have higher epochs than the new ledger's."""
    for batch in range(2):
        play.driver().process(play.batch(batch), Tasks(play, ROWS))
    play.forget_worker()
    play.root, play.query_id, play.offsets = tmp_path / "new", f"new-{play.name}", {}
    named_ledger(play)
    leave_decided(play)
    status = ask(play, "status", play.name)
    assert "transactions abort" not in status.out, status
    refused = ask(play, "transactions", "abort", play.name, "--yes")
    assert len(play.open_transactions()) == 2, refused
    named = ask(play, "transactions", "abort", play.name, *play.open_transactions(), "--yes")
    assert named.status == 3 and "another ledger" in named.error, named
    assert len(play.open_transactions()) == 2


def test_no_transaction_is_judged_by_the_ledger_of_another_sink(
    kafka: KafkaService, play: Play, tmp_path: Path
) -> None:
    with playing(kafka, tmp_path / "other") as other:
        for batch in range(2):
            other.driver().process(other.batch(batch), Tasks(other, ROWS))
        leave_decided(play)
        for words in (("abort", *_FORCED), ("commit", "--yes"), ("prove",), ("list",)):
            refused = ask(play, "transactions", *words[:1], play.name, "--ledger-topic", other.sink.ledger, *words[1:])
            assert refused.status == 2 and f"belongs to sink '{other.name}'" in refused.error, refused
        assert len(play.open_transactions()) == 2


@pytest.mark.whole
def test_a_refused_guest_does_not_turn_the_owners_transactions_into_orphans(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The guest's record is in the owner's ledger, after the records of the owner's running driver."""
    with (
        playing(kafka, tmp_path / "a") as owner,
        playing(kafka, tmp_path / "b", ledger_topic=owner.sink.ledger) as guest,
    ):
        healthy = owner.driver(Settings(keep_batches=1))

        def run_ahead() -> None:
            healthy.process(owner.batch(0), Tasks(owner, ROWS))

        with pytest.raises(ConfigurationError, match="belongs to sink"), at("driver.inspected", run_ahead):
            guest.driver().process(guest.batch(0), Tasks(guest, ROWS))
        crash(healthy, owner, 1, ROWS, "driver.confirmed")
        state = observe(owner.sink)
        assert [one.standing for one in state.transactions] == [Standing.RUNNING, Standing.RUNNING]
