"""A log that has lost decisions: a visible batch without a decision reveals the loss, as do offsets that do not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.coordinator_support import OTHER, die_at
from tests.unit.ended_support import advised
from tests.unit.fake_sink import QUERY_ID, Cluster, FakeCommitter, Query, all_rows
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides, ResumeAt
from twopc.registers import RegisterLog
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def is_lost_decision(error: RefusedStartError) -> bool:
    return error.case == "lost decision"


@pytest.fixture
def cluster(cluster: Cluster, tmp_path: Path) -> Cluster:
    """The sink's own log contains the decisions."""
    cluster.world.logs["fake"] = LocalFiles(tmp_path / "own")
    return cluster


def lose(cluster: Cluster, *, records: int = 1) -> None:
    """Delete the log's newest records, as an unclean leader election does."""
    files = cluster.world.logs["fake"]
    for name in sorted(name for name in files.names("registers") if name != "id")[-records:]:
        files.remove(f"registers/{name}")


def resuming(at: int, cluster: Cluster) -> Query:
    return cluster.start(settings=Settings(overrides=Overrides(resume_at=ResumeAt(at, QUERY_ID))))


def refused(cluster: Cluster, batch: int, quoted: str) -> None:
    with pytest.raises(RefusedStartError, match=quoted, check=is_lost_decision):
        cluster.start().run(batch)


def test_a_batch_that_is_visible_but_undecided_is_not_written_again(cluster: Cluster) -> None:
    """The driver died before the engine recorded the batch."""
    cluster.start().run(0, 1, 2)
    lose(cluster)
    for _ in range(2):
        refused(
            cluster,
            2,
            r"has lost the decision for batch 2\..*Do not run batch 2 again.*override=ResumeAt\(3, 'query-a'\)\.",
        )
    query = resuming(3, cluster)
    query.run(2)
    assert (query.engine.works, query.engine.evaluated) == ([], 1)
    query.run(3)
    cluster.start().run(3, 4)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3, 4)


def test_the_first_batch_is_not_written_again_if_the_log_has_lost_its_only_decision(cluster: Cluster) -> None:
    cluster.start().run(0)
    lose(cluster)
    refused(cluster, 0, r"has lost the decision for batch 0\..*override=ResumeAt\(1, 'query-a'\)\.")
    resuming(1, cluster).run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_a_gap_in_which_batches_are_visible_is_a_lost_decision(cluster: Cluster) -> None:
    """The advice for a gap is to run its batches again."""
    cluster.start().run(0, 1, 2, 3)
    lose(cluster, records=2)
    epoch = cluster.store.driver_epoch
    refused(
        cluster, 4, r"the decisions for batches 2 to 3\..*Do not run batches 2 to 3 again.*ResumeAt\(4, 'query-a'\)\."
    )
    assert cluster.store.driver_epoch == epoch
    resuming(4, cluster).run(4, 5)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_checkpoint_that_is_behind_the_visible_batches_cannot_continue(batch: int, cluster: Cluster) -> None:
    cluster.start().run(0, 1, 2, 3)
    lose(cluster, records=2)
    refused(cluster, batch, r"the decision for batch 2, and possibly later ones\..*override=EndQuery\('query-a'\)\.")
    if batch < 3:
        with pytest.raises(RefusedStartError, check=is_lost_decision):
            resuming(batch + 1, cluster).run(batch)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3)


def test_without_evidence_the_override_skips_no_batch(cluster: Cluster) -> None:
    """The user may run the batches of a gap again, and leave the override in the code."""
    cluster.start().run(0)
    query = resuming(2, cluster)
    query.run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)


