"""Read Spark's UI, which shows the status store of the server's JVM as JSON (``org.apache.spark.status.api.v1``)."""

from __future__ import annotations

import http.client
import re
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from twopc.errors import FatalError, UnavailableError

FoundT = TypeVar("FoundT")

_TIMEOUT_S: Final = 10.0
#: Spark's message for a job, stage or RDD that is missing from its status store. Any other "not found" is an error.
_UNKNOWN: Final = re.compile("unknown job|unknown stage|no rdd found")
_ANYTHING: Final = re.compile("")
_TIMES: Final = ("submissionTime", "completionTime")
_DROPPED: Final = "LiveListenerBus.queue.appStatus.numDroppedEvents"


class SparkUi:
    """Reads one application's UI. Follows no redirect and uses no proxy, so every response comes from the given address.

    Opens a connection for each request, so several threads may use the same object.

    Args:
        address: the address of the UI, ``http://<host>:<port>``.
        application: the application's id. Spark's UI does not respond to requests for another application.
    """

    def __init__(self, address: str, application: str) -> None:
        self.address = address
        self._parts = urlsplit(address)
        self._base = f"/api/v1/applications/{quote(application, safe='')}"

    def one(self, path: str, of: type[FoundT]) -> FoundT | None:
        """Return one of the application's objects; None if Spark's status store does not contain it.

        Raises:
            UnavailableError: the UI does not respond.
            FatalError: the response is not from this application's UI.
        """
        found = self._get(f"{self._base}/{path}")
        return None if found is None else self._converted(_in_ms(found), of)

    def several(self, path: str, of: type[FoundT]) -> list[FoundT]:
        """Return a list of the application's objects; empty if Spark's status store does not contain them.

        Raises:
            UnavailableError, FatalError: as for :meth:`one`.
        """
        found = self._get(f"{self._base}/{path}")
        return [] if found is None else [self._converted(_in_ms(one), of) for one in found]

    def dropped_events(self) -> int:
        """Return how many events Spark dropped because its status store's queue was full.

        Raises:
            UnavailableError: the UI does not respond.
            FatalError: the UI does not show the counter.
        """
        found = self._get("/metrics/json/", _ANYTHING) or {}  # without the trailing slash, Spark redirects the request
        counts = [value["count"] for name, value in found.get("counters", {}).items() if name.endswith(_DROPPED)]
        if len(counts) != 1:
            raise FatalError(
                f"Spark's UI at {self.address} does not show whether Spark has lost reports about its jobs and stages: "
                f"/metrics/json/ shows {len(counts)} counters named …{_DROPPED}, instead of 1. So the toolkit cannot "
                "check whether a stage ran twice and mixed the rows of two shuffles. No part of this attempt is decided "
                "or visible. Remove the settings that disable the UI's metrics (spark.metrics.conf.*.sink.servlet.*), "
                "and restart the server"
            )
        return int(counts[0])

    def page(self, path: str) -> str | None:
        """Return a page of the UI as HTML; None if the UI does not show the page.

        Raises:
            UnavailableError: the UI does not respond.
        """
        response, body = self._response(f"/{path}", "text/html")
        return body.decode(errors="replace") if response.status == http.client.OK else None

    def _get(self, path: str, absent: re.Pattern[str] = _UNKNOWN) -> Any:
        response, body = self._response(path, "application/json")
        if response.status == http.client.NOT_FOUND and absent.search(body.decode(errors="replace")):
            return None
        if response.status != http.client.OK:
            raise self._unexpected(f"{path}: {response.status} {response.reason}")
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise self._unexpected(f"{path}: {error}") from error

    def _response(self, path: str, accepted: str) -> tuple[http.client.HTTPResponse, bytes]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.netloc, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", f"{self._parts.path.rstrip('/')}{path}", headers={"Accept": accepted})
            response = connection.getresponse()
            return response, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"Spark's UI at {self.address} does not respond ({type(error).__name__}: {error}). So the toolkit "
                "cannot check whether a stage ran twice and mixed the rows of two shuffles. No part of this attempt is "
                "decided or visible. If this happens again, check two settings. The server must run with "
                "spark.ui.enabled=true. CheckpointConfig.spark_ui must be an address at which the server's own host can "
                "reach the UI (spark.ui.port)"
            ) from error
        finally:
            connection.close()

    def _converted(self, found: Any, of: type[FoundT]) -> FoundT:
        try:
            return msgspec.convert(found, of)
        except msgspec.ValidationError as error:
            raise self._unexpected(str(error)) from error

    def _unexpected(self, what: str) -> FatalError:
        return FatalError(
            f"{self.address} responds, but not as this Spark application's UI ({what}). So the toolkit cannot check "
            "whether a stage ran twice and mixed the rows of two shuffles. No part of this attempt is decided or visible. "
            "Set CheckpointConfig.spark_ui to an address at which the server's own host can reach the UI without a "
            "proxy. The UI's access lists (spark.acls.enable) and filters (spark.ui.filters) must allow requests "
            "without a user name from that host"
        )


def _in_ms(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace times such as ``2026-01-31T12:00:00.000GMT`` with milliseconds since 1970."""
    return fields | {name: _ms(fields[name]) for name in _TIMES if isinstance(fields.get(name), str)}


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("GMT", "+00:00")).timestamp() * 1000)
