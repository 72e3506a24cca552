"""Define the steps of the two-phase trial.

Each step uses the stand-in the way a query uses its sink, and reports how the brokers responded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka.admin import OffsetSpec

from twopc.attempt import Attempt, Evidence
from twopc.decision_log import NO_ID
from twopc.errors import FencedError, UnavailableError
from twopc.integration.preflight.findings import Result
from twopc.integration.preflight.stand_in import topic_prefix
from twopc.integration.preflight.trial import QUERY_ID
from twopc.records import Decision, TaskReport
from twopc.sinks.kafka import markers
from twopc.sinks.kafka.handle import ProducerIdentity, driver_id, id_prefix
from twopc.sinks.kafka.ledger_topic import DRIVER_PARTITION
from twopc.sinks.kafka.prepared import await_visible, confirm, end_all, fence
from twopc.sinks.kafka.producer import make_ready
from twopc.sinks.kafka.reader import offsets
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, NOT_AUTHORIZED, until_final
from twopc.sinks.kafka.scan_start import ScanStart

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.preflight.trial import Trial
    from twopc.records import LogContents
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.handle import KafkaHandle

#: The trial's tasks, named after how their transactions end.
_COMMITTED, _FENCED, _ABORTED = range(3)
_NOT_KAFKA: Final = (
    "Do not use this cluster: its transactions do not behave like Kafka's. Report this line to the vendor"
)


class Outcome(NamedTuple):
    """The result of a step, with its reason and its fix."""

    result: Result
    why: str
    fix: str = ""


class Step(NamedTuple):
    """One step of the trial. If the step raises an error, the error becomes the finding."""

    name: str
    run: Callable[[Trial], Outcome]
    is_needed: bool = True  #: whether the later steps need this one
    if_denied: Result = Result.FAIL  #: the result for the query if the principal is not allowed to do this


def _passed(why: str) -> Outcome:
    return Outcome(Result.PASS, why)


def _unlike(why: str) -> Outcome:
    return Outcome(Result.FAIL, why, _NOT_KAFKA)


def _use_ids(trial: Trial) -> Outcome:
    tid = driver_id(trial.sink.name)
    answer = until_final([tid], lambda _: trial.client.fence([ProducerIdentity(tid)]), timeout_ms=trial.timeout_ms)[tid]
    if answer == NO_ANSWER:
        raise UnavailableError(f"no coordinator responded to InitProducerId for {tid} within {trial.timeout_ms} ms")
    if answer != NONE:
        fix = rights(trial.original) if answer == NOT_AUTHORIZED else _NOT_KAFKA
        return Outcome(Result.FAIL, f"the broker returned {answer} to InitProducerId for {tid}", fix)
    return _passed("the principal is allowed to initialize the transactional ids")


def _make_topic(trial: Trial) -> Outcome:
    trial.make_topic()
    if trial.log.identity() == NO_ID:
        why = (
            "topics have no ids on this cluster, so the sink cannot detect whether its ledger was deleted and recreated"
        )
        return Outcome(
            Result.WARN, why, "Make sure that the ledger is never deleted, or use brokers with topic ids (KIP-516)"
        )
    return _passed("a topic was created for this trial, with the ledger's settings. The topic is deleted afterwards")


def _try_timeout(trial: Trial) -> Outcome:
    tid, lives_ms = f"{trial.sink.name}.timeout", trial.original.transaction_timeout_ms
    make_ready(trial.original.producer_config(), tid, 0, (trial.topic,), timeout_ms=trial.timeout_ms)
    return _passed(f"kafka.transaction.timeout.ms={lives_ms} is allowed")


def _acquire(trial: Trial) -> Outcome:
    trial.acquire(trial.log)
    return _passed("a driver acquired the ledger: the driver initialized its transactional id and committed a record")


def _prepare(trial: Trial) -> Outcome:
    trial.scan_start = ScanStart(trial.log, None, timeout_ms=trial.timeout_ms).take()["markers"]
    for task in (_COMMITTED, _FENCED, _ABORTED):
        trial.handles[task] = trial.prepare(task)
    return _passed(f"each of {len(trial.handles)} tasks wrote a row and closed its producer")


def _confirm(trial: Trial) -> Outcome:
    confirm(trial.client, trial.sink, list(trial.handles.values()), 0)
    return _passed("DescribeTransactions shows the tasks' transactions as open, with their producers and partitions")


def _list(trial: Trial) -> Outcome:
    listing = trial.client.list_open(id_prefix(trial.sink.name))
    missing = {handle.transactional_id for handle in trial.handles.values()} - set(listing.transactional_ids)
    if missing or not listing.complete:
        return _unlike(
            f"ListTransactions does not show {', '.join(sorted(missing)) or 'the transactions of every broker'}"
        )
    return _passed("ListTransactions shows the tasks' transactions")


def _look_before(trial: Trial) -> Outcome:
    if any(trial.is_visible(task) for task in trial.handles):
        return _unlike("a read_committed reader sees rows of open transactions")
    return _passed("a read_committed reader sees none of the tasks' rows")


def _decide(trial: Trial) -> Outcome:
    trial.decided_at = trial.log.append([_decision(trial, 0)])
    if _decided(trial, trial.log.contents(until=trial.decided_at)) != [0]:
        return _unlike("a decision was committed, but cannot be read back")
    return _passed("a decision was committed and read back")


def _commit(trial: Trial) -> Outcome:
    handle = trial.handles[_COMMITTED]
    if (answer := _end(trial, _COMMITTED)) != NONE:
        return _unlike(
            f"another client sent a commit with the transaction's producer id and epoch, and the broker returned {answer}"
        )
    await_visible(trial.client, [handle], timeout_ms=trial.timeout_ms)
    trial.await_stable(_COMMITTED)
    if not trial.is_visible(_COMMITTED):
        return _unlike("a transaction was committed, but readers do not see the transaction's row")
    return _passed(
        "another client committed a transaction with its producer id and epoch, and readers see the transaction's row"
    )


def _commit_again(trial: Trial) -> Outcome:
    if (answer := _end(trial, _COMMITTED)) != NONE:
        why = (
            f"the broker responded to a second commit with {answer} instead of NONE, so the sink must search the transaction "
            "markers after a crash"
        )
        return Outcome(Result.WARN, why, "Expect slower restarts, or use brokers that return NONE, as Kafka does")
    return _passed("the broker returned NONE for a second commit")


def _fence_task(trial: Trial) -> Outcome:
    left = fence(trial.client, [trial.handles[_FENCED].identity], timeout_ms=trial.timeout_ms)
    if left:
        return _unlike("InitProducerId with the producer's id and epoch does not abort an open transaction")
    trial.await_stable(_FENCED)
    if trial.is_visible(_FENCED):
        return _unlike("InitProducerId aborted a transaction, but readers see the transaction's row")
    return _refused(
        trial,
        _FENCED,
        "InitProducerId aborted a transaction. The transaction's row stays invisible, and its commit is rejected",
    )


def _abort_task(trial: Trial) -> Outcome:
    if (answer := _end(trial, _ABORTED, commit=False)) != NONE:
        return _unlike(f"the broker returned {answer} for an abort with the transaction's producer id and epoch")
    trial.await_stable(_ABORTED)
    if trial.is_visible(_ABORTED):
        return _unlike("a transaction was aborted, but readers see the transaction's row")
    return _refused(
        trial,
        _ABORTED,
        "another client aborted a transaction. The transaction's row stays invisible, and its commit is rejected",
    )


def _search(trial: Trial) -> Outcome:
    handles = list(trial.handles.values())
    evidence, reasons = markers.search(trial.log, handles, trial.scan_start, timeout_ms=trial.timeout_ms)
    expected = [Evidence.COMMITTED, Evidence.ABORTED, Evidence.ABORTED]
    found = [evidence[handle] for handle in handles]
    if found != expected:
        seen = ", ".join(one.value for one in found)
        return _unlike(
            f"one transaction was committed and two were aborted, but the markers show a different result: {seen}. "
            f"{'; '.join(reasons)}"
        )
    return _passed("the markers prove that one transaction was committed and two were aborted")


def _fence_driver(trial: Trial) -> Outcome:
    newer = trial.another_driver()
    try:
        trial.log.append([_decision(trial, 1)])
    except FencedError:
        if _decided(trial, newer.read()) != [0]:
            return _unlike("the newer driver cannot read the fenced driver's decisions")
        return _passed("a newer driver fences the older driver, and reads the older driver's decisions")
    return _unlike(
        "an older driver can still decide after a newer driver has initialized their common transactional id"
    )


def _delete(trial: Trial) -> Outcome:
    trial.delete(DRIVER_PARTITION, before=trial.decided_at)
    start = offsets(trial.admin, trial.topic, [DRIVER_PARTITION], OffsetSpec.earliest(), timeout_ms=trial.timeout_ms)[
        DRIVER_PARTITION
    ]
    if start < trial.decided_at:
        why = "DeleteRecords deletes nothing, so the ledger keeps growing, and each start takes longer"
        return Outcome(Result.WARN, why, "Use brokers that delete records, or expect starts to take longer")
    return _passed("DeleteRecords deletes the records that the driver no longer needs")


def _refused(trial: Trial, task: int, why: str) -> Outcome:
    if _end(trial, task) == NONE:
        return _unlike("the broker returned NONE for the commit of an aborted transaction, so NONE proves nothing")
    return _passed(why)


def _end(trial: Trial, task: int, *, commit: bool = True) -> str:
    """Send EndTxn as the driver does, and return the response."""
    handle = trial.handles[task]
    if commit:
        return end_all(trial.client, [handle], timeout_ms=trial.timeout_ms)[handle]

    def abort(_: object) -> dict[str, str]:
        return trial.client.end([handle.identity], commit=False)

    return until_final([handle.transactional_id], abort, timeout_ms=trial.timeout_ms)[handle.transactional_id]


def _decision(trial: Trial, batch: int) -> Decision:
    def encoded(handle: KafkaHandle) -> TaskReport:
        return TaskReport(partition=0, rows=1, checksum=0, handles={trial.sink.name: trial.sink.encode_handle(handle)})

    return Decision(
        query_id=QUERY_ID,
        batch_id=batch,
        attempt=Attempt(0, 1),
        offsets=(),
        tasks=(encoded(trial.handles[_COMMITTED]),),
        scan_start={},
    )


def _decided(trial: Trial, log: LogContents) -> list[int]:
    """Return each batch whose decision contains the handle that the trial commits."""
    name, handle = trial.sink.name, trial.handles[_COMMITTED]
    return [
        record.batch_id
        for _, record in log.entries
        if isinstance(record, Decision) and trial.sink.decode_handle(record.tasks[0].handles[name]) == handle
    ]


def rights(sink: KafkaSink) -> str:
    """Name every permission that the trial needs."""
    return (
        f"Grant the principal Write and Describe on transactional ids with the prefix '{sink.name}.', and Create, Read, Write, "
        f"Describe, DescribeConfigs and Delete on topics with the prefix '{topic_prefix(sink)}'"
    )


STEPS: Final = (
    Step("transactional ids", _use_ids),
    Step("own topic", _make_topic, if_denied=Result.WARN),
    Step("transaction timeout", _try_timeout, is_needed=False),
    Step("driver", _acquire),
    Step("pre-commit", _prepare),
    Step("confirm", _confirm),
    Step("list", _list, is_needed=False),
    Step("isolation", _look_before, is_needed=False),
    Step("decision", _decide),
    Step("commit", _commit),
    Step("second commit", _commit_again, is_needed=False),
    Step("sweep", _fence_task, is_needed=False),
    Step("abort", _abort_task, is_needed=False),
    Step("markers", _search, is_needed=False),
    Step("fencing", _fence_driver, is_needed=False),
    Step("deletion", _delete, is_needed=False, if_denied=Result.WARN),
)