@pytest.mark.parametrize("staging", [False, True])
@pytest.mark.parametrize("count", [1, None], ids=["repaired", "written again"])
@pytest.mark.parametrize("batch", [0, 1], ids=["replayed", "left behind"])
def test_a_batch_whose_last_record_is_lost_is_not_written_again(
    batch: int, count: int | None, *, staging: bool, cluster: Cluster
) -> None:
    """Some or all of its transactions were lost and written again. Seen: the override in the error doubled visible rows."""
    die_at(cluster, cluster.start(staging=staging), "driver.decided", 0)
    cluster.store.expire(count)
    die_at(cluster, cluster.start(staging=staging), "driver.swept", 0)
    lose(cluster)
    with pytest.raises(RefusedStartError, match="has lost a later record of batch 0:", check=is_lost_decision) as lost:
        cluster.start(staging=staging).run(batch)
    settings = advised(lost.value)
    assert settings.overrides.abandoned == {Abandon(0, QUERY_ID)}
    query = cluster.start(staging=staging, settings=settings)
    query.run(batch)
    assert len(query.engine.works) == batch  # nothing is written for the lost batch
    cluster.start(staging=staging).run(batch, batch + 1)  # the override is no longer needed
    assert cluster.store.visible() == all_rows(*range(batch + 2))


def test_an_override_that_stays_in_the_code_does_not_hide_a_later_lost_decision(cluster: Cluster) -> None:
    """Abandon names a batch that is complete."""
    cluster.start().run(0, 1)
    lose(cluster)
    given_up = Overrides(abandoned={Abandon(0, QUERY_ID)})
    with pytest.raises(RefusedStartError, match="has lost the decision for batch 1", check=is_lost_decision) as lost:
        cluster.start(settings=Settings(overrides=given_up)).run(1)
    cluster.start(settings=advised(lost.value)).run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_hidden_batch_is_noticed_after_the_sweep(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction of a dead driver hides the rows and markers after it."""
    cluster.start().run(0, 1)
    lose(cluster)
    sweeps: list[int] = []
    really = FakeCommitter.has_unknown_commit

    def hidden(committer: FakeCommitter, known: Any, scan_start: Any) -> bool:
        return bool(sweeps) and really(committer, known, scan_start)

    swept = FakeCommitter.recover_and_abort

    def sweep(committer: FakeCommitter, decided: Any) -> None:
        sweeps.append(1)
        swept(committer, decided)

    monkeypatch.setattr(FakeCommitter, "has_unknown_commit", hidden)
    monkeypatch.setattr(FakeCommitter, "recover_and_abort", sweep)
    refused(cluster, 1, "has lost the decision for batch 1")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_decision_between_two_reads_of_a_start_is_not_lost(
    batch: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy driver decides batch 1 after the start has read the log."""
    healthy = cluster.start()
    healthy.run(0)
    really, reads = RegisterLog.inspect, 0

    def overtaken(log: RegisterLog) -> Any:
        nonlocal reads
        reads += 1
        found = really(log)
        if reads == 1:
            healthy.run(1)
        return found

    late = cluster.start()
    monkeypatch.setattr(RegisterLog, "inspect", overtaken)
    late.run(batch)
    assert reads >= batch
    assert cluster.store.visible() == all_rows(*range(batch + 1))


def test_a_restart_of_a_query_that_ended_another_one_has_lost_nothing(cluster: Cluster) -> None:
    cluster.start().run(0, 1, 2)
    ending = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
    cluster.start(settings=ending, files=LocalFiles(f"{cluster.files.location}-new")).run(0, query_id=OTHER)
    cluster.start(settings=ending, files=LocalFiles(f"{cluster.files.location}-new")).run(0, 1, query_id=OTHER)
    assert cluster.store.visible() == sorted(all_rows(0, 1, 2) + all_rows(0, 1))


# -- a log that was recreated --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2])
def test_a_log_whose_offsets_do_not_grow_was_recreated(
    offset: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 0 is at offset 1, and batch 1 at offset 2. No start reads a decision in the new log."""
    query = cluster.start()
    query.run(0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(RegisterLog, "append", lambda *_: offset)
        with pytest.raises(DecisionLogDamagedError, match=f"at offset {offset}, but .* at offset 2"):
            query.run(2)
    with pytest.raises(DecisionLogDamagedError, match="recreated while the query was running"):
        query.run(2)
    assert cluster.store.pending() == []
    assert cluster.store.visible() == all_rows(0, 1)
