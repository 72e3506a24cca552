"""The times with which the engine planned a batch (rule 10). With other times, a batch's state and rows may differ."""

from __future__ import annotations

from typing import NamedTuple


class Times(NamedTuple):
    """A batch's times, in milliseconds since 1970.

    Attributes:
        watermark_ms: the watermark at which the batch's windows end and its late rows are dropped.
        timestamp_ms: the batch's current time, at which its timers fire.
    """

    watermark_ms: int
    timestamp_ms: int
