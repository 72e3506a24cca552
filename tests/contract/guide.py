"""The sink that docs/writing-a-sink.md builds, as a module that other processes can import."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import CodeType

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "writing-a-sink.md"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code(*, until: str | None = None) -> CodeType:
    """The document's Python code up to a heading, with the document's own line numbers, so that tracebacks point into it."""
    text = DOCUMENT.read_text()
    end = len(text) if until is None else text.index(until)
    source: list[str] = []
    for block in _BLOCK.finditer(text, 0, end):
        source += [""] * (text.count("\n", 0, block.start(1)) - len(source))
        source += block[1].splitlines()
    return compile("\n".join(source), DOCUMENT, "exec", dont_inherit=True)


# The code in the document defines these names.
SqliteSink: Any
create_tables: Any
exec(code(until="\n## Running it\n"), globals())  # noqa: S102 - the code is in our own documentation
