"""A Hadoop file system for each kind of checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.hadoop.hdfs import LocalHdfs
from tests.live.hadoop.s3 import LateListing, LocalS3

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3() -> Iterator[LateListing]:
    """An S3 endpoint that never lists the toolkit's own files."""
    with LocalS3() as server, LateListing(server, hidden="/twopc/") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def hdfs() -> Iterator[LocalHdfs]:
    """A file system that the tests of a run share. Each test uses its own directory."""
    with LocalHdfs() as cluster:
        yield cluster
