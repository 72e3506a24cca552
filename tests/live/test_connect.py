"""``exactly_once`` under Spark Connect, into Kafka: the function runs in a process of the server, not in the client."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.live.connect_calls import OUTCOME
from tests.live.spark_query import Options, encoded
from tests.live.spark_support import BY_TASKS, Pipeline, processes_of, spark_ui, wait_until
from tests.live.test_spark_checksums import CHECKSUMS
from tests.live.test_spark_executors import is_stopped
from twopc.crash_points import POINTS
from twopc.integration.services.guard import GuardedProcess

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    import psutil

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

pytestmark = pytest.mark.calm

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 200.0
#: The steps of a batch at which the function's process may die.
_OF_DRIVER = [point for point in POINTS if point.startswith("driver.")]


def pipeline_of(kafka: KafkaService, root: Path, **options: Any) -> Pipeline:
    return Pipeline(kafka.bootstrap_servers, root, max_offsets=20, is_connect=True, **options)


def stopped_worker(run: Run) -> psutil.Process:
    """Wait until the process of the function has stopped itself at a crash point."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found[:] = filter(is_stopped, processes_of(run.session))
        return bool(found) or run.wait(0) is not None

    wait_until(is_there, f"a process has stopped: {run.log}", _TIMEOUT_S)
    assert found, run.text[-3000:]
    return found[0]


