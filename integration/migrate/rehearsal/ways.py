"""Rehearse each way to move from 0.10 brokers to current brokers.

Each rehearsal starts its own brokers, and finally counts the output's records.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.integration.migrate.rehearsal.steps import PARTITIONS, Rehearsal, difference, new_source
from twopc.integration.migrate.rehearsal.topics import LiveReader, Output, moved_keys, numbers_of
from twopc.integration.services import ServiceError
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.kafka_upgrade import UPGRADE, UpgradedKafka
from twopc.integration.services.mirror_maker import MIRROR_MAKER_VERSION, MirrorMaker
from twopc.integration.services.old_kafka import LocalOldKafka
from twopc.integration.services.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twopc.integration.migrate.rehearsal.steps import Step

_SOURCE: Final = "orders"
_OUTPUT: Final = "orders-enriched"
_MIRROR_TIMEOUT_S: Final = 120

#: The cases that a rehearsal does not run, and why. The report prints them.
NOT_RUN: Final = {
    "moving the source to another cluster as well": (
        "the source's offsets change, so a checkpoint from the old cluster is not valid. Move the output first. Then move the "
        "source, either with a new checkpoint or with a tool that preserves the offsets"
    ),
    "MirrorMaker 2, Confluent Replicator, Cluster Linking": (
        "MirrorMaker 2 needs broker features that Kafka 0.10 does not support. Confluent Replicator and Cluster Linking are "
        "not available as packages"
    ),
    "brokers older than 0.10.2, several brokers, other vendors' brokers": (
        "there are no packages for such brokers, or this machine does not have enough memory to run them"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of a rehearsal.

    Attributes:
        seed: the seed for the kills.
        kills: how many times each sink is killed.
        batch_rows: the number of records in a batch.
    """

    seed: int
    kills: int
    batch_rows: int


def to_another_cluster(directory: Path, scale: Scale, on_step: Callable[[Step], object]) -> list[Step]:
    """Leave the source on 0.10 and move the output to a current cluster, as most teams do.

    Raises:
        ServiceError: a server or a query fails.
    """
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(LocalOldKafka(data_dir=directory / "old-kafka"))
        new = stack.enter_context(LocalKafka(data_dir=directory / "new-kafka"))
        before, after = (
            Output(servers, _OUTPUT, PARTITIONS) for servers in (old.bootstrap_servers, new.bootstrap_servers)
        )
        before.create()
        after.create()
        rehearsal = _rehearsal(directory, old.bootstrap_servers, before, scale, on_step)
        rehearsal.add("brokers", f"ZooKeeper and Kafka {old.version}; Kafka {new.version}")
        rehearsal.run_old(scale.kills)
        rehearsal.leave_half_a_batch()
        _mirror(rehearsal, after, directory / "mirror")
        _cut_over_and_back(rehearsal, scale, stack)
    return rehearsal.steps


def upgraded_in_place(directory: Path, scale: Scale, on_step: Callable[[Step], object]) -> list[Step]:
    """Upgrade the brokers in place, release by release. Topics and offsets stay the same.

    Raises:
        ServiceError: a server or a query fails.
    """
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(UpgradedKafka(data_dir=directory / "kafka"))
        output = Output(kafka.bootstrap_servers, _OUTPUT, PARTITIONS)
        output.create()
        rehearsal = _rehearsal(directory, kafka.bootstrap_servers, output, scale, on_step)
        rehearsal.add("brokers", f"ZooKeeper and Kafka {kafka.version}")
        rehearsal.run_old(scale.kills)
        rehearsal.leave_half_a_batch()
        there = numbers_of(output.records())
        for step in UPGRADE:
            kafka.upgrade(step)
            found = numbers_of(output.records())
            lost, doubled = difference(there, found)
            rehearsal.add(
                f"upgrade to {step}",
                "restarted with the same log directories",
                records=found.total(),
                lost=lost,
                doubled=doubled,
                problem="the output has changed" if lost or doubled else "",
            )
        _cut_over_and_back(rehearsal, scale, stack)
    return rehearsal.steps


WAYS: Final[dict[str, Callable[[Path, Scale, Callable[[Step], object]], list[Step]]]] = {
    "another-cluster": to_another_cluster,
    "upgrade": upgraded_in_place,
}


def _rehearsal(
    directory: Path, servers: str, output: Output, scale: Scale, on_step: Callable[[Step], object]
) -> Rehearsal:
    return Rehearsal(
        directory=directory,
        source=new_source(servers, _SOURCE),
        output=output,
        seed=scale.seed,
        batch_rows=scale.batch_rows,
        on_step=on_step,
    )


def _mirror(rehearsal: Rehearsal, target: Output, directory: Path) -> None:
    previous = rehearsal.output
    wanted = previous.written()
    with MirrorMaker(previous.servers, target.servers, previous.topic, data_dir=directory) as mirror:
        if not wait_until(lambda: target.written() >= wanted, _MIRROR_TIMEOUT_S):
            raise ServiceError(
                f"MirrorMaker did not copy {wanted} records within {_MIRROR_TIMEOUT_S} s. Read its log: {mirror.log_path}"
            )
    there, here = previous.records(), target.records()
    lost, doubled = difference(numbers_of(there), numbers_of(here))
    moved = moved_keys([*there, *here])
    problem = "the copy differs" if lost or doubled else ""
    rehearsal.output = target
    rehearsal.add(
        "the output moves",
        f"copied by MirrorMaker from Kafka {MIRROR_MAKER_VERSION}",
        records=len(here),
        lost=lost,
        doubled=doubled,
        problem=problem or (f"keys in other partitions: {', '.join(moved)}" if moved else ""),
    )


def _cut_over_and_back(rehearsal: Rehearsal, scale: Scale, stack: contextlib.ExitStack) -> None:
    """Run the steps that all ways share, while a reader reads continuously."""
    reader = stack.enter_context(contextlib.closing(LiveReader(rehearsal.output)))
    rehearsal.preflight()
    rehearsal.cut_over()
    rehearsal.run_new(scale.kills)
    rehearsal.verify()
    rehearsal.roll_back()
    rehearsal.run_back()
    seen, there = reader.finish(), rehearsal.output.records()
    is_same = sorted(seen) == sorted(there)
    rehearsal.add(
        "a reader, throughout",
        "a read_committed reader that started before the cut-over received each record once, and no other records",
        records=len(seen),
        problem=""
        if is_same
        else (
            f"the reader received {len(set(seen) - set(there))} records that are not in the topic, or missed some of the "
            "topic's records"
        ),
    )
