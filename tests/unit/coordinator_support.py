"""Helpers for the coordinator tests."""

from __future__ import annotations

import pytest

from tests.unit.fake_sink import QUERY_ID, Cluster, Crash, Query
from twopc import crash_points
from twopc.files import LocalFiles
from twopc.registers import RegisterLog
from twopc.testing.crash_points import InjectedFault, arm

OTHER = "query-b"
DRIVER_POINTS = [name for name in crash_points.POINTS if name.startswith("driver.")]


def records(cluster: Cluster, kind: type) -> list[object]:
    return [entry.record for entry in RegisterLog(cluster.files).inspect().entries if isinstance(entry.record, kind)]


def fingerprint(cluster: Cluster) -> dict[str, bytes]:
    root = cluster.files.location
    files = LocalFiles(root)
    names = [*files.names(""), *(f"registers/{name}" for name in files.names("registers"))]
    return {name: files.read(name) or b"" for name in names if name != "registers"}


def die_at(
    cluster: Cluster, query: Query, point: str, batch: int, *, passage: int = 1, query_id: str = QUERY_ID
) -> None:
    arm(point, cluster.world.crash, passage=passage)
    with pytest.raises(Crash):
        query.run(batch, query_id=query_id)
    crash_points.disarm()


def fail() -> None:
    raise InjectedFault("as armed")