@pytest.mark.whole
@pytest.mark.parametrize("write_by", ["auto", "tasks"])
def test_batches_are_written_exactly_once_before_and_after_a_restart(
    write_by: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings={"write_by": write_by})
    try:
        for _ in range(2):
            pipeline.feed(60)
            run = pipeline.process()
            assert run.ended(_TIMEOUT_S) == 0, run.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()
    pipeline.require_order()


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_next_start_recovers_after_the_functions_process_is_killed(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=BY_TASKS)
    try:
        for point in _OF_DRIVER:
            pipeline.feed(20)
            run = pipeline.process(f"{point}=kill")
            assert run.ended(_TIMEOUT_S) == 1, f"{point}: {run.text[-3000:]}"
            assert "failed:" in run.text
        pipeline.feed(20)
        last = pipeline.process()
        assert last.ended(_TIMEOUT_S) == 0, last.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_task_whose_worker_is_killed_is_repeated_and_nothing_is_duplicated(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=BY_TASKS)
    try:
        pipeline.feed(20)
        run = pipeline.process("task.prepared=kill")
        assert run.ended(_TIMEOUT_S) == 1, run.text[-3000:]  # each new worker dies as well, until Spark gives up
        again = pipeline.process()
        assert again.ended(_TIMEOUT_S) == 0, again.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_process_that_wakes_up_after_its_successor_has_begun_decides_nothing(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=BY_TASKS)
    try:
        pipeline.feed(40)
        zombie = pipeline.process("driver.confirmed=stop")
        process = stopped_worker(zombie)
        successor = pipeline.process()
        assert successor.ended(_TIMEOUT_S) == 0, successor.text[-3000:]
        process.resume()
        assert zombie.ended(_TIMEOUT_S) == 1, zombie.text[-3000:]
        assert "FencedError" in zombie.text, zombie.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_shuffle_is_refused_before_anything_is_written_unless_the_user_asserts_a_deterministic_plan(
    kafka: KafkaService, tmp_path: Path
) -> None:
    off = dict.fromkeys(CHECKSUMS, "false")
    pipeline = pipeline_of(kafka, tmp_path, plan="shuffle", spark=off)
    try:
        pipeline.feed(20)
        run = pipeline.process()
        assert run.ended(_TIMEOUT_S) == 1, run.text[-3000:]
        assert "may shuffle the batch's rows (shuffles in the query: 1, in the DataFrames: 0)" in run.text, run.text[
            -3000:
        ]
        missing = "Spark 4.1 or newer" if pyspark.__version__ < "4.1" else "orderIndependentChecksum.enabled=true"
        assert missing in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process(settings={"checkpoints": {"deterministic_plan": True}})
        assert again.ended(_TIMEOUT_S) == 0, again.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_shuffle_is_written_once_the_servers_ui_can_be_reached(kafka: KafkaService, tmp_path: Path) -> None:
    """The driver writes the first batches itself, and tasks write the others."""
    ui, config = spark_ui()
    pipeline = pipeline_of(kafka, tmp_path, plan="unstable", settings=config)
    try:
        pipeline.feed(60)
        run = pipeline.process()
        assert run.ended(_TIMEOUT_S) == 1, run.text[-3000:]
        assert f"CheckpointConfig(spark_ui='{config['checkpoints']['spark_ui']}')" in run.text, run.text[-3000:]
        assert "The server must run with spark.ui.enabled=true" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        for way in ({}, BY_TASKS):
            again = pipeline.process(spark=ui, settings=config | way)
            assert again.ended(_TIMEOUT_S) == 0, again.text[-3000:]
            pipeline.feed(60)
        last = pipeline.process(spark=ui)
        assert last.ended(_TIMEOUT_S) == 0, last.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_server_that_drops_reports_stops_the_query_until_the_suggested_setting_is_applied(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Everything that the UI shows may look right; only the count of the dropped reports shows that some are missing."""
    ui, config = spark_ui()
    pipeline = pipeline_of(kafka, tmp_path, plan="unstable", settings=BY_TASKS | config)
    try:
        pipeline.feed(60)
        run = pipeline.process(spark=ui | {"spark.scheduler.listenerbus.eventqueue.appStatus.capacity": "1"})
        assert run.ended(_TIMEOUT_S) == 1, run.text[-3000:]
        assert "spark.scheduler.listenerbus.eventqueue.capacity (default: 10000)" in run.text, run.text[-3000:]
        assert not pipeline.visible()
        again = pipeline.process(spark=ui | {"spark.scheduler.listenerbus.eventqueue.capacity": "20000"})
        assert again.ended(_TIMEOUT_S) == 0, again.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()


def outcome_of(scenario: str, options: Options, root: Path) -> str:
    """Run a scenario of ``connect_calls.py``."""
    (root / "calls").mkdir()
    paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    # As a module, because next to the file, a directory has the name of the package redis.
    script = ["-m", "tests.live.connect_calls"]
    command = ["env", f"PYTHONPATH={paths}", sys.executable, *script, scenario, encoded(options)]
    process, log = GuardedProcess(command, log=root / "log", cwd=root / "calls", ends_family=True), root / "log"
    assert process.wait(_TIMEOUT_S) == 0, log.read_text()[-3000:]
    return next(line for line in log.read_text().splitlines() if line.startswith(OUTCOME))


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("in_a_thread", "this call did not come from Spark"),
        pytest.param("in_the_client", "this call did not come from Spark", marks=pytest.mark.whole),
        pytest.param(
            "with_anothers_checkpoint",
            "but this call came from another query in the same session",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            "with_anothers_checkpoint_and_columns",
            "but this call came from another query in the same session",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_a_call_that_is_not_the_querys_own_is_refused(
    scenario: str, error: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(20)
    pipeline.flush()
    outcome = outcome_of(scenario, pipeline.options, tmp_path)
    assert error in outcome, outcome
    assert not pipeline.visible()


_PROMISED: dict[str, Any] = {"checkpoints": {"deterministic_plan": True}}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("a_view_that_another_query_replaces", "may not belong to this batch"),
        (
            "a_view_of_collected_rows_that_another_query_replaces",
            "the view `rows` contains rows that are neither from a table nor from the batch itself",
        ),
        (
            "a_view_that_a_query_of_the_same_frame_replaces",
            "in the same session may process batches with the same columns",
        ),
        ("one_view_for_two_parts", "another DataFrame in the same call also reads the view `part`"),
    ],
)
def test_rows_that_may_have_changed_because_a_view_is_resolved_by_name_are_refused(
    scenario: str, error: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_PROMISED)
    pipeline.feed(20)
    pipeline.flush()
    outcome = outcome_of(scenario, pipeline.options, tmp_path)
    assert error in outcome, outcome
    assert not pipeline.visible()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("parts_by_a_loop_variable", "call a Python function, and they would write the same rows"),
        ("parts_by_the_clock", "use the clock (current_timestamp(), now() or a similar function)"),
    ],
)
def test_parts_of_a_batch_that_may_disagree_are_refused(
    scenario: str, error: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_PROMISED)
    pipeline.feed(20)
    pipeline.flush()
    outcome = outcome_of(scenario, pipeline.options, tmp_path)
    assert error in outcome, outcome
    assert not pipeline.visible()


@pytest.mark.whole
def test_parts_of_a_batch_that_cannot_disagree_are_written(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_PROMISED)
    pipeline.feed(20)
    pipeline.flush()
    assert outcome_of("parts_by_a_bound_variable", pipeline.options, tmp_path) == f"{OUTCOME} no error"
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_view_is_resolved_once_and_a_checkpoint_is_not_mistaken_for_the_batch(tmp_path: Path) -> None:
    """The first row shows why: the DataFrame itself reads the rows of the view that has replaced its own."""
    options = Options(bootstrap_servers="", name="n", sources=(), topic="t", checkpoint=str(tmp_path / "checkpoint"))
    seen = json.loads(outcome_of("names_of_views", options, tmp_path).removeprefix(OUTCOME))
    assert seen.pop("rows") == "of another, own"
    assert "may not belong to this batch" in seen.pop("replaced")
    assert seen == {
        "own": "no error",
        "joined": "no error",
        "held": "no error",
        "views": "nothing, rows",
        "batch hides rows": "False",
        "same hides rows": "True",
        "joined hides rows": "False",
        "used twice hides rows": "False",
        "same columns": "True",
    }


@pytest.mark.whole
def test_each_batch_is_written_through_its_own_view(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path, settings=_PROMISED)
    pipeline.feed(20)
    pipeline.flush()
    assert outcome_of("a_view_of_its_own", pipeline.options, tmp_path) == f"{OUTCOME} no error"
    pipeline.require_exactly_once()


@pytest.mark.whole
@pytest.mark.parametrize("scenario", ["two_of_one_session", "two_of_one_frame"])
def test_the_calling_query_is_found_among_two_queries_in_a_session(
    scenario: str, kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = pipeline_of(kafka, tmp_path)
    pipeline.feed(20)
    pipeline.flush()
    assert outcome_of(scenario, pipeline.options, tmp_path) == f"{OUTCOME} no error"
    pipeline.require_exactly_once()


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark has the checksums from 4.1 on")
def test_a_plan_with_one_shuffle_is_written_if_spark_compares_its_rows(kafka: KafkaService, tmp_path: Path) -> None:
    pipeline = pipeline_of(kafka, tmp_path, plan="unstable", spark=CHECKSUMS)
    try:
        pipeline.feed(40)
        run = pipeline.process()
        assert run.ended(_TIMEOUT_S) == 0, run.text[-3000:]
    finally:
        pipeline.close()
    pipeline.require_exactly_once()
