"""Broken variants of the product: each removes one check or step from the code, as a careless simplification might.

A bug is a replacement of source text. If the text has changed, planting it fails, and the bug has to be updated.
"""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, Edit
from tests.planted.bug import one_edit as _bug
from tests.planted.checkpointing_bugs import CHECKPOINTING_BUGS
from tests.planted.operate_bugs import OPERATE_BUGS
from tests.planted.proof_bugs import PROOF_BUGS
from tests.planted.sink_bugs import SINK_BUGS

__all__ = ["BUGS", "QUICK", "Bug", "Edit"]

_TRANSACTION: Final = "twopc/batch_transaction.py"
_START: Final = "twopc/start.py"
_COMMITTER: Final = "sinks/kafka/committer.py"
_DRIVER: Final = "sinks/kafka/driver_producer.py"
_LOG: Final = "sinks/kafka/decision_log.py"
_MARKERS: Final = "sinks/kafka/markers.py"
_SCAN_START: Final = "sinks/kafka/scan_start.py"
_PREPARED: Final = "sinks/kafka/prepared.py"
_PRODUCERS: Final = "sinks/kafka/producer_pool.py"
_WRITER: Final = "sinks/kafka/writer.py"

BUGS: Final = (
    _bug(
        "the commit comes before the decision",
        0,
        _TRANSACTION,
        "            run.append(self._decision(prepared))\n",
        "            self._participants.commit(self._batch.batch_id, prepared.handles, prepared.scan_start)\n"
        "            run.append(self._decision(prepared))\n",
    ),
    _bug(
        "recovery is skipped",
        0,
        _START,
        "    evidence = setup.participants.recover(handles, view.scan_start)\n",
        "    from twopc.attempt import Evidence\n    evidence = dict.fromkeys(handles, Evidence.COMMITTED)\n",
    ),
    _bug(
        "the old driver is not fenced",
        1,
        _DRIVER,
        "self._transactional_id = driver_id(settings.name)",
        'self._transactional_id = driver_id(f"{settings.name}.{id(self)}")',
    ),
    Bug(
        "the log is read before the fence",
        1,
        (
            Edit(
                _START,
                "    owners = _check_read_only(setup, batch)\n",
                "    before = fold(setup.log.inspect())\n    owners = _check_read_only(setup, batch)\n",
            ),
            Edit(_START, "    view = _view_of(setup.log, setup.log.read)", "    view = before"),
        ),
    ),
    _bug(
        "the fence comes before the read-only checks",
        1,
        _START,
        "    _require_startable(setup, decided, batch, owners)\n",
        "",
        protocol="tests/live/rules/test_rule_10_not_the_same_batch.py",
    ),
    _bug(
        "the ledger is not read up to the own acquisition",
        1,
        _LOG,
        "return self.contents(until=self.driver_epoch)",
        "return self.contents(until=None)",
    ),
    _bug(
        "delivery errors are ignored",
        2,
        _WRITER,
        "        if ready.failures:\n            doing = ",
        "        if False:\n            doing = ",
    ),
    _bug(
        "NONE proves an unconfirmed transaction",
        3,
        _PREPARED,
        "        if reason:\n",
        "        if False:\n",
    ),
    _bug(
        "FENCED proves an abort",
        4,
        _COMMITTER,
        "for handle, report in reports.items() if report == NONE}\n",
        "for handle, report in reports.items() if report == NONE}\n"
        '        fenced = {"ProducerFencedError", "InvalidProducerEpochError"}\n'
        "        proven |= {handle: Evidence.ABORTED for handle, report in reports.items() if report in fenced}\n",
    ),
    Bug(
        "a missing marker counts without a barrier",
        4,
        (
            Edit(_MARKERS, "    log.write([(partition, barrier)])\n", ""),
            Edit(
                _MARKERS,
                "log.reader.rows(log.name, partition, start, is_barrier, ",
                "log.reader.rows(log.name, partition, start, None, ",
            ),
        ),
    ),
    Bug(
        "a truncated marker counts as absent",
        4,
        (Edit(_MARKERS, "    if earliest > start:\n", "    start = max(start, earliest)\n    if False:\n"),),
    ),
    # Starting after the job is harmless by itself: the last stable offset lies below every open marker.
    Bug(
        "the search for markers starts at the log's end after the job",
        4,
        (
            Edit(
                _TRANSACTION,
                '            crash_point("driver.prepared")\n',
                '            crash_point("driver.prepared")\n            scan_start = self._participants.begin_attempt()\n',
            ),
            Edit(_SCAN_START, "self._answer() or self._ask()", "self._ask()"),
            Edit(
                _SCAN_START,
                "latest, committed=True, timeout_ms=self._timeout_ms)\n\n",
                "latest, timeout_ms=self._timeout_ms)\n\n",
            ),
        ),
    ),
    _bug(
        "the search for markers starts below what is deleted",
        4,
        _SCAN_START,
        "max(start, self._known.get(partition, 0))",
        "start",
        model=False,
        protocol="tests/unit/test_kafka_scan_start.py",
    ),
    _bug(
        "an id is initialised again before its batch is proven",
        5,
        _PRODUCERS,
        "            if batch <= committed_through and sequence not in kept:\n",
        "            if sequence not in kept:\n",
    ),
    _bug(
        "an id is used after an unanswered initialisation",
        5,
        _PRODUCERS,
        "        self._served[sequence] = _NEVER_FREE\n",
        "",
        protocol="tests/nemesis/test_late_init.py",
    ),
    _bug(
        "a batch is committed_through before it is proven",
        5,
        _TRANSACTION,
        "            committed_through=run.committed_through,\n            only_tasks=only_tasks,\n",
        "            committed_through=self._batch.batch_id,\n            only_tasks=only_tasks,\n",
    ),
    Bug(
        "a producer is used for two transactions",
        5,
        (
            Edit(
                _PRODUCERS,
                "ready = self._ready.pop() if self._ready else None",
                "ready = self._ready[0] if self._ready else None",
            ),
        ),
    ),
    _bug(
        "a pool is kept over a restart",
        5,
        _PRODUCERS,
        "    if pool is None or pool.key != key:\n",
        "    if pool is None or pool.key.pid != key.pid:\n",
    ),
    _bug(
        "workers share transactional ids",
        6,
        _PRODUCERS,
        "self._worker = uuid.uuid4().hex",
        'self._worker = "worker"',
    ),
    Bug(
        "a task ends its transaction after the handover",
        6,
        (
            Edit(
                "twopc/writer.py",
                "            self.state = move(self.state, TransactionState.HANDED_OVER)\n",
                "            pass\n",
            ),
            Edit(_WRITER, "        super().hand_over()\n        self._ready = None\n", "        super().hand_over()\n"),
        ),
    ),
    _bug(
        "an abort overtakes its own records",
        6,
        "sinks/kafka/librdkafka_producer.py",
        "        result: list[int | None] = []\n",
        "        from confluent_kafka import cimpl\n"
        "        purge = ctypes.CDLL(cimpl.__file__).rd_kafka_purge\n"
        "        purge(ctypes.c_void_p(self._client), 3)\n"
        "        result: list[int | None] = []\n",
        protocol="tests/nemesis/test_late_produce.py",
        model=False,
    ),
    _bug(
        "a broker that is too old is not refused",
        0,
        "sinks/kafka/transactions.py",
        "        if missing:\n",
        "        if False:\n",
        protocol="tests/unit/test_kafka_transactions.py",
        model=False,
    ),
    _bug(
        "commits speak transactions V2",
        4,
        "sinks/kafka/transactions.py",
        "_END_TXN_VERSION: Final = 3\n",
        "_END_TXN_VERSION: Final = 5\n",
        protocol="tests/live/test_broker_versions.py -k epoch",
        model=False,
    ),
    _bug(
        "brokers that verify nothing are believed",
        12,
        _LOG,
        "(took_s > _SLOW_COMMIT_S or not self._verified)",
        "took_s > _SLOW_COMMIT_S",
        protocol="tests/unit/test_kafka_decision_log.py",
        model=False,
    ),
    _bug(
        "the sweep uses EndTxn",
        7,
        _PREPARED,
        "lambda ids: client.fence([by_id[tid] for tid in ids])",
        "lambda ids: client.end([by_id[tid] for tid in ids], commit=False)",
    ),
    _bug(
        "the sweep ends transactions of a later driver_epoch",
        7,
        _PREPARED,
        "if (epoch := driver_epoch_of(tid)) is not None and epoch < below",
        "if driver_epoch_of(tid) is not None",
    ),
    _bug(
        "the sweep does nothing",
        7,
        _PREPARED,
        "    unfenced = fence(client, orphans, timeout_ms=settings.timeout_ms)\n",
        "    unfenced: list[str] = []\n",
    ),
    _bug(
        "the sweep spares an id whatever it serves now",
        7,
        _PREPARED,
        "if identity not in kept]",
        "if identity.transactional_id not in {one.transactional_id for one in kept}]",
    ),
    _bug(
        "the sweep ends decided transactions",
        7,
        _COMMITTER,
        "sweep(self._client, self._settings, spared=decided, below=below)\n",
        "sweep(self._client, self._settings, spared=(), below=below)\n",
    ),
    _bug(
        "a repair is forgotten",
        9,
        "twopc/log_view.py",
        "return replace(view, decision=_merge(view.decision, record, entry.offset), repaired=True)",
        "return replace(view, repaired=True)",
    ),
    _bug(
        "lost tasks are replayed without comparing their rows",
        9,
        _TRANSACTION,
        "found = repair.match_rows(run.decision, prepared.tasks, expected=order)",
        "found = {task.partition: task.partition for task in prepared.tasks}",
    ),
    _bug(
        "a decided batch is skipped without comparing source offsets",
        10,
        "twopc/batch.py",
        "        return Position.SAME if batch.offsets == view.highest_offsets else Position.COPIED\n",
        "        return Position.SAME\n",
    ),
    _bug(
        "a setting that names one gap accepts any",
        10,
        "twopc/batch.py",
        "overrides.resume_at_batch == batch.batch_id",
        "overrides.resume_at_batch is not None",
        protocol="tests/unit/test_batch.py",
    ),
    _bug(
        "a gap is accepted in another history",
        10,
        "twopc/batch.py",
        "and (is_next or prior is not None)",
        "and is_next",
        model=False,
        protocol="tests/unit/test_batch.py",
    ),
    _bug(
        "a setting that gives up one batch gives up any",
        9,
        "twopc/run.py",
        "decision.batch_id == named and",
        "named is not None and",
        protocol="tests/unit/test_coordinator_abandon.py",
    ),
    _bug(
        "a batch is given up by the run that decides it",
        9,
        "twopc/run.py",
        " and decision.attempt.driver_epoch < self.log_epoch",
        "",
        model=False,
        protocol="tests/unit/test_coordinator_abandon.py",
    ),
    _bug(
        "what was given up is left open",
        9,
        "twopc/run.py",
        "        self.handles, self.evidence = {}, {}\n        self.sweep()\n",
        "        self.handles, self.evidence = {}, {}\n",
        model=False,
        protocol="tests/unit/test_coordinator_abandon.py",
    ),
    _bug(
        "what was given up is not on record",
        9,
        "twopc/run.py",
        "prior_offsets=offsets, abandons=True)",
        "prior_offsets=offsets)",
        protocol="tests/unit/test_coordinator_abandon.py",
    ),
    _bug(
        "a renamed or recreated ledger is accepted as empty",
        11,
        "twopc/binding.py",
        "        if _log(bound) != _log(current):\n",
        "        if False:\n",
        model=False,
        # A Kafka sink's binding has the ledger's id, too, so the rule's own tests on a broker do not notice.
        protocol="tests/unit/test_binding.py",
    ),
    _bug(
        "two drivers write one binding on an object store",
        11,
        "twopc/binding.py",
        "self._newest + 1 if self._files.is_atomic else log_epoch + 1 + _FIRST",
        "self._newest + 1",
        model=False,
        protocol="tests/unit/test_binding_objects.py",
    ),
    _bug(
        "an unanswered decision counts as failed",
        12,
        _DRIVER,
        '            raise DecisionInDoubtError(\n                f"the ledger {self._ledger} did not answer',
        '            raise RetriableError(\n                f"the ledger {self._ledger} did not answer',
    ),
    _bug(
        "a slow commit is not read back",
        12,
        _LOG,
        "_SLOW_COMMIT_S: Final = RETRY_BACKOFF_MS / 2 / 1000",
        "_SLOW_COMMIT_S: Final = 1e9",
    ),
    _bug(
        "slices of all attempts have one name",
        13,
        "integration/spark/staging.py",
        'self.name = f"{driver_epoch}/{batch_id}/{uuid.uuid4().hex}.arrow"',
        'self.name = f"{driver_epoch}/{batch_id}/slice.arrow"',
        model=False,
    ),
    Bug(
        "an altered decision is accepted",
        14,
        (
            # A frame's check and the record's digest each detect alterations; only together they distinguish torn from altered.
            Edit("twopc/codec.py", "    if hashlib.sha256(body).hexdigest() != digest:\n", "    if False:\n"),
            Edit(
                "twopc/codec.py",
                '    if _check(f"{written} {digest} {index}/{total}", body) != check:\n',
                "    if False:\n",
            ),
        ),
        protocol="tests/unit/test_codec.py",
        model=False,
    ),
    _bug(
        "a decided batch is not evaluated in a stateful query",
        0,
        _TRANSACTION,
        "            self._engine.evaluate()\n",
        "            pass\n",
        whole="tests/live/test_spark_recovery.py -k stateful",
    ),
    _bug(
        "the DataFrame is evaluated twice",
        0,
        "integration/spark/engine.py",
        "                    results = self._results(rows, task, work, tag)\n",
        "                    self._results(rows, task, work, tag)\n"
        "                    results = self._results(rows, task, work, tag)\n",
        model=False,
        whole="tests/live/test_spark_sinks.py -k evaluated_once",
    ),
    _bug(
        "rows beyond the driver's bound are left out",
        0,
        "integration/spark/collect.py",
        "    return None if stream.is_over or has_held_back else arranged(stream.batches)\n",
        "    return None if stream.is_over else arranged(stream.batches)\n",
        model=False,
        whole="tests/live/test_spark_budget.py",
    ),
    _bug(
        "a mirror's copy of a ledger is read as the ledger",
        11,
        "sinks/kafka/decision_log.py",
        "            self._require_original(acquired, entry)\n",
        "",
        model=False,
        whole="tests/live/operate/test_mirrored_cluster.py -k copy_of",
    ),
    _bug(
        "the driver takes the columns in the DataFrame's order",
        0,
        "integration/spark/frame.py",
        "        return [own[sql] for sql in taken]\n",
        "        return list(range(len(taken)))\n",
        model=False,
        whole="tests/live/test_spark_direct_frame.py -k same_rows",
    ),
    _bug(
        "a repair goes another way than its decision",
        9,
        _TRANSACTION,
        "            direct=self._decided_direct() if step is Step.REPAIR else None,\n",
        "            direct=None,\n",
        model=False,
        whole="tests/live/test_spark_direct.py -k way_of_the_decision",
    ),
    _bug(
        "a repair of a direct batch compares no rows",
        9,
        "integration/spark/engine.py",
        "            wanted = replace(rows, is_hashed=is_divided)\n",
        "            wanted = replace(rows, is_hashed=False)\n",
        model=False,
        whole="tests/live/test_spark_direct.py -k other_rows_of_the_same_number",
    ),
    _bug(
        "collected rows are not waited for in the status store",
        6,
        "integration/spark/shuffles.py",
        '        marks = self._await(mark, bool, "the end of the job that collected the batch")\n',
        "        marks = self._store.jobs_with_tag(mark)\n",
        model=False,
        protocol="tests/unit/test_spark_shuffles.py -k mark",
    ),
    _bug(
        "a second call for a batch counts as its replay",
        0,
        "integration/spark/foreach_batch.py",
        "        require_one_call(call, self._last_call)\n",
        "",
        model=False,
        whole="tests/live/test_spark_several.py -k call",
    ),
    _bug(
        "a call after a failed one continues without recovery",
        0,
        "integration/spark/foreach_batch.py",
        "            self.close()  # so that the next call begins with recovery\n",
        "",
        model=False,
        whole="tests/live/test_spark_ways_out.py -k calls_again",
    ),
    _bug(
        "tasks of two DataFrames have the same number",
        0,
        "integration/spark/engine.py",
        "first_task=len(reports)",
        "first_task=0",
        model=False,
        whole="tests/live/test_spark_several.py -k dead_letters",
    ),
    _bug(
        "what is lost is published as a part of the batch that comes now",
        9,
        _TRANSACTION,
        "        return lost, repair.slices_of(",
        "        return self._batch, repair.slices_of(",
        model=False,
        protocol="tests/unit/test_coordinator_losses.py",
    ),
    _bug(
        "the plan's rows are published in place of the staged ones",
        9,
        "integration/spark/engine.py",
        "            slices=work.slices,\n",
        "            slices=(),\n",
        model=False,
        whole="tests/live/test_spark_staging.py -k side_by_side",
    ),
    _bug(
        "rows of another DataFrame repair a lost transaction",
        9,
        "twopc/repair.py",
        "    return task.frame, task.rows, task.checksum\n",
        '    return "", task.rows, task.checksum\n',
        model=False,
        protocol="tests/unit/test_repair.py",
    ),
    _bug(
        "a re-run stage is accepted",
        6,
        "integration/spark/engine.py",
        "        self.shuffles.check(tag, stages)\n",
        "",
        model=False,
        whole="tests/live/test_spark_executors.py -k stage",
    ),
    _bug(
        "queries share one directory of slices",
        13,
        "integration/spark/foreach_batch.py",
        "return Staging(f\"{shared.rstrip('/')}/{query_id}\", former=shared)",
        "return Staging(shared)",
        model=False,
        whole="tests/live/test_spark_staging.py -k two_queries",
    ),
    _bug(
        "slices that only the workers see are decided",
        9,
        "integration/spark/staging.py",
        "        if missing is not None:\n",
        "        if False:\n",
        model=False,
        protocol="tests/unit/test_spark_staging.py",
    ),
    _bug(
        "only the result stage is checked for being run again",
        6,
        "integration/spark/shuffles.py",
        "            if keeps and (reads or len(stages) > 1):\n",
        "            if False:\n",
        model=False,
        protocol="tests/unit/test_spark_shuffles.py",
        whole="tests/live/test_spark_executors.py -k two_shuffles",
    ),
    _bug(
        "a shuffle that a later job of the batch writes again is not noticed",
        6,
        "integration/spark/shuffles.py",
        "            if shuffle and written.setdefault(shuffle, stage) != stage:\n",
        "            if False:\n",
        model=False,
        protocol="tests/unit/test_spark_shuffles.py",
        whole="tests/live/test_spark_executors.py -k a_cache_of_which",
    ),
    _bug(
        "every run of a query acquires under one name",
        1,
        _START,
        "run=setup.run_id, deciding_log",
        "run=batch.query_id, deciding_log",
        model=False,
        protocol="tests/unit/test_coordinator.py -k its_own_name",
    ),
    _bug(
        "any end_query_id releases a sink",
        10,
        _START,
        "overrides.end_query_id == last.query_id",
        "overrides.end_query_id is not None",
        model=False,
        protocol="tests/unit/test_ownership.py",
    ),
    *PROOF_BUGS,
    *SINK_BUGS,
    *OPERATE_BUGS,
    *CHECKPOINTING_BUGS,
)

#: Bugs that some hundred histories of the model catch.
QUICK: Final = (
    "the commit comes before the decision",
    "recovery is skipped",
    "the old driver is not fenced",
    "the fence comes before the read-only checks",
    "FENCED proves an abort",
    "a producer is used for two transactions",
)
