"""What Spark's own row checksums (SPARK-53575, Spark 4.1) do for a batch whose shuffle is rewritten; see rule 6.

This toolkit is not involved: each test runs a plain function under ``foreachBatch``, and counts the rows that its tasks
report. The first test is the control: without the checksums, rows are lost and duplicated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest

from tests.live.retried_shuffles import BETWEEN, FAILED, ROWS, Options
from tests.live.spark_support import processes_of, wait_until
from tests.live.test_spark_executors import CLUSTER, executor_of, is_stopped
from twopc.integration.services.guard import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark has the checksums from 4.1 on"),
]

CHECKSUMS = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
_ABORTED = "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot rollback the ResultStage"
_SCRIPT = Path(__file__).with_name("retried_shuffles.py")
_TIMEOUT_S = 200.0


class Program:
    """The script, its input, and the workers of it that have stopped."""

    def __init__(self, root: Path, *, are_on: bool, **options: Any) -> None:
        self.given = Counter(f"v{number:04d}" for number in range(400))
        (root / "in").mkdir()
        for number in range(4):
            values = sorted(self.given)[number::4]
            rows = [json.dumps({"key": value, "value": value}) for value in values]
            (root / "in" / f"{number}.json").write_text("\n".join(rows))
        (root / "run").mkdir()
        self._gate, self._log = root / "run/gate", root / "log"
        spark = {
            **CLUSTER,
            **(CHECKSUMS if are_on else dict.fromkeys(CHECKSUMS, "false")),
            **options.pop("spark", {}),
        }
        given = Options(directory=str(root / "in"), spark=spark, **options)
        command = [sys.executable, str(_SCRIPT), json.dumps(dataclasses.asdict(given))]
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        command = ["env", f"PYTHONPATH={paths}", *command]
        self._process = GuardedProcess(command, log=self._log, cwd=root / "run")
        self._session = os.getpgid(self._process.pid)

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def workers(self, count: int) -> list[psutil.Process]:
        """Wait until this number of workers has stopped."""
        found: list[psutil.Process] = []

        def are_there() -> bool:
            found[:] = [one for one in processes_of(self._session) if is_stopped(one) and one.pid != self._process.pid]
            return len(found) >= count or self._process.exit_code is not None

        wait_until(are_there, f"{count} workers stopped: {self._log}", _TIMEOUT_S)
        assert len(found) >= count, self.text[-3000:]
        return found

    def open_gate(self) -> None:
        self._gate.touch()

    def stopped_between(self) -> psutil.Process:
        """Wait until the program has stopped itself between its jobs; returns a worker that has written the shuffle."""
        program = psutil.Process(self._process.pid)
        wait_until(lambda: is_stopped(program) or self._process.exit_code is not None, self._log.name, _TIMEOUT_S)
        [worker] = re.findall(f"{BETWEEN}([0-9]+)", self.text)
        return psutil.Process(int(worker))

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)

    def outcome(self) -> list[Counter[str]] | str:
        """The rows of each job, or the error."""
        assert self._process.wait(_TIMEOUT_S) is not None, self.text[-3000:]
        rows = [line for line in self.text.splitlines() if line.startswith(ROWS)]
        if rows:
            return [Counter(job) for job in json.loads(rows[0].removeprefix(ROWS))]
        return next(line for line in self.text.splitlines() if line.startswith(FAILED))

    def close(self) -> None:
        for process in processes_of(self._session):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def program(root: Path, **options: Any) -> Iterator[Program]:
    one = Program(root, **options)
    try:
        yield one
    finally:
        one.close()


def let_go(workers: list[psutil.Process]) -> None:
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()


def kill_one_of_two(run: Program) -> list[psutil.Process]:
    """Kill the executor of one of the stopped workers; returns both workers."""
    workers = run.workers(2)
    run.open_gate()
    executor_of(workers[0]).kill()
    return workers


@pytest.mark.parametrize("plan", ["one", "two"])
def test_without_the_checksums_rows_are_lost_and_duplicated(plan: str, tmp_path: Path) -> None:
    with program(tmp_path, plan=plan, stops=(2, 3), are_on=False) as run:
        let_go(kill_one_of_two(run))
        outcome = run.outcome()
    assert isinstance(outcome, list), outcome
    [rows] = outcome
    assert rows - run.given
    assert run.given - rows


def test_a_job_is_aborted_if_a_task_of_its_result_stage_has_finished(tmp_path: Path) -> None:
    with program(tmp_path, plan="one", stops=(2, 3), are_on=True) as run:
        let_go(kill_one_of_two(run))
        outcome = run.outcome()
    assert isinstance(outcome, str), outcome
    assert _ABORTED in outcome


def test_a_result_stage_without_a_finished_task_is_run_again_as_a_whole(tmp_path: Path) -> None:
    with program(tmp_path, plan="one", stops=(0, 1, 2, 3), are_on=True) as run:
        kill_one_of_two(run)
        outcome = run.outcome()  # the other worker is still stopped
    assert outcome == [run.given]


def test_a_stage_between_two_shuffles_is_run_again_as_a_whole(tmp_path: Path) -> None:
    with program(tmp_path, plan="two", stops=(2, 3), are_on=True) as run:
        let_go(kill_one_of_two(run))
        outcome = run.outcome()
    assert outcome == [run.given]


def after_a_loss_before_the_last_job(root: Path, **options: Any) -> tuple[Counter[str], list[Counter[str]]]:
    """Kill an executor that stores a part of the shuffle, before the last job.

    Returns the input, and the rows of each job.
    """
    apart = {"spark.shuffle.reduceLocality.enabled": "false"}
    with program(root, are_on=True, spark=apart, **options) as run:
        executor_of(run.stopped_between()).kill()
        wait_until(lambda: "Lost executor" in run.text, "Spark has noticed")
        run.resume()
        outcome = run.outcome()
    assert isinstance(outcome, list), outcome
    return run.given, outcome


@pytest.mark.parametrize("plan", ["one", "two"])
def test_a_second_job_over_the_same_batch_reads_each_row_once(plan: str, tmp_path: Path) -> None:
    """Reads the shuffle again, as a retry does."""
    given, jobs = after_a_loss_before_the_last_job(tmp_path, plan=plan, jobs=2)
    assert jobs == [given, given]


def test_two_jobs_that_split_a_batch_lose_and_duplicate_rows(tmp_path: Path) -> None:
    """As two DataFrames of one batch do: Spark has forgotten the first job when the second one writes the shuffle again."""
    given, jobs = after_a_loss_before_the_last_job(tmp_path, plan="one", jobs=2, split=True)
    assert jobs[0] + jobs[1] != given


def test_a_partly_lost_cache_loses_and_duplicates_rows(tmp_path: Path) -> None:
    given, [rows] = after_a_loss_before_the_last_job(tmp_path, plan="cache")
    assert rows != given
