"""Repeat an AdminClient's request, and refresh the client's metadata before each repetition."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaException
from tenacity import wait_fixed

from twopc.errors import UnavailableError
from twopc.retry import retrying
from twopc.sinks.kafka.errors import is_retriable

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

#: One request may take at most the timeout divided by this number, because librdkafka waits for a dead broker even if another
#: broker could respond.
_REQUESTS: Final = 8
_SHORTEST_REQUEST_S: Final = 1.0


def is_unavailable(error: BaseException) -> bool:
    """Return whether an error says only that no broker responded in time."""
    return isinstance(error, UnavailableError)


def ask(
    admin: AdminClient,
    request: Callable[[], T],
    *,
    timeout_ms: float,
    again: Callable[[BaseException], bool] = is_retriable,
) -> T:
    """Repeat ``request`` while its error is transient, and at most until the timeout.

    If one of these brokers does not respond, librdkafka (2.16) looks for another one only after its metadata is refreshed:

    - the leader of a partition (``rd_kafka_ListOffsets_handle_result`` in ``rdkafka_admin.c`` refreshes the metadata after
      NOT_LEADER_OR_FOLLOWER and LEADER_NOT_AVAILABLE, but not after silence or FENCED_LEADER_EPOCH);
    - the controller, to which librdkafka sends all other requests. In KRaft clusters, brokers name any running broker as the
      controller (``KafkaApis.handleTopicMetadataRequest``). If that broker stops, each request ends with "Timed out waiting
      for controller", for as long as the broker is down.

    Args:
        admin: the client.
        request: sends a request whose timeout is :func:`request_s`, and raises one of our own errors.
        timeout_ms: the timeout for all repetitions together.
        again: returns whether to repeat the request after an error.
    """

    def refresh(_: object) -> None:
        # Refresh the metadata of all topics, because a request for a single topic could create it.
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=request_s(timeout_ms))

    return retrying(again, timeout_s=timeout_ms / 1000, backoff=wait_fixed(0.05), before_sleep=refresh)(request)


def request_s(timeout_ms: float) -> float:
    """Return the timeout of one request, in seconds."""
    return min(timeout_ms / 1000, max(_SHORTEST_REQUEST_S, timeout_ms / 1000 / _REQUESTS))
