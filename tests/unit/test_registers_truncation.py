"""Registers that are truncated, torn, or have gaps."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.registers_support import (
    BEGIN,
    FaultyFiles,
    assert_equal,
    claim,
    decision,
    files,
    log,
    name,
    records,
    truncation,
)
from twopc.errors import DecisionLogDamagedError, FencedError, RetriableError
from twopc.files import LocalFiles
from twopc.log_view import fold
from twopc.register_reader import packed
from twopc.registers import RegisterLog
from twopc.sealed import with_check

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["files", "log"]

# -- truncation --------------------------------------------------------------------------------------------------------


def fill(log: RegisterLog, batches: int) -> None:
    log.append([BEGIN, decision(0)])
    for batch in range(1, batches):
        log.append([decision(batch)])


def truncate(log: RegisterLog, log_start: int) -> int:
    position = log.append([truncation(log_start)])
    log.truncate(log_start)
    return position


def test_a_truncated_log_starts_at_its_recorded_start(log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 6)
    truncate(log, 4)
    contents = RegisterLog(files).inspect()
    assert contents.start == next(iter(contents.entries)).offset == 4
    view = fold(contents)
    assert (view.damage, view.highest_batch, view.begin) == (None, 5, BEGIN)
    assert files.names("registers") == [*(f"{n:020d}" for n in range(4, 8)), "id"]


@pytest.mark.parametrize("deleted", range(5))
def test_after_an_interrupted_truncation_the_log_reads_as_after_a_finished_one(
    deleted: int, log: RegisterLog, files: FaultyFiles
) -> None:
    fill(log, 6)
    log.append([truncation(4)])
    for number in range(deleted):
        files.remove(name(number))
    contents = RegisterLog(files).inspect()
    assert (contents.start, fold(contents).damage) == (4, None)


def test_a_failed_truncation_is_only_logged(
    log: RegisterLog, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log, 3)

    def refuse(name: str) -> None:
        raise OSError(f"{name}: read-only")

    monkeypatch.setattr(files, "remove", refuse)
    truncate(log, 2)
    assert "read-only" in caplog.text
    assert log.inspect().start == 2


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_gap_counts_as_damage(missing: int, log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 4)
    files.remove(name(missing))
    with pytest.raises(DecisionLogDamagedError, match=rf"registers \[{missing}\] are missing"):
        RegisterLog(files).inspect()


def test_a_gap_above_a_truncation_counts_as_damage(log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 6)
    truncate(log, 4)
    files.remove(name(4))
    with pytest.raises(DecisionLogDamagedError, match=r"\[4\]"):
        RegisterLog(files).inspect()


def test_a_log_with_nothing_but_its_identity_counts_as_damage(log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 2)
    for number in range(3):
        files.remove(name(number))
    with pytest.raises(DecisionLogDamagedError, match="all registers"):
        RegisterLog(files).inspect()


def test_a_driver_whose_own_acquisition_is_missing_reports_damage(log: RegisterLog, files: FaultyFiles) -> None:
    files.remove(name(0))
    with pytest.raises(DecisionLogDamagedError):
        log.read()


@pytest.mark.parametrize("rest", [b"", b"x", b"\n", b"twopc-register/1 \n"])
def test_a_torn_register_counts_as_damage(rest: bytes, log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 1)
    files.remove(name(1))
    files.put_if_absent(name(1), rest)
    with pytest.raises(DecisionLogDamagedError, match="00000000000000000001"):
        log.inspect()


def test_a_newer_register_format_is_mentioned_in_the_error(log: RegisterLog, files: FaultyFiles) -> None:
    files.put_if_absent(name(1), with_check(b'{"format":"twopc-register/2","log":{}}'))
    with pytest.raises(DecisionLogDamagedError, match="Use the version that wrote the file"):
        log.inspect()


def test_a_reader_overtaken_by_a_truncation_reads_again(log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 6)
    reader_files = FaultyFiles(files._root)
    reader_files.before_read = lambda: assert_equal(truncate(log, 5), 7)
    contents = RegisterLog(reader_files).inspect()
    assert (contents.start, [entry.offset for entry in contents.entries]) == (5, [5, 6, 7])


def test_a_register_truncated_while_it_is_read_does_not_count_as_damaged(log: RegisterLog, files: FaultyFiles) -> None:
    fill(log, 6)
    contents = RegisterLog(files).inspect()
    truncate(log, 5)
    with pytest.raises(RetriableError, match="another driver has truncated the log"):
        fold(contents)


def test_a_start_keeps_one_decision_in_memory_and_reads_only_above_the_truncation(
    log: RegisterLog, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole decisions of 5000 tasks are 5 MB each. Nothing below the truncation is read, even if it could not be deleted."""
    monkeypatch.setattr(files, "remove", lambda _: None)
    task = decision(0).tasks[0]
    tasks = tuple(msgspec.structs.replace(task, partition=n) for n in range(500))
    whole = msgspec.structs.replace(decision(0), tasks=tasks)
    log.append([BEGIN, whole])
    for batch in range(1, 60):
        log.append([msgspec.structs.replace(whole, batch_id=batch)])
    truncate(log, 31)
    starting, read = RegisterLog(files), Counter[str]()
    really = files.read
    monkeypatch.setattr(files, "read", lambda name: really(name) if read.update([name]) is None else None)
    tracemalloc.start()
    try:
        view = fold(starting.inspect())
        starting.acquire(claim("next"))
        assert fold(starting.read()).kept == view.kept
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (view.highest_batch, len(view.kept)) == (59, 30)
    assert peak_bytes < 20 * len(really(name(40)) or b"")
    assert min(found for found in read if found != "registers/id") == name(31)
    assert read[name(40)] == 2, "the register should be read once to inspect it and once for its content"


