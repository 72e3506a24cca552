"""Which batch this is, and who may go on (rule 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, die_at, fingerprint, records
from tests.unit.fake_sink import QUERY_ID, Cluster, Query, all_rows, rows_of
from twopc.batch import Overrides
from twopc.errors import (
    RefusedStartError,
)
from twopc.records import Begin
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable


def _rewound(query: Query) -> None:
    query.run(0)


def _copied_same_batch(query: Query) -> None:
    query.run(2, history="elsewhere")


def _copied_next_batch(query: Query) -> None:
    query.run(3, history="elsewhere")


def _gap(query: Query) -> None:
    query.run(4)


def _new_query(query: Query) -> None:
    query.run(0, query_id=OTHER)


REFUSED: dict[str, Callable[[Query], None]] = {
    "rewound": _rewound,
    "copied": _copied_same_batch,
    "copied ": _copied_next_batch,
    "gap": _gap,
    "new query": _new_query,
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_changes_nothing_and_fences_nobody(case: str, cluster: Cluster) -> None:
    healthy = cluster.start()
    healthy.run(0, 1, 2)
    before, driver_epoch, sweeps = fingerprint(cluster), cluster.store.driver_epoch, cluster.store.sweeps
    with pytest.raises(RefusedStartError) as refused:
        REFUSED[case](cluster.start())
    assert refused.value.case == case.strip()
    assert fingerprint(cluster) == before
    assert (cluster.store.driver_epoch, cluster.store.sweeps) == (driver_epoch, sweeps)
    healthy.run(3)
    assert cluster.store.visible() == all_rows(0, 1, 2, 3)


def test_a_checkpoint_older_than_the_sink_is_refused_and_leaves_no_file(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError, match=f"adopt_query_id='{QUERY_ID}'"):
        cluster.start().run(5)
    assert fingerprint(cluster) == {}


def test_an_adopted_checkpoint_goes_on_where_it_is(cluster: Cluster) -> None:
    permitted = Settings(overrides=Overrides(adopt_query_id=QUERY_ID))
    cluster.start(settings=permitted).run(5)
    (begin,) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert (begin.first_batch, begin.prior_offsets) == (5, ('{"t":{"0":4}}',))
    cluster.start().run(6)  # the permit was needed once
    assert cluster.store.visible() == all_rows(5, 6)


def test_a_override_that_names_another_query_allows_nothing(cluster: Cluster) -> None:
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(overrides=Overrides(adopt_query_id=OTHER))).run(5)
    cluster.start().run(0)
    with pytest.raises(RefusedStartError):
        cluster.start(settings=Settings(overrides=Overrides(end_query_id="query-c"))).run(0, query_id=OTHER)


def test_an_allowed_new_query_ends_the_old_one_for_good(cluster: Cluster) -> None:
    cluster.start().run(0, 1)
    permitted = Settings(overrides=Overrides(end_query_id=QUERY_ID))
    cluster.start(settings=permitted).run(0, query_id=OTHER)
    (_, begin) = records(cluster, Begin)
    assert isinstance(begin, Begin)
    assert begin.ends == QUERY_ID
    before = fingerprint(cluster)
    for settings in (None, permitted, Settings(overrides=Overrides(end_query_id=OTHER))):
        with pytest.raises(RefusedStartError) as refused:
            cluster.start(settings=settings).run(2)
        assert refused.value.case == "ended query"
    assert fingerprint(cluster) == before


def test_a_override_left_on_guards_still(cluster: Cluster) -> None:
    cluster.start().run(0)
    permitted = Settings(overrides=Overrides(end_query_id=QUERY_ID))
    cluster.start(settings=permitted).run(0, 1, query_id=OTHER)
    with pytest.raises(RefusedStartError, match=f"end_query_id='{OTHER}'"):
        cluster.start(settings=permitted).run(0, query_id="query-c")


def test_the_ended_queries_last_decision_is_finished_first(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.decided", 0)
    query = cluster.start(settings=Settings(overrides=Overrides(end_query_id=QUERY_ID)))
    query.engine.rows = rows_of(7)
    query.run(0, query_id=OTHER)
    assert cluster.store.visible() == all_rows(0, 7)
