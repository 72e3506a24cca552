"""Rule 6 under Spark Connect, with the reports that Spark's UI shows: what it answered once, and what must not be trusted."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.spark_ui_server import serving
from twopc import CheckpointConfig
from twopc.errors import ConfigurationError, FatalError, UnavailableError
from twopc.integration.connect import ui_reports
from twopc.integration.connect.spark_ui import SparkUi
from twopc.integration.connect.ui_reports import UiReports
from twopc.integration.connect.ui_shuffles import open_shuffles
from twopc.integration.spark import job_history
from twopc.integration.spark.reports import Job
from twopc.integration.spark.shuffles import Shuffles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Responses from Spark 4.0.5. Job 0 has lost an executor: stages 0 (which writes a shuffle) and 1 ran again. Job 1
#: skips stage 2.
_RECORDED = json.loads((Path(__file__).parent / "data/spark-ui-4.0.5.json").read_text())
_APP = "app-1"
_BASE = f"/api/v1/applications/{_APP}"
_METRICS = "/metrics/json/"
_COUNTER = f"{_APP}.driver.LiveListenerBus.queue.appStatus.numDroppedEvents"


@dataclass
class Spark:
    """An application whose jobs the test makes up: its UI, and its session of Spark Connect."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    rdds: int = 0  #: the next RDD
    forgotten: int = 0  #: the first job that Spark has not forgotten

    def __post_init__(self) -> None:
        self.answers[f"{_BASE}/jobs"] = (200, "[]")
        self.answers[f"{_BASE}/environment"] = (200, '{"sparkProperties": [["spark.ui.retainedJobs", "1"]]}')
        self.drop(0)

    def drop(self, count: int) -> None:
        self.answers[_METRICS] = (200, json.dumps({"counters": {_COUNTER: {"count": count}}}))

    def run(self, tag: str, *stages: list[dict[str, Any]]) -> None:
        """Run a job with these stages, each a list of attempts."""
        number, first = len(self.jobs), sum(len(job["stageIds"]) for job in self.jobs)
        for stage, attempts in enumerate(stages, first):
            found = [{"stageId": stage, "attemptId": count, **one} for count, one in enumerate(attempts)]
            self.answers[f"{_BASE}/stages/{stage}?details=false"] = (200, json.dumps(found))
        self.jobs.append(
            {
                "jobId": number,
                "stageIds": list(range(first, first + len(stages))),
                "jobTags": [
                    "SparkConnect_Execute_User_u_Session_s",
                    f"SparkConnect_SessionTag_User_u_Session_s_Tag_{tag}",
                ],
                "status": "SUCCEEDED",
                "numTasks": 1,
                "numCompletedIndices": 1,
                "numSkippedTasks": 0,
                "numSkippedStages": 0,
            }
        )
        kept = self.jobs[self.forgotten :]
        self.answers[f"{_BASE}/jobs"] = (200, json.dumps(kept[::-1]))
        for job in kept:
            self.answers[f"{_BASE}/jobs/{job['jobId']}"] = (200, json.dumps(job))
        missing = {f"{_BASE}/storage/rdd/{rdd}" for rdd in range(self.rdds + 1)} - self.answers.keys()
        self.answers.update(dict.fromkeys(missing, (404, "no rdd found w/ id")))
        unknown = len(self.jobs)
        self.answers[f"{_BASE}/jobs/{unknown}"] = (404, f"unknown job: {unknown}")

    def forget(self) -> None:
        """Forget all jobs, as Spark does if its store is full."""
        for number in range(len(self.jobs)):
            self.answers[f"{_BASE}/jobs/{number}"] = (404, f"unknown job: {number}")
        self.answers[f"{_BASE}/jobs"] = (200, "[]")
        self.forgotten = len(self.jobs)

    # The session:

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.app.id": _APP}

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.append(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.interrupted.append(tag)

    def range(self, *_: int) -> Spark:
        return self

    def collect(self) -> None:
        self.run(self.tags[-1], [stage(self.new_rdd())])

    def new_rdd(self) -> int:
        self.rdds += 1
        return self.rdds


def stage(*rdds: int, reads: int = 0, writes: int = 0, status: str = "COMPLETE") -> dict[str, Any]:
    return {
        "status": status,
        "rddIds": list(rdds),
        "shuffleReadRecords": reads,
        "shuffleWriteRecords": writes,
        "submissionTime": "2026-01-31T12:00:00.000GMT",
        "numTasks": 2,
    }


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def address(spark: Spark) -> Iterator[str]:
    with serving(spark.answers) as address:
        yield address


def nothing_kept() -> None:
    """The batch uses nothing that Spark keeps outside RDDs."""


def opened(spark: Spark, address: str) -> Shuffles:
    shuffles = open_shuffles(spark, address)
    assert isinstance(shuffles, Shuffles)
    return shuffles


def run_batch(spark: Spark, *, tag: str = "a", middle: int = 1, result: int = 1) -> set[int]:
    """Run a batch whose rows pass two shuffles; returns its result stage."""
    rdds = [spark.new_rdd() for _ in range(3)]
    spark.run(
        tag,
        [stage(rdds[0], writes=9)],
        [stage(rdds[1], reads=9, writes=9)] * middle,
        [stage(rdds[2], reads=9)] * result,
    )
    return {spark.jobs[-1]["stageIds"][-1]}


def test_a_batch_whose_stages_ran_once_is_decided(spark: Spark, address: str) -> None:
    shuffles = opened(spark, address)
    for _ in range(2):
        shuffles.begin()
        shuffles.check("a", run_batch(spark), nothing_kept)
    assert not spark.tags


def test_a_run_with_many_batches_remembers_no_more_than_a_run_with_few(spark: Spark, address: str) -> None:
    """Each attempt runs a marker job, whose number lies between the numbers of the batches' jobs."""
    shuffles = opened(spark, address)

    def remembered() -> list[int]:
        history, outside = shuffles._history, shuffles._outside
        return [len(history.store.markers), len(history._examined._starts), len(outside._ours._starts)]

    after: list[list[int]] = []
    for number in range(6):
        shuffles.begin()
        shuffles.check(f"batch-{number}", run_batch(spark, tag=f"batch-{number}"), nothing_kept)
        after.append(remembered())
    assert after[-1] == after[1]


def test_a_stage_that_read_a_shuffle_and_ran_again_stops_the_query(spark: Spark, address: str) -> None:
    shuffles = opened(spark, address)
    shuffles.begin()
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        shuffles.check("a", run_batch(spark, middle=2, result=2), nothing_kept)


def test_the_query_stops_if_another_jobs_stage_ran_again_before_the_batch(spark: Spark, address: str) -> None:
    """The batch's own job skips the stage. Spark plans a batch before it calls the function, so its RDDs are older."""
    shuffles = opened(spark, address)
    rdds = [spark.new_rdd() for _ in range(3)]
    skipped = [{**stage(rdd, status="SKIPPED"), "submissionTime": None} for rdd in rdds[:2]]
    spark.run("other", [stage(rdds[0], writes=9)], [stage(rdds[1], reads=9, writes=9)] * 2, [stage(rdds[2], reads=9)])
    shuffles.begin()
    spark.run("a", skipped[:1], skipped[1:], [stage(rdds[2], reads=9)])
    with pytest.raises(FatalError, match="Spark ran stage 2 again"):
        shuffles.check("a", {spark.jobs[-1]["stageIds"][-1]}, nothing_kept)


#: A part of the page about a stage, as Spark 4.0.5 shows it: the stage reads a shuffle of RDD 16, and its last RDD is 19.
_PAGE = """<div id="dag-viz-metadata" style="display:none">
        <div class="stage-metadata" stage-id="4" skipped="false">
              <div class="dot-file">digraph G {{
      17 [id=&quot;node_17&quot; labelType=&quot;html&quot; label=&quot;ShuffledRowRDD [17] [Unordered]&lt;br&gt;&quot;];
  17-&gt;18;
  18-&gt;19;
}}</div>
              {}
            </div>
      </div>"""
_INCOMING, _CACHED = '<div class="incoming-edge">16,17</div>', '<div class="cached-rdd">18</div>'


@pytest.mark.parametrize(
    ("page", "level", "expected"),
    [
        pytest.param((200, _PAGE.format("")), None, False, id="no shuffle"),
        pytest.param((200, _PAGE.format(_INCOMING)), None, True, id="a shuffle"),
        pytest.param((200, _PAGE.format(_INCOMING + _CACHED)), "Disk Memory Serialized", False, id="a cache"),
        pytest.param((200, _PAGE.format(_INCOMING + _CACHED)), "Memory Serialized", True, id="a cache in memory"),
        pytest.param((200, _PAGE.format(_INCOMING + _CACHED)), None, True, id="a former cache"),
        pytest.param((200, "No information to display for Stage 4"), None, True, id="forgotten"),
        pytest.param((500, _PAGE.format("")), None, True, id="an error"),
        pytest.param((302, ""), None, True, id="a redirect"),
    ],
)
def test_the_page_about_a_stage_shows_whether_the_stage_may_have_read_a_shuffle(
    page: tuple[int, str], level: str | None, spark: Spark, address: str, *, expected: bool
) -> None:
    rdd = (404, "no rdd found w/ id") if level is None else (200, json.dumps({"id": 18, "storageLevel": level}))
    spark.answers |= {"/stages/stage/?id=4&attempt=0": page, f"{_BASE}/storage/rdd/18": rdd}
    assert UiReports(SparkUi(address, _APP), spark).may_read(4) is expected


def test_a_limited_stage_that_ran_again_stops_the_query(spark: Spark, address: str) -> None:
    """Its tasks ended so early that Spark reports no records. Without the page about the stage, the worst is assumed."""
    shuffles = opened(spark, address)
    shuffles.begin()
    rdds = [spark.new_rdd() for _ in range(3)]
    spark.run("a", [stage(rdds[0], writes=9)], [stage(rdds[1], writes=9)] * 2, [stage(rdds[2], reads=9)])
    with pytest.raises(FatalError, match="Spark ran stage 3 again"):
        shuffles.check("a", {spark.jobs[-1]["stageIds"][-1]}, nothing_kept)


def test_a_report_that_spark_has_dropped_stops_the_query(spark: Spark, address: str) -> None:
    """A missing attempt leaves no trace."""
    shuffles = opened(spark, address)
    shuffles.begin()
    shuffles.check("a", run_batch(spark), nothing_kept)
    shuffles.begin()
    spark.drop(2)
    with pytest.raises(FatalError, match=r"dropped 2 of its reports.*eventqueue\.capacity"):
        shuffles.check("a", run_batch(spark), nothing_kept)


def test_other_forgotten_jobs_before_a_batch_stop_the_query_and_a_restart_writes_the_batch(
    spark: Spark, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them may have written a part of the batch's shuffle, which is older than the call."""
    monkeypatch.setattr(job_history, "_LATE_S", 0.01)

    def process(shuffles: Shuffles, tag: str) -> None:
        rdds = [spark.new_rdd() for _ in range(2)]
        shuffles.begin()
        spark.run(tag, [stage(rdds[0], writes=9)], [stage(rdds[1], reads=9)])
        shuffles.check(tag, {spark.jobs[-1]["stageIds"][-1]}, nothing_kept)

    shuffles = opened(spark, address)
    process(shuffles, "a")
    spark.run("other", [stage(spark.new_rdd())])
    spark.forget()
    with pytest.raises(FatalError, match=r"does not contain job .*spark\.ui\.retainedJobs"):
        process(shuffles, "b")
    process(opened(spark, address), "c")


def _without_metrics(spark: Spark) -> None:
    spark.answers[_METRICS] = (200, '{"counters": {}}')


def _of_another(spark: Spark) -> None:
    spark.answers[f"{_BASE}/jobs"] = (404, f"no such app: {_APP}")


def _forbidden(spark: Spark) -> None:
    spark.answers[f"{_BASE}/jobs"] = (403, "not authorized")


def _redirected(spark: Spark) -> None:
    spark.answers[f"{_BASE}/jobs"] = (302, "")


def _of_another_kind(spark: Spark) -> None:
    spark.answers[f"{_BASE}/jobs"] = (200, "<html>")


def _without_tags(spark: Spark) -> None:
    spark.answers[f"{_BASE}/jobs"] = (200, '[{"jobId": 1}]')


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without_metrics, "shows 0 counters"),
        (_of_another, "404"),
        (_forbidden, "403"),
        (_redirected, "302"),
        (_of_another_kind, "responds, but not as this Spark application's UI"),
        (_without_tags, "missing required field"),
    ],
)
def test_a_ui_that_cannot_be_used_refuses_every_batch_with_the_reason(
    change: Callable[[Spark], None], reason: str, spark: Spark, address: str
) -> None:
    change(spark)
    with pytest.raises(ConfigurationError, match=rf"CheckpointConfig\(spark_ui='{address}'\).*{reason}"):
        open_shuffles(spark, address).begin()


