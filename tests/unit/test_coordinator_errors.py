"""An error says what is known about the batch, beyond the attempt that failed. The code that raises it knows only the attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.coordinator_support import die_at
from tests.unit.fake_sink import Cluster, all_rows, batch_of
from twopc.errors import ConfigurationError, DecisionInDoubtError, FatalError, InDoubtError, RetriableError
from twopc.override import Abandon, Overrides
from twopc.records import Truncation
from twopc.registers import RegisterLog
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.fake_sink import Query

FAILED = "No part of this attempt is decided or visible"


def error_of(query: Query, batch: int, kind: type[Exception] = FatalError) -> str:
    with pytest.raises(kind) as raised:
        query.coordinator.process(batch_of(batch), query.engine)
    return str(raised.value)


def refuse_appends(
    monkeypatch: pytest.MonkeyPatch, kind: type = object, error: type[Exception] = ConfigurationError
) -> None:
    """The log is gone when a record of this kind is to be written."""
    append = RegisterLog.append

    def refused(self: RegisterLog, records: Sequence[Any]) -> int:
        if any(isinstance(record, kind) for record in records):
            raise error("the ledger no longer exists")
        return append(self, records)

    monkeypatch.setattr(RegisterLog, "append", refused)


def test_an_undecided_batch_needs_no_sentence_of_its_own(cluster: Cluster) -> None:
    query = cluster.start()
    query.engine.failures = [FatalError(FAILED)]
    assert error_of(query, 0) == FAILED


def test_a_batch_that_has_lost_every_row_counts_as_undecided(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    cluster.store.expire()
    query = cluster.start()
    query.engine.failures = [FatalError(FAILED)]
    assert error_of(query, 0) == FAILED


@pytest.mark.parametrize("kind", [FatalError, RetriableError])
@pytest.mark.parametrize("staging", [False, True], ids=["repair", "publish"])
def test_a_failed_repair_says_that_the_batch_is_decided(
    kind: type[Exception], *, staging: bool, cluster: Cluster
) -> None:
    die_at(cluster, cluster.start(staging=staging), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start(staging=staging)
    query.engine.failures = [kind(FAILED)] * 3
    assert error_of(query, 0, kind) == (
        f"{FAILED}. Batch 0 was decided before this attempt, and some of its rows may already be visible"
    )
    cluster.start(staging=staging).run(0)
    assert cluster.store.visible() == all_rows(0)


def test_a_repair_that_cannot_be_recorded_says_that_the_batch_is_decided(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    refuse_appends(monkeypatch)
    found = error_of(cluster.start(), 0)
    assert found.startswith("the ledger no longer exists. Batch 0 was decided before this attempt")


def test_a_batch_that_cannot_be_abandoned_is_decided(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    refuse_appends(monkeypatch)
    query = cluster.start(settings=Settings(overrides=Overrides(abandoned={Abandon(0)})))
    assert error_of(query, 0) == (
        "the ledger no longer exists. Batch 0 was decided before this attempt, and some of its rows may already be visible"
    )


@pytest.mark.parametrize("kind", [ConfigurationError, DecisionInDoubtError])
def test_a_failed_truncation_says_that_the_batch_is_visible(
    kind: type[Exception], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = cluster.start(settings=Settings(keep_batches=1))
    query.run(0)
    refuse_appends(monkeypatch, Truncation, kind)
    assert error_of(query, 1, kind) == (
        "the ledger no longer exists. All rows of batch 1 are visible. A restart does not write them again"
    )
    assert cluster.store.visible() == all_rows(0, 1)


def test_a_failed_evaluation_of_a_visible_batch_says_that_it_is_visible(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start().run(0)
    query = cluster.start()

    def evaluate() -> None:
        raise ConfigurationError("Spark has not written all of the state")

    monkeypatch.setattr(query.engine, "evaluate", evaluate)
    assert error_of(query, 0).endswith("state. All rows of batch 0 are visible. A restart does not write them again")


def test_an_error_about_a_decided_batch_is_not_said_twice(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    query = cluster.start()
    query.engine.rows = {0: [0, 1], 1: [10, 11]}
    assert "was decided before" not in error_of(query, 0, InDoubtError)
