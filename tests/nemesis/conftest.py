"""Fixtures for the network schedules: the broker of the live tests, a proxy in front of it, a query behind the proxy."""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.live.rules.schedules import Play, playing
from tests.nemesis.proxy import KafkaProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService

#: A client behind the proxy repeats a request that has been unanswered for this long.
REQUEST_TIMEOUT_MS = 1_000
STEP_TIMEOUT_MS = 3_000


@pytest.fixture
def proxy(kafka: KafkaService) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        yield proxy


@contextlib.contextmanager
def playing_behind(proxy: KafkaProxy, kafka: KafkaService, root: Path) -> Iterator[Play]:
    options = {"kafka.socket.timeout.ms": REQUEST_TIMEOUT_MS}
    with playing(kafka, root, timeout_ms=STEP_TIMEOUT_MS, options=options) as play:
        play.sink = dataclasses.replace(play.sink, bootstrap_servers=proxy.bootstrap_servers)
        yield play


@pytest.fixture
def play(kafka: KafkaService, proxy: KafkaProxy, tmp_path: Path) -> Iterator[Play]:
    """A query with all its clients behind the proxy. Observers and outsiders connect to the broker directly."""
    with playing_behind(proxy, kafka, tmp_path) as play:
        yield play


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Threads for drivers that the network blocks."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool
