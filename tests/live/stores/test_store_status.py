"""``twopc status --sinks`` compares the stores of sinks without a ledger with the decisions of the checkpoint."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.operate.support import command
from tests.live.stores.query import Checkpointed
from tests.live.stores.shops import SHOPS, Shop, postgres
from twopc import IcebergSink, PostgresSink, RedisSink
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing import crash_points
from twopc.testing.contract import Case, Crash, numbers
from twopc.testing.contract.drivers import all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEALTHY: Final = [("ok", "healthy")]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()


@pytest.fixture(params=SHOPS, ids=lambda shop: shop.__name__)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    (tmp_path / "store").mkdir()
    made: Shop = request.param(request, tmp_path / "store")
    return made


@pytest.fixture
def query(shop: Shop, tmp_path: Path) -> Checkpointed:
    return Checkpointed(shop.case, tmp_path / "checkpoint")


def crash(query: Checkpointed, batch: int, point: str) -> None:
    crash_points.arm(point, query._case.crash)
    with pytest.raises(Crash):
        query.run(batch)
    crash_points.disarm()


def test_a_published_batch_is_healthy(query: Checkpointed) -> None:
    assert query.look()[2] == HEALTHY  # no driver has used the sink yet
    query.run(0, 1)
    status, store, advice = query.look()
    assert (status, store["last_decided"], store["last_published"], store["driver_epoch"]) == (0, 1, 1, 1)
    assert (store["not_published"], store["lost"], store["leftovers"], advice) == ([], [], [], HEALTHY)
    assert "batch 1 is decided and published" in query.status().out


def test_a_check_fences_no_driver_and_writes_nothing(query: Checkpointed, shop: Shop) -> None:
    running = query.start()
    query.continue_with(running, 0, 1)
    before = shop.content()
    for _ in range(2):
        assert query.look()[0] == 0
    assert shop.content() == before
    query.continue_with(running, 2)
    assert shop.case.visible() == all_rows(0, 1, 2)


@pytest.mark.whole
def test_a_query_that_writes_batch_after_batch_never_needs_an_operator(query: Checkpointed, shop: Shop) -> None:
    """Each observation happens at some moment during a batch."""
    if isinstance(shop.case.sink, IcebergSink):
        pytest.skip("these tests use a SQLite catalog, where a wait for the lock may exceed the timeout")
    batches = range(1, 25)
    running = query.start()
    query.continue_with(running, 0)
    looks = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(query.continue_with, running, *batches)
        while not writing.done():
            status, _, advice = query.look()
            assert status == 0, advice
            looks += 1
        writing.result()
    assert looks
    assert shop.case.visible() == all_rows(0, *batches)


def test_a_check_between_decision_and_commit_writes_nothing(query: Checkpointed, shop: Shop) -> None:
    crash(query, 0, "driver.decided")
    before = shop.content()
    assert query.look()[0] == 0
    assert shop.content() == before


def test_a_decided_but_unpublished_batch_is_reported_until_the_next_start(query: Checkpointed) -> None:
    query.run(0)
    crash(query, 1, "driver.decided")
    status, store, advice = query.look()
    assert (status, store["last_decided"], store["last_published"]) == (0, 1, 0)
    assert (len(store["not_published"]), advice) == (2, [("watch", "decided-and-not-published")])
    query.run(1)
    assert query.look()[2] == HEALTHY


def test_idle_means_that_the_last_decided_batch_is_finished_and_visible_in_every_sink(query: Checkpointed) -> None:
    """Without --idle, 0 means only that nothing is urgent. A batch that was planned, but not begun, does not matter."""
    query.run(0)
    assert query.status("--idle").status == 0
    alone = command("status", str(query.root), "--idle")
    assert alone.status == 1 and "this check did not examine them" in alone.out
    for point in ("driver.prepared", "driver.decided"):
        crash(query, 1, point)
        assert (query.status().status, query.status("--idle").status) == (0, 1)
    query.run(1)
    query._write("offsets", 2)
    assert query.status("--idle").status == 0
    (query.root / "commits" / "1").unlink()
    unfinished = query.status("--idle")
    assert unfinished.status == 1 and "batch 1 is decided, but Spark has not finished it" in unfinished.out


def test_a_checkpoint_without_a_decision_is_not_idle_if_it_has_finished_batches(query: Checkpointed) -> None:
    """A restored savepoint. Its batches were decided with another checkpoint."""
    assert query.status("--idle").status == 0
    query._write("offsets", 0)
    query._write("commits", 0)
    found = query.status("--idle")
    assert found.status == 1 and "check the old query's checkpoint" in found.out


def test_an_undecided_batch_is_distinguished_from_a_decided_one_and_continues(query: Checkpointed, shop: Shop) -> None:
    query.run(0)
    looks: list[Any] = []
    crash_points.arm("driver.prepared", lambda: looks.append(query.look()))
    query.run(1)
    [(status, store, advice)] = looks
    assert (status, store["last_decided"], store["last_published"]) == (0, 0, 0)
    assert (len(store["leftovers"]), advice) == (2, [("watch", "a-batch-is-being-written")])
    assert shop.case.visible() == all_rows(0, 1)


@pytest.mark.parametrize("before", [0, 2])
def test_an_older_copy_of_the_checkpoint_is_detected(query: Checkpointed, tmp_path: Path, before: int) -> None:
    running = query.start()
    query.continue_with(running, *range(before))
    copy = query.copied(tmp_path / "copy")
    query.continue_with(running, before)
    status, store, advice = copy.look()
    assert (status, store["last_published"], advice) == (1, None, [("act", "the-start-is-refused")])
    assert "older copy" in copy.status().out


def test_a_store_that_returned_to_an_earlier_state_is_detected(query: Checkpointed, shop: Shop) -> None:
    query.run(0)
    restore = shop.backup()
    query.run(1, 2)
    restore()
    status, _, advice = query.look()
    assert (status, advice) == (1, [("act", "the-start-is-refused")])
    assert "are missing from the store" in query.status().out


def test_a_lost_control_record_is_detected(query: Checkpointed, shop: Shop) -> None:
    query.run(0)
    shop.lose_record()
    status, _, advice = query.look()
    assert (status, advice) == (1, [("act", "the-control-record-is-missing-or-unreadable")])


def test_lost_rows_of_a_decided_batch_are_detected(query: Checkpointed, shop: Shop) -> None:
    query.run(0)
    crash(query, 1, "driver.decided")
    shop.lose_rows(2)
    status, store, advice = query.look()
    assert (status, store["last_published"], len(store["lost"])) == (1, 0, 2)
    assert advice == [("act", "a-decided-transaction-is-lost")]


def test_a_repaired_batch_is_healthy(query: Checkpointed, shop: Shop) -> None:
    """In a table's history, the batch's rows are in two commits."""
    query.run(0)
    crash(query, 1, "driver.decided")
    shop.lose_rows(1)
    _, store, advice = query.look()
    assert (len(store["lost"]), len(store["not_published"])) == (1, 1)
    assert advice == [("act", "a-decided-transaction-is-lost")]
    query.run(1)
    assert shop.case.visible() == all_rows(0, 1)
    assert query.look()[2] == HEALTHY


def test_a_rolled_back_table_is_detected(query: Checkpointed, shop: Shop) -> None:
    if shop.roll_back is None:
        pytest.skip("this store has no history")
    query.run(0, 1)
    shop.roll_back()
    status, _, advice = query.look()
    assert (status, advice) == (1, [("act", "the-table-was-rolled-back")])


def test_a_batch_with_rows_other_than_the_decided_ones_is_detected(query: Checkpointed, shop: Shop) -> None:
    if shop.miscount is None:
        pytest.skip("this store has no history")
    query.run(0, 1, 2)
    assert query.look()[2] == HEALTHY
    shop.miscount()
    status, store, advice = query.look()
    assert (status, advice) == (1, [("act", "the-rows-of-a-batch-differ")])
    assert store["differing"] == ["batch 1: 10 rows decided, 9 in the table's history"]


def test_a_store_that_does_not_respond_is_reported(query: Checkpointed, shop: Shop) -> None:
    if shop.case.silence is None:
        pytest.skip("the tests below cover the sinks with a server")
    query.run(0)
    with shop.case.silence():
        status, _, advice = query.look()
    assert status == 1
    assert advice in ([("act", "a-store-does-not-respond")], [("act", "the-control-record-is-missing-or-unreadable")])


def test_a_prepared_transaction_without_a_decision_is_listed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The prepared transaction holds locks in the table."""
    shop = postgres(request, tmp_path, vote="prepared")
    query = Checkpointed(shop.case, tmp_path / "checkpoint")
    looks: list[Any] = []
    for point in ("driver.confirmed", "driver.decided"):
        crash_points.arm(point, lambda: looks.append(query.look()))
    query.run(0)
    undecided, decided = ((store["leftovers"], store["store"]["prepared transactions"]) for _, store, _ in looks)
    assert undecided[1] in undecided[0]
    assert decided == ([], undecided[1])
    assert (query.look()[1]["store"], query.look()[2]) == ({}, HEALTHY)
    assert shop.case.visible() == all_rows(0)


@pytest.mark.parametrize(
    "sink",
    [
        PostgresSink(name="s", dsn="postgresql://me:top-secret@127.0.0.1:1/shop", table="t", timeout_ms=500),
        RedisSink(name="s", url="redis://me:top-secret@127.0.0.1:1", mapping=IncrBy("n:{value}"), timeout_ms=500),
    ],
    ids=lambda sink: type(sink).__name__,
)
def test_an_unreachable_server_is_reported_without_its_password(sink: Any, tmp_path: Path) -> None:
    query = Checkpointed(Case(sink, numbers, list), tmp_path / "checkpoint")
    status, _, advice = query.look()
    assert (status, advice) == (1, [("act", "a-store-does-not-respond")])
    for said in (query.status(), query.status("--json")):
        assert "top-secret" not in said.out + said.error
