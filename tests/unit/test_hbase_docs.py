"""docs/hbase.md names every mapping, and only modules that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from twopc.sinks.hbase import mappings as hbase_mappings
from twopc.sinks.hbase.mappings import Mapping

DOCUMENT = (Path(__file__).parents[2] / "docs" / "hbase.md").read_text()


def test_the_docs_list_every_mapping() -> None:
    classes = [one for one in vars(hbase_mappings).values() if isinstance(one, type) and issubclass(one, Mapping)]
    made = {one.__name__ for one in classes if hasattr(one, "operation") and not inspect.isabstract(one)}
    assert set(re.findall(r"^\| `([A-Z]\w+)\(", DOCUMENT, re.MULTILINE)) == made


def test_every_module_in_the_docs_exists() -> None:
    named = set(re.findall(r"`sinks/hbase/([a-z_]+\.py)`", DOCUMENT))
    assert named and all((Path(hbase_mappings.__file__).parent / name).is_file() for name in named)
