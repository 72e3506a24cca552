"""Write-once registers: put-if-absent is enough to keep a log with one driver at a time."""

from __future__ import annotations

import multiprocessing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.registers_support import (
    BEGIN,
    FaultyFiles,
    assert_equal,
    claim,
    decision,
    files,
    log,
    no_answer,
    records,
    truncation,
)
from twopc.errors import DecisionInDoubtError, DecisionLogDamagedError, FencedError, RetriableError
from twopc.files import LocalFiles
from twopc.log_view import LogStatus, fold
from twopc.records import Acquired, Begin, Decision, LogEntry
from twopc.register_reader import packed
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["files", "log"]

# -- one driver --------------------------------------------------------------------------------------------------------


def test_an_empty_directory_is_an_empty_log_at_offset_0(files: FaultyFiles) -> None:
    assert (RegisterLog(files).inspect().start, records(RegisterLog(files))) == (0, [])
    assert fold(RegisterLog(files).inspect()).status is LogStatus.UNDECIDED


def test_an_inspection_of_a_missing_directory_creates_no_files(tmp_path: Path) -> None:
    log = RegisterLog(LocalFiles(tmp_path / "twopc"))
    assert (log.inspect().start, log.identity()) == (0, "")
    assert not (tmp_path / "twopc").exists()


def test_the_driver_epoch_is_the_number_of_the_drivers_first_register(files: FaultyFiles) -> None:
    first, second = RegisterLog(files), RegisterLog(files)
    assert first.acquire(claim("one")) == 0
    assert first.append([BEGIN, decision(0)]) == 1
    assert second.acquire(claim("two")) == 2


def test_a_run_that_acquires_the_log_again_keeps_its_driver_epoch(log: RegisterLog, files: FaultyFiles) -> None:
    assert log.acquire(claim("one")) == 0
    RegisterLog(files).acquire(claim("two"))
    assert log.acquire(claim("one")) == 0
    assert len(records(log)) == 2


def test_records_of_the_same_append_share_an_offset(log: RegisterLog) -> None:
    position = log.append([BEGIN, decision(0)])
    assert (*log.inspect().entries,)[1:] == (LogEntry(position, BEGIN), LogEntry(position, decision(0)))


def test_a_driver_reads_up_to_its_own_acquisition(log: RegisterLog, files: FaultyFiles) -> None:
    log.append([BEGIN, decision(0)])
    second = RegisterLog(files)
    second.acquire(claim("two"))
    second.append([decision(1)])
    kinds = [type(entry.record) for entry in second.read().entries]
    assert kinds == [Acquired, Begin, Decision, Acquired]


def test_a_driver_owns_the_log_until_another_driver_acquires_it(log: RegisterLog, files: FaultyFiles) -> None:
    log.append([BEGIN, decision(0)])
    log.require_owner()
    RegisterLog(files).acquire(claim("two"))
    with pytest.raises(FencedError, match="owns this checkpoint now"):
        log.require_owner()


def test_the_identity_is_kept_until_the_log_is_recreated(log: RegisterLog, files: FaultyFiles) -> None:
    identity = log.identity()
    assert len(identity) == 32
    other = RegisterLog(files)
    other.acquire(claim("two"))
    assert other.identity() == identity
    for found in files.names("registers"):
        files.remove(f"registers/{found}")
    recreated = RegisterLog(files)
    recreated.acquire(claim("three"))
    assert recreated.identity() not in {"", identity}


def test_the_next_driver_creates_an_identity_that_a_crash_prevented(log: RegisterLog, files: FaultyFiles) -> None:
    files.remove("registers/id")
    assert records(RegisterLog(files)) == records(log)
    RegisterLog(files).acquire(claim("two"))
    assert log.identity() != ""


def test_append_and_read_before_acquire_are_reported_as_bugs(files: FaultyFiles) -> None:
    with pytest.raises(AssertionError):
        RegisterLog(files).append([decision(0)])
    with pytest.raises(AssertionError):
        RegisterLog(files).read()


