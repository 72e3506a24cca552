"""docs/redis.md names every mapping, and every ACL right that the tests use."""

from __future__ import annotations

import re
from pathlib import Path

from tests.live.redis.test_rights import COMMANDS, MAPPINGS, OWN
from twopc.sinks.redis import mappings as redis_mappings
from twopc.sinks.redis.mappings import Mapping

DOCUMENT = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()


def test_the_docs_list_every_mapping() -> None:
    classes = [c for c in vars(redis_mappings).values() if isinstance(c, type) and issubclass(c, Mapping)]
    made = {c.__name__ for c in classes if hasattr(c, "command")}
    assert set(re.findall(r"^\| `([A-Z]\w+)\(", DOCUMENT, re.MULTILINE)) == made


def test_the_docs_list_every_right() -> None:
    used = " ".join([COMMANDS, *(more for _, more in MAPPINGS)])
    assert set(re.findall(r"\+\w+", used)) <= set(re.findall(r"\+\w+", DOCUMENT))
    assert f"`{OWN.format(name='<name>')}`" in DOCUMENT
