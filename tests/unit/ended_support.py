"""Helpers for the tests of starts that end other queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.named_overrides import named_overrides
from tests.unit.coordinator_support import die_at
from tests.unit.fake_sink import QUERY_ID, Cluster, all_rows
from twopc.files import LocalFiles
from twopc.override import Abandon, Overrides
from twopc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.files import Files

THIRD = "query-c"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Each sink with a name of one letter has its own log."""
    found = Cluster(tmp_path / "checkpoint" / "twopc")
    found.world.logs = {name: LocalFiles(tmp_path / name) for name in "abmz"}
    return found


@pytest.fixture
def new(tmp_path: Path) -> LocalFiles:
    """Another checkpoint."""
    return LocalFiles(tmp_path / "new")


def killed(cluster: Cluster, *sinks: str, query_id: str = QUERY_ID, files: Files | None = None) -> None:
    """Let a query die when its batch 1 is decided, but not visible."""
    query = cluster.start(*sinks, files=files)
    query.run(0, query_id=query_id)
    die_at(cluster, query, "driver.decided", 1, query_id=query_id)


def ending(*queries: str, abandon: Abandon | None = None, add_sink: str | None = None) -> Settings:
    return Settings(
        overrides=Overrides(
            end_query_ids={*queries},
            abandoned={abandon} if abandon else frozenset(),
            added_sinks={add_sink} if add_sink else frozenset(),
        )
    )


def shown(cluster: Cluster, sink: str) -> list[int]:
    return cluster.world.store(sink).visible()


def twice(*batches: int) -> list[int]:
    """Batch 0 of the new query has the same rows as the old query's."""
    return sorted([*all_rows(*batches), *all_rows(0)])


def add_b() -> Settings:
    return ending(QUERY_ID, add_sink="b")


def advised(error: BaseException) -> Settings:
    """The settings in an error's message, as the user would copy them."""
    named = named_overrides(str(error))
    assert named
    return Settings(overrides=Overrides.of(named))
