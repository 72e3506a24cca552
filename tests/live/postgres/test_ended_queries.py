"""A query that another query has replaced does not come back, because PostgreSQL no longer has the markers of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.postgres.support import case_of
from twopc import crash_points
from twopc.errors import CommitBlockedError, RefusedStartError
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.sinks.postgres.committer import PostgresCommitter
from twopc.testing.contract.drivers import QUERY_ID, Query, all_rows
from twopc.testing.crash_points import InjectedFault, arm

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.testing.contract import Case

OTHER = "query-b"
BACK = Settings(overrides=Overrides(end_query_ids={OTHER}))


def _fail() -> None:
    raise InjectedFault("as armed")


@pytest.fixture
def case(database: str) -> Case:
    return case_of(database)


@pytest.fixture
def ended(case: Case, tmp_path: Path) -> Query:
    """It died after batch 1 was visible. Another query replaced it, and deleted the markers of batch 1."""
    query = Query(case, tmp_path / "ended")
    query.run(0)
    arm("driver.committed", _fail)
    with pytest.raises(InjectedFault):
        query.run(1)
    crash_points.disarm()
    replacing = Settings(overrides=Overrides(end_query_ids={QUERY_ID}), keep_batches=1)
    Query(case, tmp_path / "other", query_id=OTHER).run(0, 1, 2, settings=replacing)
    return query


def test_a_query_that_was_replaced_is_refused_although_end_query_names_its_successor(ended: Query, case: Case) -> None:
    """Seen: its last batch was taken for lost, and was written again."""
    for settings in (BACK, None):
        with pytest.raises(RefusedStartError, match=rf"query ended: .*EndQuery\('{OTHER}'\)") as refused:
            ended.run(1, settings=settings)
        assert refused.value.case == "ended query"
    assert case.visible() == sorted(all_rows(0, 1) + all_rows(0, 1, 2))


def test_a_missing_marker_of_a_query_that_was_replaced_proves_no_loss(
    ended: Query, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresCommitter, "is_replaced", lambda *_: False, raising=False)
    with pytest.raises(CommitBlockedError):
        ended.run(1, settings=BACK)
    assert case.visible() == sorted(all_rows(0, 1) + all_rows(0, 1, 2))


def test_a_query_comes_back_if_its_successor_has_decided_nothing(case: Case, tmp_path: Path) -> None:
    """The user has started the wrong program. It has failed before its first decision."""
    query = Query(case, tmp_path / "query")
    query.run(0)
    arm("driver.confirmed", _fail)
    with pytest.raises(InjectedFault):
        Query(case, tmp_path / "wrong", query_id=OTHER).run(
            0, settings=Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
        )
    crash_points.disarm()
    query.run(0, 1, settings=BACK)
    assert case.visible() == all_rows(0, 1)
