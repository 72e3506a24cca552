"""Deliver alerts to a log, a webhook, or any callable that accepts an :class:`Alert`. No channel can delay a query."""

from __future__ import annotations

import http.client
import logging
import queue
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from tenacity import Retrying, retry_if_exception, stop_after_attempt
from tenacity.wait import WaitBaseT, wait_exponential

from twopc.errors import ConfigurationError
from twopc.integration.alerts.episodes import Alert
from twopc.redaction import REMEDY, flaw_of_header, is_header_name
from twopc.uris import is_readable, is_sendable

logger: Final = logging.getLogger("twopc.alerts")

Channel = Callable[[Alert], object]
_WAITING: Final = 100
_ASK_AGAIN: Final = frozenset({408, 429})
_SERVER_ERRORS: Final = 500


def to_log(alert: Alert) -> None:
    """Log the alert at WARNING to the logger ``twopc.alerts``.

    The end of an episode is also logged at WARNING, because INFO messages are often not shown.
    """
    logger.warning("%s", line(alert), extra=msgspec.to_builtins(alert))


def line(alert: Alert) -> str:
    """Format an alert as readable text."""
    return f"{alert.status} {alert.rule}, query {alert.query}: {alert.text} See {alert.runbook}"


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Rejects redirects.

    If a POST were redirected, it would become a GET without the alert, and the headers would be sent to the new
    address.
    """

    def redirect_request(self, *_: object) -> None:
        """Do not follow the redirect. The caller then receives the redirect's status code."""


_OPENER: Final = urllib.request.build_opener(_NoRedirection)


@dataclass(frozen=True)
class Webhook:
    """POSTs each alert as JSON.

    After ``attempts`` failed attempts, the alert is logged and dropped.

    Attributes:
        url: an http or https URL. The log shows only its host, because the rest may be private.
        headers: additional headers, such as ``Authorization``. The log never shows them.
        timeout_s: the time limit for connecting and for each wait for a response, in seconds.
        attempts: the maximum number of attempts to deliver an alert.
        backoff: the pause between two attempts.

    Raises:
        ConfigurationError: the URL or a header is not valid. The message does not show it.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 5.0
    attempts: int = 3
    backoff: WaitBaseT = field(default_factory=lambda: wait_exponential(min=1, max=10), repr=False)

    def __post_init__(self) -> None:
        if not is_sendable(self.url):
            raise ConfigurationError(
                "webhook.url must be http://host/… or https://host/…, without blanks, a comment, a user or a password (the "
                "URL is not shown, because it may be private)"
            )
        for name, value in self.headers.items():
            _require_header(name, value)
        if self.headers and is_readable(self.url):
            logger.warning(
                "webhook %s: the URL begins with http://, so others on the network can read the headers, which may contain a "
                "secret. Use https://",
                self._host,
            )
        if self.timeout_s <= 0 or self.attempts < 1:
            raise ConfigurationError("webhook.timeout and webhook.attempts must be greater than 0")

    def __call__(self, alert: Alert) -> None:
        """Send an alert.

        Raises:
            OSError: every attempt failed, or the server rejected the alert.
        """
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(self.attempts),
            wait=self.backoff,
            before_sleep=lambda state: logger.info("webhook %s: attempt %d failed", self._host, state.attempt_number),
            reraise=True,
        )
        try:
            retrying(self._post, msgspec.json.encode(alert))
        except urllib.error.HTTPError as error:
            raise OSError(f"webhook {self._host} responded with {error.code} {error.reason}") from None
        except OSError as error:
            raise OSError(f"webhook {self._host}: {getattr(error, 'reason', None) or error!r}") from None
        except (http.client.HTTPException, ValueError) as error:  # the message may quote the URL or a header
            raise OSError(f"webhook {self._host}: {type(error).__name__}") from None

    @property
    def _host(self) -> str:
        return urllib.parse.urlsplit(self.url).hostname or ""

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(self.url, body, headers, method="POST")  # noqa: S310 - see __post_init__
        try:
            with _OPENER.open(request, timeout=self.timeout_s):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise


def _require_header(name: str, value: str) -> None:
    if not is_header_name(name):
        raise ConfigurationError(
            "webhook.header.<name>: the name of a header may contain only letters, digits and '-' (this name is not shown, "
            "because it may be private)"
        )
    if not isinstance(value, str):
        raise ConfigurationError(f"webhook.header.{name}: the value is not a string")
    if problem := flaw_of_header(value):
        raise ConfigurationError(f"webhook.header.{name}: the value {problem}. {REMEDY}")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= _SERVER_ERRORS or error.code in _ASK_AGAIN
    return isinstance(error, (OSError, http.client.HTTPException))


def deliver(channel: Channel, alert: Alert) -> None:
    """Deliver an alert through a channel, and log any error."""
    try:
        channel(alert)
    except Exception as error:  # noqa: BLE001 - a channel's error must not affect the query
        logger.warning("an alert was not delivered: %s (%s)", error, line(alert))


class Post:
    """A channel with a short queue and its own thread. The thread ends when the queue is empty. The caller never waits.

    Args:
        channel: the channel.
        when_idle: a function that the channel's thread calls when every alert has been delivered or dropped.
    """

    def __init__(self, channel: Channel, when_idle: Callable[[], None]) -> None:
        self._channel = channel
        self._when_idle = when_idle
        self._waiting: queue.Queue[Alert] = queue.Queue(_WAITING)
        self._is_running = False
        self._starting = threading.Lock()  # held while the thread is being started or is about to end

    @property
    def is_busy(self) -> bool:
        """Whether an alert is still waiting for delivery."""
        return self._waiting.unfinished_tasks > 0

    def put(self, alert: Alert) -> None:
        """Queue an alert. If too many alerts are already waiting, log this alert and drop it."""
        with self._starting:
            try:
                self._waiting.put_nowait(alert)
            except queue.Full:
                logger.warning(
                    "an alert was dropped, because %d other alerts were still waiting to be sent: %s",
                    _WAITING,
                    line(alert),
                )
            if not self._is_running:
                threading.Thread(target=self._run, name="twopc-alert", daemon=True).start()
                self._is_running = True

    def flush(self, timeout_s: float) -> None:
        """Wait until every alert has been delivered or dropped, or until the time limit."""
        done = self._waiting.all_tasks_done
        with done:
            done.wait_for(lambda: not self._waiting.unfinished_tasks, timeout_s)

    def _run(self) -> None:
        while (alert := self._next()) is not None:
            deliver(self._channel, alert)
            self._waiting.task_done()
        self._when_idle()

    def _next(self) -> Alert | None:
        with self._starting:
            if self._waiting.empty():
                self._is_running = False
                return None
            return self._waiting.get_nowait()