def test_a_ui_that_does_not_respond_refuses_every_batch(spark: Spark) -> None:
    with serving(spark.answers) as address:
        pass
    with pytest.raises(ConfigurationError, match=r"does not respond.*spark\.ui\.enabled=true"):
        open_shuffles(spark, address).begin()


def test_a_ui_that_ends_during_a_batch_leaves_the_batch_undecided(spark: Spark) -> None:
    with serving(spark.answers) as address:
        shuffles = opened(spark, address)
        shuffles.begin()
    with pytest.raises(UnavailableError, match="No part of this attempt is decided"):
        shuffles.check("a", run_batch(spark), nothing_kept)


def test_a_ui_that_does_not_show_our_own_job_cannot_be_used(
    spark: Spark, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_reports, "_MARK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(Spark, "collect", lambda _: None)
    with pytest.raises(ConfigurationError, match="did not show the toolkit's last job"):
        open_shuffles(spark, address).begin()


@pytest.mark.parametrize(("limit", "is_at_start"), [("_JOB_TIMEOUT_S", False), ("_FIRST_JOB_TIMEOUT_S", True)])
def test_our_own_job_is_interrupted_if_no_slot_becomes_free(
    limit: str, spark: Spark, address: str, monkeypatch: pytest.MonkeyPatch, *, is_at_start: bool
) -> None:
    """At the start, it may take less time, because Spark soon gives up the function's process."""

    def wait(waiting: Spark) -> None:
        deadline = time.monotonic() + 10
        while not waiting.interrupted and time.monotonic() < deadline:
            time.sleep(0.001)
        raise ConnectionError("interrupted" if waiting.interrupted == waiting.tags else "never")

    monkeypatch.setattr(ui_reports, limit, 0.01)
    monkeypatch.setattr(Spark, "collect", wait)
    with pytest.raises(ConfigurationError, match=r"could not run the toolkit's own job.*interrupted"):
        open_shuffles(spark, address, is_at_start=is_at_start).begin()
    assert not spark.tags


@contextlib.contextmanager
def recorded() -> Iterator[UiReports]:
    with serving({path: (status, text) for path, (status, text) in _RECORDED["answers"].items()}) as address:
        yield UiReports(SparkUi(address, _RECORDED["application"]), None)


def test_jobs_are_parsed_from_sparks_responses() -> None:
    with recorded() as reports:
        first, second = reports.jobs_with_tag("mine")
        assert (first.job_id, first.stages, first.is_over, first.skipped) == (0, (0, 1), True, 0)
        assert (second.job_id, second.stages, second.is_over, second.skipped) == (1, (2, 3), True, 1)
        assert reports.job(1) == second
        assert reports.jobs_with_tag("min") == []
        assert reports.job(77) is None
        assert reports.end_of_jobs() == 2
        assert isinstance(first, Job)


def test_stage_attempts_are_parsed_from_sparks_responses() -> None:
    with recorded() as reports:
        writing = reports.attempts(0)
        assert [one.attempt_id for one in writing] == [0, 1]
        assert writing[0].shuffle_write_records and not writing[0].shuffle_read_records
        reading = reports.attempts(1)
        assert [(one.attempt_id, one.status) for one in reading] == [(0, "FAILED"), (1, "COMPLETE")]
        assert reports.last_attempt(1) == reading[1]
        [skipped] = reports.attempts(2)
        assert skipped.is_skipped and skipped.rdd_ids == writing[0].rdd_ids
        assert reports.attempts(77) == [] and reports.last_attempt(77) is None


def test_times_are_read_in_milliseconds() -> None:
    with recorded() as reports:
        job = reports.job(0)
        began = [one.submission_time for stage in (0, 1) for one in reports.attempts(stage)]
    assert job is not None and job.ended_ms is not None
    assert all(time is not None and job.ended_ms - 600_000 < time < job.ended_ms for time in began)


def test_cached_rdds_are_parsed_from_sparks_responses() -> None:
    with recorded() as reports:
        [last] = reports.attempts(3)
        assert reports.cached_rdds(last.rdd_ids) == set(_RECORDED["cached"])


def test_the_number_of_dropped_reports_is_parsed_from_sparks_responses() -> None:
    with recorded() as reports:
        assert reports.dropped() == 0


@pytest.mark.parametrize(("settings", "expected"), [([], 900), ([["spark.ui.retainedJobs", "45"]], 41)])
def test_a_tenth_of_the_jobs_that_spark_retains_is_not_relied_upon(settings: list[list[str]], expected: int) -> None:
    """The UI does not show whether Spark has forgotten the job with the highest number, and Spark forgets a tenth at a time."""
    environment = json.dumps({"sparkProperties": [["spark.app.id", _APP], *settings], "runtime": {"javaVersion": "17"}})
    with serving({f"{_BASE}/environment": (200, environment)}) as address:
        assert UiReports(SparkUi(address, _APP), None).retained_jobs() == expected


@pytest.mark.parametrize("address", ["http://127.0.0.1:4040", "https://host/prefix", "http://[::1]:4040"])
def test_a_valid_address_is_accepted(address: str) -> None:
    assert CheckpointConfig(spark_ui=address).spark_ui == address


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:4040", "http://", "ftp://host", "http://host:x", "http://user@host:4040", "http://host?a=b", 4040],
)
def test_an_invalid_address_is_rejected_with_an_error_that_quotes_it(address: Any) -> None:
    with pytest.raises(ConfigurationError, match="spark_ui must be an address"):
        CheckpointConfig(spark_ui=address)