def test_foreign_files_in_the_directory_are_ignored(log: RegisterLog, files: FaultyFiles) -> None:
    for foreign in (
        ".00000000000000000001.tmp",
        "1",
        "00000000000000000001.bak",
        "README",
        "0000000000000000000\u0661",
    ):
        files.put_if_absent(f"registers/{foreign}", b"x")
    assert log.append([BEGIN, decision(0)]) == 1
    assert len(records(log)) == 3


# -- two drivers -------------------------------------------------------------------------------------------------------


def test_a_fenced_driver_stays_fenced_and_its_error_identifies_the_successor(
    log: RegisterLog, files: FaultyFiles
) -> None:
    RegisterLog(files).acquire(claim("winner"))
    for _ in range(2):
        with pytest.raises(FencedError, match="run winner"):
            log.append([BEGIN, decision(0)])
        with pytest.raises(FencedError, match="run winner"):
            log.read()
    assert [type(record) for record in records(log)] == [Acquired, Acquired]


def test_a_driver_that_keeps_appending_is_eventually_fenced(files: FaultyFiles) -> None:
    owner = RegisterLog(LocalFiles(files.location))
    owner.acquire(claim("busy"))

    class Late(LocalFiles):
        appended = 0

        def put_if_absent(self, name: str, data: bytes) -> bool:
            if self.appended < 30:
                owner.append([decision(self.appended)])
                self.appended += 1
            return super().put_if_absent(name, data)

    assert RegisterLog(Late(files.location)).acquire(claim("next")) == 31
    with pytest.raises(FencedError, match="run next"):
        owner.append([decision(30)])


def test_the_loser_of_a_race_for_a_register_writes_the_next_one(files: FaultyFiles) -> None:
    first, second = RegisterLog(files), RegisterLog(files)
    files.before_put = lambda: assert_equal(second.acquire(claim("two")), 0)
    assert first.acquire(claim("one")) == 1
    with pytest.raises(FencedError):
        second.append([decision(0)])


def test_acquire_gives_up_after_losing_every_register(files: FaultyFiles) -> None:
    class Taken(LocalFiles):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            return not name or not data

    with pytest.raises(RetriableError, match="in a row"):
        RegisterLog(Taken(files.location)).acquire(claim("one"))


def _claim_and_append(root: str, run: str, results: multiprocessing.Queue[tuple[str, int, int]]) -> None:
    log = RegisterLog(LocalFiles(root))
    driver_epoch = log.acquire(claim(run))
    written = 0
    try:
        # The two others lose at most 2 * (20 + 1) registers to this one: fewer than a claimant tries.
        for batch in range(20):
            log.append([decision(batch)])
            written += 1
    except FencedError:
        pass
    results.put((run, driver_epoch, written))


