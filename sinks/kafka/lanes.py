"""Send many requests concurrently over several connections to the same brokers.

On each connection, a broker handles one request at a time. The broker reads the next request only after it has sent the
previous response (``processNewResponses`` and ``mute`` in Kafka's ``SocketServer.scala``). The broker answers an EndTxn
request only after the replicas of ``__transaction_state`` have stored it. On a single connection, each EndTxn request
therefore waits for the replication of all earlier EndTxn requests.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import TwoPhaseCommitError
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.sinks.kafka.broker_connection import BrokerConnection

logger = logging.getLogger(__name__)

#: Several connections help only with this number of requests or more. One connection handles fewer requests just as fast.
_MANY: Final = 32
_LANES: Final = 4


class Lanes:
    """Uses one connection, and opens more connections after the first large set of requests.

    Threads may share this object.

    The additional connections open in the background, so a commit never waits for them.

    Args:
        first: the first connection; the caller closes it.
        connect: opens another connection, or raises a TwoPhaseCommitError.
    """

    def __init__(self, first: BrokerConnection, connect: Callable[[], BrokerConnection]) -> None:
        self._first = first
        self._connect = connect
        self._further: list[BrokerConnection] = []
        self._opening: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def send_all(self, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See :meth:`BrokerConnection.send_all`."""
        if len(requests) < _MANY:
            return self._first.send_all(requests)
        lanes = [self._first, *self._further]
        if len(lanes) < _LANES:
            self._open_more()
        count = len(lanes)
        if count == 1:
            return self._first.send_all(requests)
        shares = [requests[number::count] for number in range(count)]
        outcomes: list[Any] = [None] * len(requests)
        sent = at_once(
            lambda number: lanes[number].send_all(shares[number]), range(count), threads=count, name="twopc-send"
        )
        for number, part in enumerate(sent):
            outcomes[number::count] = part
        return outcomes

    def close(self) -> None:
        """Close the additional connections."""
        with self._lock:
            self._is_closed = True
            opened, self._further = self._further, []
        for lane in opened:
            lane.close()

    def _open_more(self) -> None:
        with self._lock:
            if self._is_closed or (self._opening is not None and self._opening.is_alive()):
                return
            opening = threading.Thread(target=self._open, name="twopc-lanes", daemon=True)
            with suppress(RuntimeError):  # a process at its limit of threads uses the connections that it has
                opening.start()
                self._opening = opening

    def _open(self) -> None:
        for _ in range(_LANES - 1 - len(self._further)):
            try:
                lane = self._connect()
            except TwoPhaseCommitError as error:
                logger.warning(
                    "no additional connection could be opened. Large commits take longer, but no data is at risk. Cause: %s",
                    error,
                )
                return
            with self._lock:
                if not self._is_closed:
                    self._further = [*self._further, lane]
                    continue
            lane.close()
            return
