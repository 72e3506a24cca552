"""Bugs of a tolerated failure, a pause or a weaker guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug

_COORDINATOR: Final = "twopc/coordinator.py"
_TRANSACTION: Final = "twopc/batch_transaction.py"
_CHECKPOINTING: Final = "twopc/checkpointing.py"
_PLAIN: Final = "sinks/kafka/plain_writer.py"
_UNIT: Final = "tests/unit/test_checkpointing.py"
_PATHS: Final = "tests/live/test_spark_paths.py"
_FENCED: Final = "tests/live/rules/test_rule_07_fenced.py"
_OPEN: Final = "tests/unit/test_coordinator_open.py"
_NOT_DURABLE: Final = "tests/unit/test_not_durable.py"
_UNDECIDED: Final = "tests/live/rules/test_rule_07_undecided.py"
_GUARANTEES: Final = "tests/live/test_kafka_guarantees.py"

CHECKPOINTING_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "tolerated: a failure after the decision is, too",
        0,
        _COORDINATOR,
        "        return highest is None or highest < batch.batch_id\n",
        "        return True\n",
        model=False,
        protocol=_UNIT,
    ),
    one_edit(
        "an error outside of the attempt leaves its transactions open",
        7,
        _TRANSACTION,
        "            if self._may_be_open:\n",
        "            if False:\n",
        model=False,
        protocol=_UNDECIDED,
    ),
    one_edit(
        "what may be decided is swept",
        12,
        "twopc/driver_run.py",
        "sweep(self.handles, self.undetermined)",
        "sweep(self.handles)",
        protocol=_UNDECIDED,
    ),
    one_edit(
        "a fenced driver's rows stay open beside an idle successor",
        7,
        "twopc/driver_run.py",
        "isinstance(error, FencedError) and self._is_proven_absent(records)",
        "False",
        model=False,
        protocol=_OPEN,
    ),
    one_edit(
        "a fenced driver ends what its successor finds decided",
        7,
        "twopc/fenced.py",
        "            if isinstance(record, (Decision, Repair)) and record.attempt in attempts:\n",
        "            if False:\n",
        model=False,
        protocol=_FENCED,
    ),
    one_edit(
        "a fence proves that nothing was decided",
        7,
        "twopc/fenced.py",
        "    return is_succeeded\n",
        "    return True\n",
        model=False,
        protocol=_FENCED,
    ),
    one_edit(
        "a decision that the successor has truncated was never written",
        7,
        "twopc/fenced.py",
        "        if contents.start > after:",
        "        if False:",
        model=False,
        protocol=_OPEN,
    ),
    one_edit(
        "what the failed attempt prepared stays open beside the next one",
        7,
        _TRANSACTION,
        "                self._end_what_is_open(error)\n                release(error)\n",
        "                release(error)\n",
        model=False,
        protocol=_OPEN,
    ),
    one_edit(
        "tolerated: the driver acquires anew and fences its successor",
        1,
        _COORDINATOR,
        "        return highest is None or highest < batch.batch_id\n",
        "        object.__setattr__(self._setup, 'driver_run_id', uuid.uuid4().hex)\n"
        "        self._run = None\n"
        "        return True\n",
        model=False,
        protocol=_UNIT,
    ),
    one_edit(
        "the directory beside the checkpoint is not tried",
        0,
        "integration/spark/run_writer.py",
        "own_files = tried(self._mode.open_files(",
        "own_files = (self._mode.open_files(",
        model=False,
        whole=f"{_PATHS} -k without_hard_links",
    ),
    one_edit(
        "a share without hard links decides between two drivers",
        11,
        "twopc/files.py",
        "    is_atomic = False\n\n    def _publish",
        "    is_atomic = True\n\n    def _publish",
        model=False,
        protocol="tests/unit/test_tried_files.py",
    ),
    one_edit(
        "a decision whose name was not synced counts as written",
        12,
        "twopc/registers.py",
        "found == data and isinstance(failure, NotDurableError)",
        "False",
        model=False,
        protocol=_NOT_DURABLE,
    ),
    one_edit(
        "a name that is taken counts, whether it is durable or not",
        11,
        "twopc/files.py",
        "        self._sync(target.parent)  # sync even if the file existed",
        "        is_new and self._sync(target.parent)  # sync even if the file existed",
        model=False,
        protocol=_NOT_DURABLE,
    ),
    one_edit(
        "an error of the temporary file's removal hides that a decision is not durable",
        12,
        "twopc/files.py",
        "            with contextlib.suppress(OSError):\n                temporary",
        "            if True:\n                temporary",
        model=False,
        protocol=_NOT_DURABLE,
    ),
    one_edit(
        "a path is made from a URI's escaped text",
        0,
        "integration/spark/hadoop_files.py",
        "configuration, qualified.toString())",
        "configuration, qualified.toUri().toString())",
        model=False,
        whole=f"{_PATHS} -k taken_literally",
    ),
    one_edit(
        "tolerated: what a user's function raises is, too",
        0,
        "integration/spark/jobs.py",
        "    return _OF_CLUSTER.search(text) is not None and _TRACEBACK not in text\n",
        "    return _OF_CLUSTER.search(text) is not None\n",
        model=False,
        protocol="tests/unit/test_spark_failures.py",
    ),
    one_edit(
        "tolerated: one failure more than the user allows",
        0,
        _CHECKPOINTING,
        "            if failed == allowed or not may_repeat(error):\n",
        "            if failed > allowed or not may_repeat(error):\n",
        model=False,
        protocol=_UNIT,
    ),
    one_edit(
        "orphans that a start ends are not counted",
        0,
        "twopc/coordinator.py",
        "            self._run = recover(self._setup, batch, pending)\n        finally:\n"
        "            pending.swept(self.participants.take_orphans_ended())\n",
        "            self._run = recover(self._setup, batch, pending)\n        finally:\n"
        "            self.participants.take_orphans_ended()\n",
        model=False,
        protocol="tests/unit/test_progress.py -k orphans",
    ),
    one_edit(
        "lake: a retry is on top of the version from before the pause",
        0,
        "sinks/lake/step.py",
        "            is_last = time.monotonic() >= ends_at\n",
        "            is_last = time.monotonic() >= ends_at\n            seen = self._look(failure, ends_at)\n",
        model=False,
        protocol="tests/unit/test_lake_step.py",
    ),
    one_edit(
        "pause: it counts from the trigger, not from the end",
        0,
        _CHECKPOINTING,
        "                self._last_ended = time.monotonic()\n",
        "                self._last_ended = pending._began\n",
        model=False,
        protocol=_UNIT,
    ),
    one_edit(
        "guarantee: a repair of decided rows has no transaction",
        9,
        "sinks/kafka/sink.py",
        "        if self.guarantee != EXACTLY_ONCE and not task.is_repair:\n",
        "        if self.guarantee != EXACTLY_ONCE:\n",
        model=False,
        protocol=f"tests/unit/test_kafka_writer.py {_GUARANTEES} -k repair",
    ),
    one_edit(
        "guarantee: at least once does not wait for the brokers",
        2,
        _PLAIN,
        "            self._flush(self._begun)\n",
        "            self._serve(self._begun, 0)\n",
        model=False,
        protocol=f"{_GUARANTEES} -k long_linger",
    ),
    one_edit(
        "guarantee: a delivery error does not count without a transaction",
        2,
        _PLAIN,
        "            producer, native = new_producer(self._config, failures, delivered, log)\n",
        "            producer, native = new_producer(self._config, {}, delivered, log)\n",
        model=False,
        protocol=f"{_GUARANTEES} -k undelivered_record",
    ),
    one_edit(
        "guarantee: a producer that has failed serves the next task",
        0,
        _PLAIN,
        '        """See :class:`SinkWriter`. Records that the brokers accepted stay visible."""\n        self._ready = None\n',
        '        """See :class:`SinkWriter`. Records that the brokers accepted stay visible."""\n        self.hand_over()\n',
        model=False,
        protocol=f"{_GUARANTEES} -k undelivered_record",
    ),
    one_edit(
        "guarantee: a driver that is closed drops what it has not sent",
        0,
        _PLAIN,
        "            left = flush_all(ready.producer.flush, silence_s=settings.timeout_ms / 1000)\n",
        "            left = 0\n",
        model=False,
        protocol=f"{_GUARANTEES} -k no_acknowledgement_is_awaited",
    ),
    one_edit(
        "guarantee: a preflight tries no transaction",
        0,
        "integration/preflight/stand_in.py",
        '        "guarantee": "EXACTLY_ONCE",',
        '        "guarantee": sink.guarantee,',
        model=False,
        protocol="tests/unit/test_preflight.py -k weaker",
    ),
    one_edit(
        "a worker with other code than the driver's writes rows",
        0,
        "integration/spark/task.py",
        '            HERE.require_same(self.driver, "driver")\n',
        "            pass\n",
        model=False,
        protocol="tests/unit/test_spark_task.py -k other_code",
        whole="tests/live/test_spark_installed.py",
    ),
    one_edit(
        "two versions with the same number count as the same code",
        0,
        "integration/spark/installed.py",
        "is_known = bool(self.digest and other.digest)",
        "is_known = False",
        model=False,
        protocol="tests/unit/test_spark_task.py -k other_code",
    ),
    one_edit(
        "Spark Connect's server takes an object that a client of another version made",
        0,
        "integration/spark/foreach_batch.py",
        '    HERE.require_same(client, "client")\n',
        "",
        model=False,
        protocol="tests/unit/test_connect_object.py -k another_version",
    ),
    one_edit(
        "each thread of a worker with a memory limit reserves address space of its own",
        0,
        "integration/spark/worker.py",
        "            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)\n",
        "            pass\n",
        model=False,
        protocol="tests/unit/test_spark_worker.py -k limited_address_space",
    ),
)
