"""Broken variants of the product: each takes one thought out of the code, as somebody might who simplifies it.

A bug is a replacement of source text, which fails loudly when the text has changed: then it has to be planted anew.
"""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, Edit
from tests.planted.bug import one_edit as _bug
from tests.planted.proof_bugs import PROOF_BUGS
from tests.planted.sink_bugs import SINK_BUGS

__all__ = ["BUGS", "QUICK", "Bug", "Edit"]

_TRANSACTION: Final = "twopc/batch_transaction.py"
_START: Final = "twopc/start.py"
_COMMITTER: Final = "sinks/kafka/committer.py"
_CONFIRM: Final = "sinks/kafka/confirm.py"
_DRIVER: Final = "sinks/kafka/driver_producer.py"
_LOG: Final = "sinks/kafka/decision_log.py"
_MARKERS: Final = "sinks/kafka/marker_search.py"
_PRODUCERS: Final = "sinks/kafka/producer_pool.py"
_SWEEP: Final = "sinks/kafka/sweep.py"
_WRITER: Final = "sinks/kafka/writer.py"

BUGS: Final = (
    _bug(
        "commit before decision",
        0,
        _TRANSACTION,
        "            run.bind()\n",
        "            run.bind()\n"
        "            run.participants.commit(self._batch.batch_id, prepared.handles, prepared.scan_start)\n",
    ),
    _bug(
        "skip recovery",
        0,
        _START,
        "        evidence = self.participants.recover(handles, decision.scan_start if decision else {})\n",
        "        from twopc.handle import Evidence\n        evidence = dict.fromkeys(handles, Evidence.COMMITTED)\n",
    ),
    _bug(
        "no fencing of the old driver",
        1,
        _DRIVER,
        "self._transactional_id = transactional_id.of_driver(settings.sink)",
        'self._transactional_id = transactional_id.of_driver(f"{settings.sink}.{id(self)}")',
    ),
    Bug(
        "read before fence",
        1,
        (
            Edit(
                _START,
                "        owners = self._check_read_only(batch)\n",
                "        before = fold(self.log.inspect())\n        owners = self._check_read_only(batch)\n",
            ),
            Edit(_START, "        view = fold(self.log.read())", "        view = before"),
        ),
    ),
    _bug(
        "fence before the read-only checks",
        1,
        _START,
        "        self._require_startable(fold(decided), batch, owners)\n",
        "",
        protocol="tests/live/rules/test_rule_10_not_the_same_batch.py",
    ),
    _bug(
        "ledger read without waiting for the own record",
        1,
        _LOG,
        "return self._contents(until=self._driver_epoch)",
        "return self._contents(until=None)",
    ),
    _bug(
        "ignored delivery errors",
        2,
        _WRITER,
        "        if ready.errors:\n            raise self._translated(ready, ready.errors[0]",
        "        if False:\n            raise self._translated(ready, ready.errors[0]",
    ),
    _bug(
        "trust NONE of an unconfirmed transaction",
        3,
        _CONFIRM,
        "        if reason:\n",
        "        if False:\n",
    ),
    _bug(
        "trust FENCED as aborted",
        4,
        _COMMITTER,
        "                proven[handle] = Evidence.COMMITTED\n",
        "                proven[handle] = Evidence.COMMITTED\n"
        '            elif report in {"ProducerFencedError", "InvalidProducerEpochError"}:\n'
        "                proven[handle] = Evidence.ABORTED\n",
    ),
    Bug(
        "absence without a barrier",
        4,
        (
            Edit(_MARKERS, "    log.write([(partition, barrier)])\n", ""),
            Edit(
                _MARKERS,
                "log.reader.read(log.name, partition, start, is_barrier, ",
                "log.reader.read(log.name, partition, start, None, ",
            ),
        ),
    ),
    Bug(
        "truncated marker taken for an absent one",
        4,
        (Edit(_MARKERS, "    if earliest > start:\n", "    start = max(start, earliest)\n    if False:\n"),),
    ),
    # From after the job alone is harmless: the last stable offset lies below every marker that is still open.
    Bug(
        "markers looked for from the log's end after the job",
        4,
        (
            Edit(
                _TRANSACTION,
                '            crash_point("driver.prepared")\n',
                '            crash_point("driver.prepared")\n            scan_start = run.participants.begin_attempt()\n',
            ),
            Edit(_MARKERS, "OffsetSpec.latest(), committed=True,", "OffsetSpec.latest(), committed=False,"),
        ),
    ),
    _bug(
        "an id initialised again before its batch is settled",
        5,
        _PRODUCERS,
        "            if batch <= committed_through and sequence not in kept:\n",
        "            if sequence not in kept:\n",
    ),
    _bug(
        "an id whose initialisation had no answer is used",
        5,
        _PRODUCERS,
        "        self._served[sequence] = _NEVER_FREE\n",
        "",
        protocol="tests/nemesis/test_late_init.py",
    ),
    _bug(
        "settled before it is proven",
        5,
        _TRANSACTION,
        "            committed_through=run.committed_through,\n            only_tasks=only_tasks,\n",
        "            committed_through=self._batch.batch_id,\n            only_tasks=only_tasks,\n",
    ),
    Bug(
        "a producer used for two transactions",
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
        "a pool kept over a restart",
        5,
        _PRODUCERS,
        "    if pool is None or held != key or pid != os.getpid():\n",
        "    if pool is None or pid != os.getpid():\n",
    ),
    _bug(
        "shared transactional ids",
        6,
        _PRODUCERS,
        "self._worker = uuid.uuid4().hex",
        'self._worker = "worker"',
    ),
    Bug(
        "a task ends what it has handed over",
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
        "sweep by EndTxn",
        7,
        _SWEEP,
        "lambda ids: client.fence([by_id[tid] for tid in ids])",
        "lambda ids: client.end([by_id[tid] for tid in ids], commit=False)",
    ),
    _bug(
        "sweep of a later driver_epoch",
        7,
        _SWEEP,
        "if (epoch := transactional_id.driver_epoch_of(tid)) is not None and epoch < below",
        "if transactional_id.driver_epoch_of(tid) is not None",
    ),
    _bug(
        "no sweep",
        7,
        _SWEEP,
        "    unfenced = fence(client, orphans, timeout_ms=settings.timeout_ms)\n",
        "    unfenced = False\n",
    ),
    _bug(
        "sweep that spares an id whatever it serves now",
        7,
        _SWEEP,
        "if identity not in kept]",
        "if identity.transactional_id not in {one.transactional_id for one in kept}]",
    ),
    _bug(
        "sweep of what is decided",
        7,
        _COMMITTER,
        "        sweep(self._client, self._settings, spared=decided, below=self._driver_epoch + 1)\n",
        "        sweep(self._client, self._settings, spared=(), below=self._driver_epoch + 1)\n",
    ),
    _bug(
        "repair that forgets a repair",
        9,
        "twopc/log_view.py",
        "return replace(view, decision=_merge(view.decision, record, entry.offset), repaired=True)",
        "return replace(view, repaired=True)",
    ),
    _bug(
        "replay of only the missing tasks, unchecked",
        9,
        _TRANSACTION,
        "found = repair.match_rows(run.decision, prepared.tasks, expected=order)",
        "found = {task.partition: task.partition for task in prepared.tasks}",
    ),
    _bug(
        "skip of a decided batch without comparing source offsets",
        10,
        "twopc/batch.py",
        "        return Position.SAME if batch.offsets == view.highest_offsets else Position.COPIED\n",
        "        return Position.SAME\n",
    ),
    _bug(
        "a renamed or recreated ledger is an empty one",
        11,
        "twopc/binding.py",
        "        if (bound.log, bound.log_identity) != (current.log, current.log_identity):\n",
        "        if False:\n",
        model=False,
        # A Kafka sink says the ledger's id a second time, so that the rule's own tests on a broker do not notice.
        protocol="tests/unit/test_binding.py",
    ),
    _bug(
        "an unanswered decision is a failed one",
        12,
        _DRIVER,
        '            raise DecisionInDoubtError(\n                f"the ledger {self._ledger} did not answer',
        '            raise RetriableError(\n                f"the ledger {self._ledger} did not answer',
    ),
    _bug("a slow commit is taken at its word", 12, _LOG, "_SLOW_COMMIT_S: Final = 0.05", "_SLOW_COMMIT_S: Final = 1e9"),
    _bug(
        "attempts without the driver_epoch",
        13,
        "integration/spark/staging.py",
        'self.name = f"{driver_epoch}/{batch_id}/{uuid.uuid4().hex}.arrow"',
        'self.name = f"{driver_epoch}/{batch_id}/slice.arrow"',
        model=False,
    ),
    Bug(
        "an altered decision is one",
        14,
        (
            # Each of a frame's check and the record's would do for what is altered; together they tell torn from altered.
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
        "two actions on the DataFrame",
        0,
        "integration/spark/engine.py",
        "        results = self._run(task, timeout_ms=min(limits, default=None))\n",
        "        self._run(task, timeout_ms=min(limits, default=None))\n"
        "        results = self._run(task, timeout_ms=min(limits, default=None))\n",
        model=False,
        whole="tests/live/test_spark_sinks.py -k evaluated_once",
    ),
    _bug(
        "a re-run stage is accepted",
        6,
        "integration/spark/engine.py",
        "        require_first_attempts(tracker, {result.stage for result in results}, tasks=len(results))\n",
        "",
        model=False,
        whole="tests/live/test_spark_executors.py -k stage",
    ),
    _bug(
        "every run of a query takes over under one name",
        1,
        _START,
        "run=self.run_id, deciding_log",
        "run=batch.query_id, deciding_log",
        model=False,
        protocol="tests/unit/test_coordinator.py -k name_of_its_own",
    ),
    _bug(
        "any end_query_id gives a sink away",
        10,
        "twopc/ownership.py",
        "overrides.end_query_id == last.query_id",
        "overrides.end_query_id is not None",
        model=False,
        protocol="tests/unit/test_ownership.py",
    ),
    *PROOF_BUGS,
    *SINK_BUGS,
)

#: Those that some hundred histories of the model meet.
QUICK: Final = (
    "commit before decision",
    "skip recovery",
    "no fencing of the old driver",
    "fence before the read-only checks",
    "trust FENCED as aborted",
    "a producer used for two transactions",
)
