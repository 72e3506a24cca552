"""Requests about many transactions continue while reports become final (rule 4)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twopc.sinks.kafka.reports import NO_ANSWER, NONE, until_final

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_MS = 100.0
IDS = [f"s.1.w.{number}" for number in range(5)]


def test_each_final_response_restarts_the_timeout() -> None:
    """Caught mutation: one deadline for all requests. Each takes over half of it, and together they take three times as long."""

    def end_first(ids: Sequence[str]) -> dict[str, str]:
        time.sleep(TIMEOUT_MS / 1000 * 0.6)
        return {tid: NONE if tid == ids[0] else NO_ANSWER for tid in ids}

    assert until_final(IDS, end_first, timeout_ms=TIMEOUT_MS) == dict.fromkeys(IDS, NONE)


def test_a_wait_without_final_responses_ends_after_the_timeout() -> None:
    asked: list[int] = []

    def end_none(ids: Sequence[str]) -> dict[str, str]:
        asked.append(len(ids))
        return dict.fromkeys(ids, NO_ANSWER)

    began = time.monotonic()
    assert until_final(IDS, end_none, timeout_ms=TIMEOUT_MS) == dict.fromkeys(IDS, NO_ANSWER)
    assert time.monotonic() - began >= TIMEOUT_MS / 1000
    assert len(asked) > 1
