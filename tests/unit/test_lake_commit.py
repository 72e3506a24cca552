"""A decided batch is in the table once, in every table format: after lost responses, late commits, and other drivers."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit import delta_support, iceberg_support
from tests.unit.lake_support import LakeShop, evidence, lost_answer, lost_request, prepare, prepare_long_ago
from twopc import CheckpointExpiredError, ConfigurationError, FencedError, RetriableError
from twopc.attempt import Claim, Evidence
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.layout import new_copy, original_of
from twopc.sinks.lake.step import LakeStep
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.lake_support import Send

COMMITTED, ABORTED, UNKNOWN = Evidence.COMMITTED, Evidence.ABORTED, Evidence.UNKNOWN


@pytest.fixture(params=["delta", "iceberg"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeShop]:
    yield {"delta": delta_support.Shop, "iceberg": iceberg_support.Shop}[request.param](tmp_path)
    close_opened()


def test_two_sinks_may_write_to_one_table(shop: LakeShop) -> None:
    other = shop.named("others")
    mine, theirs = Driver(shop.sink), Driver(other)
    for driver, sink, value in ((mine, shop.sink, 1), (theirs, other, 2), (mine, shop.sink, 3)):
        scan_start = driver.begin()
        assert driver.commit([prepare(driver, sink, value)], scan_start) == [COMMITTED]
        driver.committer.recover_and_abort([])
    assert shop.values() == [1, 2, 3]


# -- lost responses and late commits -------------------------------------------------------------------------------------


def test_a_commit_whose_response_is_lost_is_found_in_the_table(
    shop: LakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with shop.next_commits(lost_answer):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]
    assert shop.commits() == 2
    assert [record for record in caplog.records if "another driver" in record.getMessage()] == []


def test_a_commit_that_never_arrives_is_repeated(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with shop.next_commits(lost_request, lost_request):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


def test_a_commit_waits_for_a_table_that_cannot_be_read_for_a_while(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    committer: Any = driver.committer
    begin, failures = committer.begin, [StoreError("503 Service Unavailable") for _ in range(5)]

    def unavailable() -> Any:
        if failures:
            raise failures.pop()
        return begin()

    monkeypatch.setattr(committer, "begin", unavailable)
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert committer.blockers() == []


def test_all_attempts_at_a_commit_share_one_timeout(shop: LakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(shop.named("orders", timeout_ms=500))
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    left_ms = []

    def rejected(step: LakeStep[Any, Any], timeout_ms: float) -> None:
        left_ms.append(timeout_ms)
        time.sleep(0.1)
        _fail(step, timeout_ms)

    with monkeypatch.context() as broken:
        broken.setattr(LakeStep, "end", rejected)
        assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert left_ms == sorted(set(left_ms), reverse=True)
    assert 0 < left_ms[0] <= 500 and left_ms[-1] < 400


def test_a_commit_is_repeated_after_a_request_that_took_all_of_its_time(
    shop: LakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(shop.named("orders", timeout_ms=50))
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    end, slow = LakeStep.end, [0.1]

    def first_slow(step: LakeStep[Any, Any], timeout_ms: float) -> None:
        if slow:
            time.sleep(slow.pop())
            _fail(step, timeout_ms)
        end(step, timeout_ms)

    monkeypatch.setattr(LakeStep, "end", first_slow)
    assert evidence(driver, [handle], scan_start) == [COMMITTED]


class HeldBack:
    """A commit that has no response, and may arrive later."""

    def __init__(self) -> None:
        self.sends: list[Send] = []

    def __call__(self, send: Send) -> None:
        self.sends.append(send)
        raise ConnectionError("no answer")


def test_a_commit_that_arrives_after_its_repetition_is_refused(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle, late = prepare(driver, shop.sink, 1, 2), HeldBack()
    with shop.next_commits(late):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    shop.append(9)
    with pytest.raises(shop.refused):
        late.sends[0]()
    assert shop.values() == [1, 2, 9]


def test_a_commit_that_arrives_before_its_repetition_counts(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle, late = prepare(driver, shop.sink, 1, 2), HeldBack()

    def second(send: Send) -> Any:
        late.sends[0]()
        return send()

    with shop.next_commits(late, second):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


@pytest.mark.parametrize("foreign", [0, 1], ids=["alone", "with a foreign append"])
@pytest.mark.parametrize("recommits", [True, False], ids=["which commits the batch", "which only starts"])
def test_a_commit_that_arrives_after_a_change_of_driver_is_refused(
    shop: LakeShop, foreign: int, *, recommits: bool
) -> None:
    """The schedule of apache/iceberg#14425: the check, a long pause, and the request."""
    loser = Driver(shop.sink)
    scan_start = loser.begin()
    handle = prepare(loser, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        winner = Driver(shop.sink)
        if recommits:
            assert winner.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
        for _ in range(foreign):
            shop.append(9)
        return send()

    with shop.next_commits(overtaken), pytest.raises(FencedError):
        loser.committer.commit([handle], scan_start)
    assert shop.values() == [1, 2] * recommits + [9] * foreign
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2] + [9] * foreign


