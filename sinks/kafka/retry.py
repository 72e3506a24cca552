"""Retrying requests about transactions until every one has a final report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from sinks.kafka.reports import CONCURRENT, NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: The transaction is in transition, or the response was lost: the next request may say more.
NOT_FINAL: Final = frozenset({CONCURRENT, NO_ANSWER})
_BACKOFF_S: Final = 0.005
_BACKOFF_MAX_S: Final = 0.5


def until_final(
    transactional_ids: Iterable[str], request: Callable[[list[str]], Mapping[str, str]], *, timeout_ms: float
) -> dict[str, str]:
    """Request for all ids together, and with backoff again for those without a final report, until time runs out.

    Returns:
        the last report by transactional id; one of :data:`NOT_FINAL` where time ran out.
    """
    reports = dict.fromkeys(transactional_ids, NO_ANSWER)

    def pending() -> list[str]:
        return [tid for tid, report in reports.items() if report in NOT_FINAL]

    def send() -> bool:
        if waiting := pending():
            reports.update(request(waiting))
        return bool(pending())

    retrying = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_delay(timeout_ms / 1000),
        wait=wait_exponential(_BACKOFF_S, max=_BACKOFF_MAX_S),
        retry_error_callback=lambda _: None,  # out of time: the reports say which
    )
    retrying(send)
    return reports
