"""docs/redis.md names every mapping and every right that the tests use."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sinks.redis import mappings as redis_mappings
from sinks.redis.mappings import Mapping
from tests.live.redis.test_topology import RIGHTS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()


def test_every_mapping_has_its_row() -> None:
    classes = [c for c in vars(redis_mappings).values() if isinstance(c, type) and issubclass(c, Mapping)]
    made = {c.__name__ for c in classes if not inspect.isabstract(c)}
    assert set(re.findall(r"^\| `([A-Z]\w+)\(", DOCUMENT, re.MULTILINE)) == made


def test_every_right_is_listed() -> None:
    assert set(re.findall(r"\+\w+", RIGHTS)) <= set(re.findall(r"\+\w+", DOCUMENT))
