"""Prove that a fenced driver's last decision never reached the log.

An error from the append proves nothing. The record may have been written before the fence, even if the response came
too late. The log itself provides the proof (rule 1). The successor's record was written after the fence, so all of this
driver's decisions come before that record. If a reader reaches that record without finding the decision, the decision
was never written.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twopc.records import Acquired, Decision, Repair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.decision_log import DecisionLog
    from twopc.records import Record

logger = logging.getLogger(__name__)


def is_proven_absent(log: DecisionLog, records: Sequence[Record], *, driver_run_id: str, after: int) -> bool:
    """Whether the log proves that it does not contain any of these decisions and never will.

    If the log cannot be read, nothing is proven.

    Args:
        log: the log, which another driver now owns.
        records: the records that this driver was about to write.
        driver_run_id: this driver's run id.
        after: the offset of a record that this driver wrote before ``records``. If the log has been truncated past that record,
            nothing is proven.
    """
    attempts = {record.attempt for record in records if isinstance(record, (Decision, Repair))}
    is_succeeded = False
    try:
        contents = log.inspect()
        if contents.start > after:  # the successor may have truncated the decision
            return False
        for offset, record in contents.entries:
            if isinstance(record, (Decision, Repair)) and record.attempt in attempts:
                return False
            is_succeeded |= isinstance(record, Acquired) and offset > after and record.run != driver_run_id
    except Exception as error:  # noqa: BLE001 - a log may raise anything
        logger.warning(
            "%s cannot be read, so this driver's last decision may or may not have been written. Cause: %s",
            log.name,
            error,
        )
        return False
    return is_succeeded
