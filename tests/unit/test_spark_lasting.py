"""A query whose next start would not find its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from twopc.errors import ConfigurationError
from twopc.integration.spark.lasting import require_lasting

RANDOM = "0b5f2b1e-6d0c-4a0e-9d53-0f3d2a9c7e11"


@dataclass
class Running:
    checkpoint_location: str
    checkpoint_parent: str | None = None
    name: str | None = None
    batch_id: int = 0
    query_id: str = "mine"


def refused(**query: Any) -> str:
    with pytest.raises(ConfigurationError, match="Nothing was written") as raised:
        require_lasting(Running(**query))  # type: ignore[arg-type]
    return str(raised.value)


def test_a_temporary_checkpoint_is_refused() -> None:
    message = refused(checkpoint_location=f"file:/tmp/temporary-{RANDOM}")
    assert "temporary directory" in message and ".option('checkpointLocation', …)" in message


@pytest.mark.parametrize(
    ("location", "parent"),
    [
        ("file:/data/checkpoints", "/data/checkpoints"),
        ("file:/data/checkpoints", "file:///data/checkpoints/"),
        ("file:/home/me/checkpoints", "checkpoints"),
        ("hdfs://host:8020/checkpoints", "hdfs://host:8020/checkpoints"),
        ("hdfs://host:8020/checkpoints", "hdfs:///checkpoints"),
        ("hdfs://host:8020/checkpoints", "/checkpoints"),
        ("s3a://bucket", "s3a://bucket/"),
    ],
)
def test_a_checkpoint_with_a_random_name_below_the_configured_directory_is_refused(location: str, parent: str) -> None:
    message = refused(checkpoint_location=f"{location}/{RANDOM}", checkpoint_parent=parent)
    assert ".queryName(…)" in message and "spark.sql.streaming.checkpointLocation" in message


@pytest.mark.parametrize(
    "query",
    [
        Running("file:/data/orders"),
        Running("file:/tmp/temporary-orders"),
        Running(f"file:/tmp/temporary-{RANDOM}/checkpoint"),
        Running(f"file:/tmp/not-temporary-{RANDOM}"),
        Running(f"file:/data/{RANDOM}"),
        Running(f"file:/data/{RANDOM}", "/other"),
        Running(f"file:/data/checkpoints/{RANDOM}", "/checkpoints"),
        Running(f"file:/data/my-checkpoints/{RANDOM}", "checkpoints"),
        Running(f"file:/checkpoints/{RANDOM}", "hdfs:///checkpoints"),
        Running(f"s3a://mine/checkpoints/{RANDOM}", "s3a://shared/"),
        Running(f"s3a://mine/{RANDOM}", "s3a://shared/"),
        Running("file:/data/orders", "/data", "orders"),
        Running(f"file:/data/{RANDOM}", "/data", RANDOM),
        Running(f"file:/data/{RANDOM}", "/data", batch_id=1),
        Running(f"file:/tmp/temporary-{RANDOM}", batch_id=1),
    ],
    ids=lambda query: f"{query.checkpoint_location}-{query.checkpoint_parent}-{query.name}-{query.batch_id}",
)
def test_a_checkpoint_that_the_next_start_finds_is_accepted(query: Any) -> None:
    require_lasting(query)
