"""Serve this process's idle clients.

librdkafka queues a client's events, such as log lines, a lost broker or an expiring token, and this queue has no limit. While
nothing uses the client, the events would pile up, perhaps for days.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import cache
from typing import Final, Protocol
from weakref import WeakValueDictionary, ref

logger = logging.getLogger(__name__)

_EVERY_S: Final = 5.0


class Idle(Protocol):
    """An object with clients that may be idle."""

    def serve_idle(self) -> None:
        """Read the events of the clients that nothing uses at this moment."""


def keep_serving(one: Idle) -> None:
    """Call ``one.serve_idle()`` every few seconds in another thread, for as long as anything else refers to ``one``."""
    _served(os.getpid())[id(one)] = one


@cache
def _served(pid: int) -> WeakValueDictionary[int, Idle]:
    """Return the objects that a thread of this process serves. A forked process has none of its parent's threads."""
    served: WeakValueDictionary[int, Idle] = WeakValueDictionary()
    threading.Thread(target=_serve_forever, args=(served,), name=f"twopc-idle-clients-{pid}", daemon=True).start()
    return served


def _serve_forever(served: WeakValueDictionary[int, Idle]) -> None:
    failing: set[int] = set()
    while True:
        time.sleep(_EVERY_S)
        for reference in served.valuerefs():
            _serve(reference, failing)


def _serve(reference: ref[Idle], failing: set[int]) -> None:
    """Serve one object. ``failing`` contains the ids of the objects whose error has been logged."""
    # Each object is served in a separate call. A variable that lived longer would keep a dropped object's clients alive.
    one = reference()
    if one is not None:
        try:
            one.serve_idle()
            failing.discard(id(one))
        except Exception:  # the thread must continue to serve the other objects
            if id(one) not in failing:
                failing.add(id(one))
                logger.exception("the log lines of an idle Kafka client could not be read. No data is at risk")