def test_without_a_response_the_outcome_is_unknown_until_the_table_can_be_read(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    with contextlib.ExitStack() as silence:  # always ends the silence, so that a REST catalog can be closed

        def silent(send: Send) -> None:
            send()
            silence.enter_context(shop.silent())
            raise ConnectionError("no answer")

        with shop.next_commits(silent):
            assert evidence(driver, [handle], scan_start) == [UNKNOWN]
        assert "sink 'orders', loading table " in driver.committer.blockers()[-1]
    assert shop.files(), "nothing may be deleted after an unclear response"
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


def test_a_foreign_commit_in_between_costs_one_more_attempt(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)

    def overtaken(send: Send) -> Any:
        shop.append(9)
        return send()

    with shop.next_commits(overtaken):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2, 9]


# -- several drivers ---------------------------------------------------------------------------------------------------


def test_one_of_two_drivers_that_start_on_a_new_table_is_fenced(shop: LakeShop) -> None:
    loser = shop.sink.create_committer()
    seen = loser.inspect()

    def overtaken(send: Send) -> Any:
        Driver(shop.sink)
        return send()

    with shop.next_commits(overtaken), pytest.raises(FencedError):
        loser.acquire(Claim("query-a", "loser", "registers"), seen)
    loser.close()


def test_two_drivers_never_use_the_same_version(shop: LakeShop) -> None:
    first = Driver(shop.sink)
    older = [first.begin()["base"] for _ in range(3)]
    second = Driver(shop.sink)
    newer = [second.begin()["base"] for _ in range(3)]
    assert sorted({*older, *newer}) == older + newer
    with pytest.raises(FencedError):
        first.begin()


def test_a_task_of_a_replaced_driver_writes_nothing(shop: LakeShop) -> None:
    former = Driver(shop.sink)
    former.begin()
    Driver(shop.sink)
    with pytest.raises(RetriableError, match="a newer driver has replaced this task's driver"):
        prepare(former, shop.sink, 1)
    assert shop.files() == []


# -- acts of users on the table ----------------------------------------------------------------------------------------


