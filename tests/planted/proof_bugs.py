"""Broken variants of what is read and asked before something counts as proven, each in the part that does it."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_COMMITTER: Final = "sinks/kafka/committer.py"
_CONFIRM: Final = "sinks/kafka/confirm.py"
_DRIVER: Final = "sinks/kafka/driver_producer.py"
_LOG: Final = "sinks/kafka/decision_log.py"
_READER: Final = "sinks/kafka/reader.py"
_WRITER: Final = "sinks/kafka/writer.py"

PROOF_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "a transaction that is being ended is confirmed",
        3,
        _CONFIRM,
        '    if found.state != "Ongoing":\n',
        "    if False:\n",
        protocol="tests/unit/test_kafka_confirm.py",
        model=False,
    ),
    one_edit(
        "a decision that is missing between two is not missed",
        11,
        "twopc/log_view.py",
        "decision.batch_id - last.batch_id not in {0, 1})",
        "decision.batch_id < last.batch_id)",
        protocol="tests/unit/test_log_view.py",
        model=False,
    ),
    one_edit(
        "markers that cannot be read are absent",
        4,
        _COMMITTER,
        "for name in names), Evidence.UNKNOWN)",
        "for name in names), Evidence.ABORTED)",
    ),
    one_edit(
        "what was deleted while it was read is absent",
        4,
        _READER,
        "OFFSET_OUT_OF_RANGE}:  # noqa: SLF001\n                    return None",
        "OFFSET_OUT_OF_RANGE}:  # noqa: SLF001\n                    return rows",
        protocol="tests/unit/test_kafka_reader.py",
    ),
    one_edit(
        "a reader goes on behind what was deleted",
        4,
        _READER,
        '"auto.offset.reset": "error"',
        '"auto.offset.reset": "earliest"',
        protocol="tests/unit/test_kafka_reader.py",
        model=False,
    ),
    one_edit(
        "whatever follows a slow record proves it",
        12,
        _LOG,
        "if rows and (rows[0].offset, rows[0].value) == (offset, value):",
        "if rows:",
        protocol="tests/unit/test_kafka_decision_log.py",
    ),
    one_edit(
        "a commit that is refused needs no abort that succeeds",
        12,
        _DRIVER,
        "if inner.txn_requires_abort() and self._abort():",
        "if inner.txn_requires_abort():",
        protocol="tests/unit/test_kafka_decision_log.py",
    ),
    one_edit(
        "a repeated take-over begins anew",
        1,
        _LOG,
        "        if self._run == claim.run:\n            return self._driver_epoch\n",
        "",
    ),
    one_edit(
        "the partitions are those that the first statistics tell",
        3,
        _WRITER,
        "            complete = sum(count for ranges in sent.values() for count in ranges.values()) > self._rows\n",
        "            complete = bool(sent)\n",
        protocol="tests/unit/test_kafka_writer.py",
        model=False,
    ),
    one_edit(
        "an id that the broker has forgotten was committed",
        4,
        _COMMITTER,
        "            if report == NONE:\n                proven",
        '            if report in {NONE, "InvalidProducerIdMappingError"}:\n                proven',
        protocol="tests/unit/test_kafka_confirm.py",
        model=False,
    ),
    one_edit(
        "one deleted record is not missed",
        4,
        "sinks/kafka/marker_search.py",
        "    if earliest > start:\n",
        "    if earliest > start + 1:\n",
        protocol="tests/unit/test_kafka_markers.py",
        model=False,
    ),
)