# The trap: a fenced driver pauses; a newer driver writes and drops the register that the fenced one would write next.
# That register looks free.


def run_far_ahead(root: Path, *, truncate_to: int) -> RegisterLog:
    winner = RegisterLog(LocalFiles(root))
    winner.acquire(claim("winner"))
    fill(winner, 9)
    truncate(winner, truncate_to)
    return winner


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_paused_driver_is_fenced_even_if_its_next_register_looks_free(
    ahead: int, log: RegisterLog, files: FaultyFiles
) -> None:
    winner = run_far_ahead(files._root, truncate_to=1 + ahead)
    assert files.read(name(1)) is None
    before = records(winner)
    with pytest.raises(FencedError):
        log.append([BEGIN, decision(0)])
    assert files.read(name(1)) is None
    assert records(winner) == before
    winner.append([decision(9)])


def test_two_paused_drivers_do_not_confirm_each_other(log: RegisterLog, files: FaultyFiles) -> None:
    second = RegisterLog(files)
    second.acquire(claim("two"))  # at 1: this driver's next register is 2, and the first driver's is 1
    run_far_ahead(files._root, truncate_to=6)
    files.put_if_absent(name(1), b"the first driver's, killed before it could remove it")
    with pytest.raises(FencedError):
        second.append([BEGIN, decision(0)])
    with pytest.raises(FencedError):
        log.append([BEGIN, decision(0)])


def test_a_driver_paused_in_acquire_since_the_log_was_empty_checks_again(files: FaultyFiles) -> None:
    paused = RegisterLog(files)
    files.before_put = lambda: assert_equal(run_far_ahead(files._root, truncate_to=5).name, "registers")
    assert paused.acquire(claim("paused")) == 11
    assert files.read(name(0)) is None
    assert fold(paused.read()).highest_batch == 8


def test_a_fenced_drivers_register_below_the_truncation_is_ignored_and_later_removed(
    log: RegisterLog, files: FaultyFiles
) -> None:
    winner = run_far_ahead(files._root, truncate_to=4)
    files.put_if_absent(name(1), packed([BEGIN, decision(77)]))
    files.put_if_absent(name(2), b"torn")
    assert next(iter(winner.inspect().entries)).offset == 4
    assert fold(winner.inspect()).highest_batch == 8
    truncate(winner, 6)
    assert files.read(name(1)) is None
    assert log.inspect().start == 6


def test_a_write_stays_valid_even_if_the_register_before_it_is_dropped_meanwhile(
    log: RegisterLog, files: FaultyFiles
) -> None:
    def successor() -> None:
        winner = RegisterLog(LocalFiles(files.location))
        winner.acquire(claim("winner"))
        truncate(winner, 1)

    files.after_put = successor  # register 0 is dropped between the write at 1 and the check after it
    assert log.append([BEGIN, decision(0)]) == 1
    assert fold(RegisterLog(files).inspect()).highest_batch == 0
    with pytest.raises(FencedError):
        log.append([decision(1)])