def test_each_of_several_racing_processes_writes_until_the_next_one_fences_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[str, int, int]] = context.Queue()
    processes = [context.Process(target=_claim_and_append, args=(str(tmp_path), f"run{i}", results)) for i in range(3)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    entries = RegisterLog(LocalFiles(tmp_path)).inspect().entries
    assert [entry.offset for entry in entries] == list(range(len([*entries])))
    acquisitions = {entry.offset: entry.record.run for entry in entries if isinstance(entry.record, Acquired)}
    assert acquisitions == {driver_epoch: run for run, driver_epoch, _ in found}
    starts = [*sorted(acquisitions), len([*entries])]
    written = {run: (driver_epoch, count) for run, driver_epoch, count in found}
    for start, end in pairwise(starts):
        assert written[acquisitions[start]] == (start, end - start - 1)


# -- writes without a response ------------------------------------------------------------------------------------------


def test_an_unanswered_write_that_is_found_counts_as_success(log: RegisterLog, files: FaultyFiles) -> None:
    files.after_put = no_answer
    assert log.append([BEGIN, decision(0)]) == 1
    assert log.append([decision(1)]) == 2


def test_a_write_repeated_by_the_client_library_counts_as_success(log: RegisterLog, files: FaultyFiles) -> None:
    files.repeats_put = True  # the second try finds the file of the first
    assert log.append([BEGIN, decision(0)]) == 1


def test_an_unanswered_write_that_is_not_found_may_be_retried(log: RegisterLog, files: FaultyFiles) -> None:
    files.before_put = no_answer
    with pytest.raises(RetriableError, match="no answer"):
        log.append([BEGIN, decision(0)])
    assert log.append([BEGIN, decision(0)]) == 1


def test_a_driver_is_fenced_if_another_driver_preceded_its_unanswered_write(
    log: RegisterLog, files: FaultyFiles
) -> None:
    def lose() -> None:
        RegisterLog(LocalFiles(files.location)).acquire(claim("winner"))
        no_answer()

    files.before_put = lose
    with pytest.raises(FencedError, match="run winner"):
        log.append([BEGIN, decision(0)])


@pytest.mark.parametrize("written", [True, False])
def test_an_unanswered_write_that_cannot_be_read_back_is_in_doubt(
    *, written: bool, log: RegisterLog, files: FaultyFiles
) -> None:
    files.before_read = no_answer
    if written:
        files.after_put = no_answer
    else:
        files.before_put = no_answer
    with pytest.raises(DecisionInDoubtError, match="Restart"):
        log.append([BEGIN, decision(0)])
    kinds = [type(record) for record in records(RegisterLog(files))]
    assert kinds == [Acquired, Begin, Decision] if written else [Acquired]


def test_a_driver_does_not_mistake_its_own_late_write_for_the_current_one(log: RegisterLog, files: FaultyFiles) -> None:
    files.before_read = files.after_put = no_answer
    with pytest.raises(DecisionInDoubtError):
        log.append([BEGIN, decision(0)])
    with pytest.raises(FencedError):
        log.append([BEGIN, decision(0)])


def test_an_unanswered_acquisition_may_be_retried(files: FaultyFiles) -> None:
    log = RegisterLog(files)
    files.before_read = files.after_put = no_answer
    with pytest.raises(RetriableError, match="acquiring the decision log"):
        log.acquire(claim("one"))
    assert log.acquire(claim("one")) == 1
    assert [type(entry.record) for entry in log.read().entries] == [Acquired, Acquired]


# -- stored bytes ------------------------------------------------------------------------------------------------------

PACKED = packed([BEGIN, decision(0), truncation(0)])


def _read(directory: Path, data: bytes) -> list[LogEntry]:
    log = RegisterLog(LocalFiles(directory))
    LocalFiles(directory).put_if_absent("registers/id", b"0" * 32)
    LocalFiles(directory).put_if_absent("registers/00000000000000000000", data)
    return list(log.inspect().entries)


def test_a_register_returns_its_records_in_order(tmp_path: Path) -> None:
    assert [entry.record for entry in _read(tmp_path, PACKED)] == [BEGIN, decision(0), truncation(0)]


def test_two_writes_never_have_the_same_bytes() -> None:
    assert packed([BEGIN]) != packed([BEGIN])


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_an_altered_byte_is_detected(tmp_path_factory: pytest.TempPathFactory, position: int, difference: int) -> None:
    altered = bytearray(PACKED)
    altered[position] ^= difference
    with pytest.raises(DecisionLogDamagedError, match="00000000000000000000 cannot be read"):
        _read(tmp_path_factory.mktemp("altered"), bytes(altered))


@given(st.integers(0, len(PACKED) - 1))
def test_a_shortened_register_is_detected(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    with pytest.raises(DecisionLogDamagedError, match="00000000000000000000 cannot be read"):
        _read(tmp_path_factory.mktemp("shortened"), PACKED[:length])
