"""ZooKeeper's silence ends a request for HBase's servers in time."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from twopc.sinks.hbase import cluster


class LostSession:
    """A client that has lost its session after it connected. Its requests wait for a new session."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self, _timeout_s: float) -> None:
        pass

    def get_async(self, _znode: str) -> Any:
        return SequentialThreadingHandler().async_result()

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.timeout(60)
def test_a_request_ends_in_time_if_zookeeper_goes_away_after_it_has_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a commit would have waited for as long as ZooKeeper was away."""
    monkeypatch.setattr(cluster, "KazooClient", LostSession)
    with pytest.raises(ConnectionError, match="does not respond"):
        cluster.locate_meta("nowhere:1", 0.1)