def test_a_rollback_of_the_table_is_respected(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.commit([handle], scan_start)
    shop.roll_back()
    assert shop.values() == []
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == []
    scan_start = restarted.begin()
    restarted.commit([prepare(restarted, shop.sink, 3, batch=1)], scan_start)
    assert shop.values() == [3]


def test_a_recreated_table_is_reported_while_a_driver_runs(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.recreate()
    with pytest.raises(ConfigurationError, match="and recreated"):
        driver.committer.confirm([handle], 0)
    assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert "and recreated" in driver.committer.blockers()[0]
    with pytest.raises(ConfigurationError, match="and recreated"):
        driver.begin()
    assert shop.values() == []


def test_a_table_altered_before_the_decision_voids_the_attempt(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1)
    shop.alter()
    with pytest.raises(RetriableError, match="was altered while this batch was being written"):
        driver.committer.confirm([handle], 0)


# -- files that are missing --------------------------------------------------------------------------------------------


def test_a_file_missing_before_the_decision_voids_the_attempt(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    shop.files()[0].unlink()
    with pytest.raises(RetriableError, match="missing or have been changed"):
        driver.committer.confirm([handle], 0)


def test_a_file_truncated_before_the_decision_voids_the_attempt(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    [file] = shop.files()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RetriableError, match="missing or have been changed"):
        driver.committer.confirm([handle], 0)


def test_files_missing_after_the_decision_are_proven_lost_and_the_others_are_committed(
    shop: LakeShop,
) -> None:
    """ABORTED must be final, even if the files come back: their rows are written again."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    lost = prepare(driver, shop.sink, 1)
    [file] = shop.files()
    kept = prepare(driver, shop.sink, 2)
    driver.committer.confirm([lost, kept], 0)
    content = file.read_bytes()
    file.unlink()
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED]
    file.write_bytes(content)
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED]
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([lost, kept], scan_start) == {lost: ABORTED, kept: COMMITTED}
    assert shop.values() == [2]


def test_a_repair_adds_only_the_lost_rows(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    lost, kept = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    for file in shop.files(f"{lost.transaction}*"):
        file.unlink()
    assert evidence(driver, [lost, kept], scan_start) == [ABORTED, COMMITTED]
    driver.begin()
    repaired = prepare(driver, shop.sink, 1, attempt=2)
    # A repair uses the decision's scan_start.
    assert evidence(driver, [kept, repaired], scan_start) == [COMMITTED, COMMITTED]
    assert evidence(driver, [kept, repaired], scan_start) == [COMMITTED, COMMITTED]
    assert shop.values() == [1, 2]


def test_an_outcome_that_the_table_does_not_record_is_unknown(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1)
    assert driver.committer.prove([handle], scan_start) == {handle: UNKNOWN}


def test_a_transaction_whose_rows_are_missing_from_the_commit_does_not_count_as_committed(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    first, second = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)
    assert evidence(driver, [first], scan_start) == [COMMITTED]
    assert evidence(driver, [first, second], scan_start) == [UNKNOWN, UNKNOWN]


# -- files that maintenance may be about to delete ---------------------------------------------------------------------


def test_an_original_deleted_between_two_attempts_to_commit_its_copy_does_no_harm(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)
    [original] = shop.files()

    def vacuumed(send: Send) -> None:
        original.unlink()
        shop.overtake()
        send()

    with shop.next_commits(vacuumed):
        assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.values() == [1, 2]


@pytest.mark.parametrize("is_last", [True, False])
def test_files_deleted_between_two_attempts_to_commit_count_as_lost(shop: LakeShop, *, is_last: bool) -> None:
    """The table must never name a missing file: no one could read the table any more."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    kept, lost = prepare(driver, shop.sink, 1), prepare(driver, shop.sink, 2)

    def vacuumed(send: Send) -> None:
        for file in shop.files(f"{lost.transaction}*"):
            file.unlink()
        if is_last:
            lost_request(send)
        shop.overtake()
        send()

    with shop.next_commits(vacuumed):
        assert evidence(driver, [kept, lost], scan_start) == [COMMITTED, ABORTED]
    assert shop.values() == [1]


def test_maintenance_that_began_before_a_late_commit_deletes_no_row_of_the_batch(shop: LakeShop) -> None:
    """Maintenance first lists the files to delete, and deletes them later, without another look at the table."""
    former = Driver(shop.sink)
    scan_start = former.begin()
    handles = [prepare_long_ago(shop, former, 1, 2), prepare_long_ago(shop, former, 3)]
    garbage = shop.garbage()
    assert len(garbage) == 2
    driver = Driver(shop.sink)
    assert set(driver.committer.initialize_state(handles, scan_start).values()) == {COMMITTED}
    for file in garbage:
        file.unlink()
    assert shop.values() == [1, 2, 3]
    assert evidence(driver, handles, scan_start) == [COMMITTED, COMMITTED]
    driver.committer.recover_and_abort(handles)
    assert shop.values() == [1, 2, 3]


def test_young_files_are_not_copied(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    written = {file.name for file in shop.files()}
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.named_files() == written


def test_starts_whose_commits_fail_share_one_copy_of_each_file(
    shop: LakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit may be blocked for weeks, and the query may be restarted every minute."""
    driver = Driver(shop.named("orders", timeout_ms=100))
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)
    for _ in range(2):
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(LakeStep, "end", _fail)
            assert evidence(driver, [handle], scan_start) == [UNKNOWN]
    assert len(shop.files()) == 2
    assert "sink 'orders': 1 files of batch 0 are old" in caplog.text
    copies = {file.name for file in shop.files("*-copy-*")}
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert shop.named_files() == copies
    assert shop.values() == [1, 2]


@pytest.mark.parametrize("days", [0, 3])
def test_a_copy_is_used_after_maintenance_has_deleted_its_original(shop: LakeShop, days: int) -> None:
    """Between two starts, maintenance deletes the original, and leaves the copy because it is young."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)
    [original] = shop.files()
    at_ms = time.time_ns() // 1_000_000 - days * 24 * 3_600_000
    copies = [Path(new_copy(str(original), at_ms - age_ms)) for age_ms in (0, 1, 2)]
    for copy, missing in zip(copies, (1, 0, 0), strict=True):
        copy.write_bytes(original.read_bytes()[: original.stat().st_size - missing])
    original.unlink()
    restarted = Driver(shop.sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    assert shop.values() == [1, 2]
    is_young = not days
    assert (shop.named_files() == {copies[1].name}) is is_young
    assert {original_of(name) for name in shop.named_files()} == {original.name}


@pytest.mark.parametrize(("days", "missing"), [(3, 0), (0, 1)], ids=["old", "incomplete"])
def test_an_old_or_incomplete_copy_is_not_used_again(shop: LakeShop, *, days: int, missing: int) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)
    [file] = shop.files()
    copy = Path(new_copy(str(file), time.time_ns() // 1_000_000 - days * 24 * 3_600_000))
    copy.write_bytes(file.read_bytes()[: file.stat().st_size - missing])
    assert evidence(driver, [handle], scan_start) == [COMMITTED]
    assert len(shop.files()) == 3
    assert shop.named_files().isdisjoint({file.name, copy.name})
    assert shop.values() == [1, 2]


def test_a_file_that_maintenance_deletes_before_it_is_copied_is_lost(shop: LakeShop) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare_long_ago(shop, driver, 1, 2)

    def deleted(files: Any, path: str, copy: str) -> None:
        for file in shop.files():
            file.unlink()
        copy_file(files, path, copy)

    kind: Any = type(shop.view().files)
    copy_file = kind.copy
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "copy", deleted)
        assert evidence(driver, [handle], scan_start) == [ABORTED]
    assert shop.values() == []


def test_a_batch_whose_files_grew_old_while_the_driver_was_suspended_is_not_decided(shop: LakeShop) -> None:
    """The driver's own clock stands still in the meantime, but the clock of the table's maintenance does not."""
    driver = Driver(shop.sink)
    driver.begin()
    handle = prepare_long_ago(shop, driver, 1)
    with pytest.raises(CheckpointExpiredError, match="oldest file may be 691"):
        driver.committer.confirm([handle], 0)


def _fail(step: LakeStep[Any, Any], timeout_ms: float) -> None:
    del step, timeout_ms
    raise StoreError("the storage does not respond")
