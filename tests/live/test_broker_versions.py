"""Brokers of other versions: upgraded between a decision and its commit, and refused where they are too old."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import KafkaAdminClient
from kafka.admin._cluster import UpdateFeatureType

from tests.live.pipeline import Tasks
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import at, crash, playing, until
from tests.live.services import KafkaService, chosen
from tests.live.test_brokers import Replicated
from tests.services.kafka_cluster import LocalKafkaCluster
from twopc.errors import ConfigurationError
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import driver_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play

pytestmark = pytest.mark.skipif(chosen() != "local", reason="starts brokers of chosen versions")

TRANSACTIONS = "transaction.version"
METADATA = "metadata.version"


def finalize(kafka: KafkaService | LocalKafka | LocalKafkaCluster, feature: str, level: int | None = None) -> None:
    """Do what `kafka-features upgrade` or `downgrade` does; None: to the highest level that the broker supports."""
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers.split(","))) as admin:
        wanted = admin.describe_features()[feature]["supported"][1] if level is None else level
        how = UpdateFeatureType.UPGRADE if wanted > level_of(admin, feature) else UpdateFeatureType.SAFE_DOWNGRADE
        assert admin.update_features({feature: (how, wanted)}) == {feature: "OK"}
        assert until(lambda: level_of(admin, feature) == wanted, 30)


def level_of(admin: KafkaAdminClient, feature: str) -> int:
    return int(admin.describe_features()[feature].get("finalized", (0, 0))[1])


@pytest.fixture(scope="module")
def newest() -> Iterator[KafkaService]:
    """A broker of the newest version, whose features the tests change."""
    with LocalKafka(version=DEFAULT_KAFKA_VERSION) as broker:
        yield KafkaService(broker.bootstrap_servers, broker)


def whole(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.whole)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), whole(0, 1), whole(0, 2), whole(2, 0)])
def test_a_decided_batch_is_committed_even_if_the_transaction_version_has_changed(
    newest: KafkaService, tmp_path: Path, before: int, after: int
) -> None:
    finalize(newest, TRANSACTIONS, before)
    with playing(newest, tmp_path) as play:
        crash(play.driver(), play, 0, rows_of(0), "driver.decided")
        finalize(newest, TRANSACTIONS, after)
        resume(play, 0)


def resume(play: Play, batch: int) -> None:
    """A new driver commits its predecessor's decision, rewrites none of that batch's rows, and processes the next batch."""
    driver, replay = play.driver(), Tasks(play, rows_of(batch))
    driver.process(play.batch(batch), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    driver.process(play.batch(batch + 1), Tasks(play, rows_of(batch + 1)))
    assert play.plans() == ["write"] * (batch + 2)
    assert play.visible() == seen(batch + 2)


@pytest.mark.whole
@pytest.mark.parametrize("point", ["driver.prepared", "driver.deciding", "driver.committing"])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_a_running_driver_does_not_notice_when_the_transaction_version_changes(
    newest: KafkaService, tmp_path: Path, before: int, after: int, point: str
) -> None:
    finalize(newest, TRANSACTIONS, before)
    with playing(newest, tmp_path) as play:
        driver = play.driver()
        driver.process(play.batch(0), Tasks(play, rows_of(0)))
        with at(point, lambda: finalize(newest, TRANSACTIONS, after)):
            driver.process(play.batch(1), Tasks(play, rows_of(1)))
        driver.process(play.batch(2), Tasks(play, rows_of(2)))
        assert play.plans() == ["write"] * 3
        assert play.visible() == seen(3)


def test_under_transaction_version_2_a_commit_leaves_the_epoch_alone(newest: KafkaService, tmp_path: Path) -> None:
    """Both clients use transactions V1, even with such a broker.

    EndTxn v5 would bump the epoch, but rule 4 relies on it.
    """
    finalize(newest, TRANSACTIONS, 2)
    with playing(newest, tmp_path) as play:
        driver = play.driver()
        driver.process(play.batch(0), Tasks(play, rows_of(0)))
        for handle in play.decided(0):
            assert play.describe(handle.transactional_id).is_of(handle)
            assert play.end(handle, commit=True) == "NONE"
        epoch = play.describe(driver_id(play.name)).producer_epoch
        driver.process(play.batch(1), Tasks(play, rows_of(1)))
        assert play.describe(driver_id(play.name)).producer_epoch == epoch


@pytest.mark.whole
@pytest.mark.timeout(900)  # the test may have to download the brokers
@pytest.mark.parametrize(
    "versions",
    [
        ("3.9.1", "4.3.0"),
        ("3.3.2", "3.5.2", "3.9.1", "4.0.1", "4.1.1", "4.2.0", "4.3.0"),
        ("3.9.1", "4.3.0", "3.9.1"),
    ],
    ids=" to ".join,
)
def test_a_batch_decided_under_one_version_is_committed_under_the_next(
    versions: tuple[str, ...], tmp_path: Path
) -> None:
    """The broker stops between the decision and the commit, and starts with other jars on the same data."""
    with LocalKafka(version=versions[0]) as broker, playing(KafkaService(broker.bootstrap_servers), tmp_path) as play:
        for number, version in enumerate(versions[1:]):
            crash(play.driver(), play, 2 * number, rows_of(2 * number), "driver.decided")
            broker.version = version
            broker.restart()
            resume(play, 2 * number)
        if versions[-1] == DEFAULT_KAFKA_VERSION:  # the upgrade's last step, again between a decision and its commit
            batch = 2 * len(versions[1:])
            crash(play.driver(), play, batch, rows_of(batch), "driver.decided")
            finalize(broker, METADATA)
            finalize(broker, TRANSACTIONS)
            resume(play, batch)


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_rolling_upgrade_of_three_brokers_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    """Each batch meets brokers of two versions.

    One batch is decided while a broker is down, and committed after that broker's restart.
    """
    cluster = LocalKafkaCluster()
    for node in cluster:
        cluster[node].version = "3.9.1"
    with cluster, contextlib.closing(Replicated(cluster, tmp_path)) as play:
        play.operate(0)
        for batch, node in enumerate(cluster, start=1):
            cluster[node].stop()
            crash(play.driver(), play, batch, play.rows(batch), "driver.decided")
            cluster[node].version = DEFAULT_KAFKA_VERSION
            cluster[node].start()
            play.restart()
            play.operate(batch)
        finalize(cluster, METADATA)
        finalize(cluster, TRANSACTIONS)
        play.operate(4)
        assert play.plans() == ["write"] * 5
        assert play.visible() == Counter(row for batch in range(5) for task in play.rows(batch) for row in task)


@pytest.mark.whole
def test_a_broker_without_listtransactions_is_rejected_with_an_error_that_says_so(tmp_path: Path) -> None:
    with LocalKafka(version="2.8.2", data_dir=tmp_path) as broker:
        sink = KafkaSink(name="old", bootstrap_servers=broker.bootstrap_servers, topic="out")
        reason = (
            rf"the brokers at {broker.bootstrap_servers} speak the protocol of Kafka 2\.8, which does not include "
            r"DescribeTransactions and ListTransactions \(KIP-664\).*Nothing was written\..*Upgrade the brokers to "
            r"Kafka 3\.0 or newer"
        )
        with pytest.raises(ConfigurationError, match=reason):
            sink.create_committer()
