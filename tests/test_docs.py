"""The documents' code is executed, and what they list is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from twopc import faults

DOCS = Path(__file__).parent.parent / "docs"


def test_the_guide_to_writing_a_sink_works_as_it_stands(tmp_path: Path) -> None:
    text = (DOCS / "writing-a-sink.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == text.count("```python")
    namespace: dict[str, object] = {"__name__": "writing_a_sink", "directory": str(tmp_path)}
    try:
        for block in blocks:
            exec(compile(block, "docs/writing-a-sink.md", "exec", dont_inherit=True), namespace)  # noqa: S102 - our own document
    finally:
        faults.disarm()
    assert len(list((tmp_path / "out" / "published").iterdir())) == 4


def test_the_protocol_document_numbers_every_fault_point_in_order() -> None:
    text = (DOCS / "protocol.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `((?:driver|task)\.[a-z_]+)` \|", text, re.MULTILINE)
    assert [name for _, name in listed] == [*faults.POINTS, *faults.OCCASIONAL]
    assert [int(number) for number, _ in listed] == list(range(1, 1 + len(listed)))


def test_the_protocol_document_names_a_test_for_each_of_the_fourteen_rules() -> None:
    text = (DOCS / "protocol.md").read_text()
    named = re.findall(r"^\| (\d+) \|.*\| `(tests/live/rules/test_rule_\d\d_\w+\.py)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in named] == list(range(1, 15))
    missing = [path for _, path in named if not (DOCS.parent / path).is_file()]
    assert missing == []
