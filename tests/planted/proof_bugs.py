"""Broken variants of reading and asking for proofs."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_COMMITTER: Final = "sinks/kafka/committer.py"
_DRIVER: Final = "sinks/kafka/driver_producer.py"
_LOG: Final = "sinks/kafka/decision_log.py"
_PREPARED: Final = "sinks/kafka/prepared.py"
_READER: Final = "sinks/kafka/reader.py"
_WRITER: Final = "sinks/kafka/writer.py"

PROOF_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "a transaction that is being ended is confirmed",
        3,
        _PREPARED,
        '    if found.state != "Ongoing":\n',
        "    if False:\n",
        protocol="tests/unit/test_kafka_confirm.py",
        model=False,
    ),
    one_edit(
        "a decision missing between two others goes unnoticed",
        11,
        "twopc/log_view.py",
        "decision.batch_id - last.batch_id not in {0, 1})",
        "decision.batch_id < last.batch_id)",
        protocol="tests/unit/test_log_view.py",
        model=False,
    ),
    one_edit(
        "unreadable markers count as absent",
        4,
        "sinks/kafka/markers.py",
        "seen.get(handle.marker_partition))",
        "seen.get(handle.marker_partition, set()))",
    ),
    one_edit(
        "records deleted during the read count as absent",
        4,
        _READER,
        "OFFSET_OUT_OF_RANGE}:  # noqa: SLF001\n                    raise RetriableError(",
        "OFFSET_OUT_OF_RANGE}:  # noqa: SLF001\n                    return\n                    raise RetriableError(",
        protocol="tests/unit/test_kafka_reader.py",
    ),
    one_edit(
        "a reader skips deleted records",
        4,
        _READER,
        '"auto.offset.reset": "error"',
        '"auto.offset.reset": "earliest"',
        protocol="tests/unit/test_kafka_reader.py",
        model=False,
    ),
    one_edit(
        "any later record proves a slow one",
        12,
        _LOG,
        "if rows and (rows[0].offset, rows[0].value) == (offset, value):",
        "if rows:",
        protocol="tests/unit/test_kafka_decision_log.py",
    ),
    one_edit(
        "a refused commit counts as failed without a successful abort",
        12,
        _DRIVER,
        "if inner.txn_requires_abort() and self._abort():",
        "if inner.txn_requires_abort():",
        protocol="tests/unit/test_kafka_decision_log.py",
    ),
    one_edit(
        "a ledger belongs to whichever sink comes",
        13,
        _LOG,
        'if first.sink not in {"", self._settings.name}:',
        "if False:",
        protocol="tests/live/rules/test_rule_13_ledgers.py tests/unit/test_kafka_decision_log.py",
        model=False,
    ),
    one_edit(
        "two sinks of a query may share a ledger",
        13,
        "twopc/participants.py",
        "            if bound[one] == bound[other]:\n",
        "            if False:\n",
        protocol="tests/live/rules/test_rule_13_ledgers.py",
        model=False,
    ),
    one_edit(
        "a row may go to a ledger",
        14,
        "sinks/kafka/settings.py",
        "        return topic in _INTERNAL | self.other_ledgers | {self.ledger} or topic.startswith(_LEDGERS)\n",
        "        return topic in _INTERNAL\n",
        protocol="tests/unit/test_kafka_columns.py tests/live/rules/test_rule_14_topics.py",
        model=False,
    ),
    one_edit(
        "a row may go to the ledger of another sink of the query",
        14,
        "integration/spark/foreach_batch.py",
        "ExactlyOnce([sink.beside(everyone) for sink in sinks], ",
        "ExactlyOnce(sinks, ",
        protocol="tests/unit/test_spark_options.py",
        model=False,
    ),
    one_edit(
        "what could not be deleted is read by every start",
        14,
        _LOG,
        "            if found > 0:\n                return max(found, earliest)\n",
        "",
        protocol="tests/live/rules/test_rule_14_wedges.py -k start_reads",
        model=False,
    ),
    one_edit(
        "a start reads registers below the truncation",
        14,
        "twopc/registers.py",
        "                self._start = found\n",
        "",
        protocol="tests/unit/test_registers_truncation.py",
        model=False,
    ),
    one_edit(
        "verify names aborted records as strays",
        0,
        "integration/verify/strays.py",
        "            if next(iter(batch)).commit:\n",
        "            if next(iter(batch)):\n",
        protocol="tests/live/test_verify.py -k stray",
        model=False,
    ),
    one_edit(
        "the user's backoff holds for decisions",
        12,
        _DRIVER,
        '                "retry.backoff.ms": str(RETRY_BACKOFF_MS),\n',
        "",
        protocol="tests/unit/test_kafka_decision_log.py",
        model=False,
    ),
    one_edit(
        "a repeated acquisition fences again",
        1,
        _LOG,
        "        if self._run == claim.run:\n            return self.driver_epoch\n",
        "",
    ),
    one_edit(
        "the first statistics decide the partitions",
        3,
        _WRITER,
        "            complete = sum(count for ranges in sent.values() for count in ranges.values()) > self._rows\n",
        "            complete = bool(sent)\n",
        protocol="tests/unit/test_kafka_writer.py",
        model=False,
    ),
    one_edit(
        "an id that the broker has forgotten counts as committed",
        4,
        _COMMITTER,
        "if report == NONE}",
        'if report in {NONE, "InvalidProducerIdMappingError"}}',
        protocol="tests/unit/test_kafka_confirm.py",
        model=False,
    ),
    one_edit(
        "one deleted record goes unnoticed",
        4,
        "sinks/kafka/markers.py",
        "    if earliest > start:\n",
        "    if earliest > start + 1:\n",
        protocol="tests/unit/test_kafka_markers.py",
        model=False,
    ),
)
