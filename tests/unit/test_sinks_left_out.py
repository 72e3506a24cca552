"""A start does not leave out a sink in which the last decided batch may still be invisible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, die_at
from tests.unit.fake_sink import PARTITIONS, QUERY_ID, Cluster, OwnLog, all_rows
from twopc.errors import RefusedStartError
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.fake_sink import Query

ENDING = Overrides(end_query_ids={QUERY_ID})


@pytest.fixture
def killed(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Batch 1 is decided in the log of sink one. It is visible there, but not in sink two."""
    cluster.world.logs["one"] = LocalFiles(tmp_path / "own")
    query = cluster.start("one", "two")
    query.run(0)
    die_at(cluster, query, "driver.committing", 1, passage=PARTITIONS)
    assert (shown(cluster, "one"), shown(cluster, "two")) == (all_rows(0, 1), all_rows(0))
    return cluster


@pytest.fixture
def new(tmp_path: Path) -> LocalFiles:
    """Another checkpoint."""
    return LocalFiles(tmp_path / "new")


def shown(cluster: Cluster, sink: str) -> list[int]:
    return cluster.world.store(sink).visible()


def without_two(cluster: Cluster, overrides: Overrides, files: LocalFiles | None = None) -> Query:
    return cluster.start("one", settings=Settings(overrides=overrides), files=files)


def refuse(query: Query, batch: int, query_id: str) -> str:
    with pytest.raises(RefusedStartError) as refused:
        query.run(batch, query_id=query_id)
    assert refused.value.case == "sink left out"
    return str(refused.value)


def test_a_new_query_cannot_leave_out_a_sink_until_the_old_query_has_completed_its_batch(
    killed: Cluster, new: LocalFiles
) -> None:
    """Seen: the batch never became visible in the sink, without any error."""
    before = [*OwnLog(killed.world.logs["one"]).inspect().entries]
    message = refuse(without_two(killed, ENDING, new), 0, OTHER)
    overrides = f"override=[EndQuery({QUERY_ID!r}), Abandon(1, {QUERY_ID!r}, sinks=['two'])]"
    assert "batch 1" in message and "'two'" in message and overrides in message
    assert [*OwnLog(killed.world.logs["one"]).inspect().entries] == before  # no driver was fenced
    killed.start("one", "two").run(1)
    assert shown(killed, "two") == all_rows(0, 1)
    refuse(without_two(killed, ENDING, new), 0, OTHER)  # the log does not show that the batch is complete
    without_two(killed, replace(ENDING, abandoned={Abandon(1, QUERY_ID, ("two",))}), new).run(0, query_id=OTHER)
    without_two(killed, ENDING, new).run(0, 1, query_id=OTHER)
    assert (shown(killed, "one"), shown(killed, "two")) == (sorted(2 * all_rows(0, 1)), all_rows(0, 1))


def test_a_new_query_with_all_sinks_completes_the_batch_itself(killed: Cluster, new: LocalFiles) -> None:
    killed.start("one", "two", settings=Settings(overrides=ENDING), files=new).run(0, query_id=OTHER)
    assert shown(killed, "two") == sorted([*all_rows(0, 1), *all_rows(0)])


@pytest.mark.parametrize("batch", [0, 1])
def test_a_checkpoint_that_does_not_contain_the_whole_batch_does_not_prove_it(
    batch: int, killed: Cluster, new: LocalFiles
) -> None:
    """A savepoint was restored, but the ended query had decided another batch since, or had just planned it."""
    refuse(without_two(killed, replace(ENDING, adopt_query_id=OTHER), new), batch, OTHER)


def test_a_checkpoint_with_a_later_batch_of_another_history_does_not_prove_the_batch(
    killed: Cluster, new: LocalFiles
) -> None:
    overrides = replace(ENDING, adopt_query_id=OTHER)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "sink left out"):
        without_two(killed, overrides, new).run(2, query_id=OTHER, history="another")


def test_a_savepoint_of_the_last_batch_lets_the_new_query_leave_out_a_sink(killed: Cluster, new: LocalFiles) -> None:
    killed.start("one", "two").run(1)
    without_two(killed, replace(ENDING, adopt_query_id=OTHER), new).run(2, query_id=OTHER)
    assert (shown(killed, "one"), shown(killed, "two")) == (all_rows(0, 1, 2), all_rows(0, 1))


def test_the_same_query_cannot_leave_out_a_sink_if_its_binding_is_missing(killed: Cluster) -> None:
    for name in killed.files.names(""):
        killed.files.remove(name)
    refuse(without_two(killed, Overrides()), 1, QUERY_ID)
    killed.start("one", "two").run(1)
    assert shown(killed, "two") == all_rows(0, 1)


def test_a_sink_without_rows_in_the_last_batch_may_be_left_out(
    cluster: Cluster, new: LocalFiles, tmp_path: Path
) -> None:
    cluster.world.logs["one"] = LocalFiles(tmp_path / "own")
    query = cluster.start("one", "two")
    query.engine.rows = {0: []}
    query.run(0)
    without_two(cluster, ENDING, new).run(0, query_id=OTHER)
    assert shown(cluster, "one") == all_rows(0)
