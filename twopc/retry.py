"""Retry a step with backoff while its error is transient, or repeat it while its result is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity import RetryCallState
    from tenacity.stop import StopBaseT
    from tenacity.wait import WaitBaseT


def retrying(
    is_transient: Callable[[BaseException], bool],
    *,
    timeout_s: float,
    backoff: WaitBaseT,
    before_sleep: Callable[[RetryCallState], None] | None = None,
) -> Retrying:
    """Retry a step while its error is transient. After ``timeout_s``, raise the step's last error."""
    return Retrying(
        retry=retry_if_exception(is_transient),
        stop=stop_after_delay(timeout_s),
        wait=backoff,
        before_sleep=before_sleep,
        reraise=True,
    )


def repeating(
    *, stop: StopBaseT, backoff: WaitBaseT, before_sleep: Callable[[RetryCallState], None] | None = None
) -> Retrying:
    """Repeat a step while its result is true. After ``stop``, return the last result."""
    return Retrying(
        retry=retry_if_result(bool),
        stop=stop,
        wait=backoff,
        before_sleep=before_sleep,
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
