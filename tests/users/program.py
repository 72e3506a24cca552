"""One program of a user: its text, its input, its interruptions, and the facts that the judge needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.users.piece import Loose

#: A row of the input: its values by column. ``at`` is a timestamp.
Row = dict[str, object]


@dataclass(frozen=True)
class Program:
    """A program that :func:`tests.users.grammar.drawn` draws from a seed.

    Attributes:
        seed: the seed from which the program is drawn.
        pieces: the names of its pieces.
        text: Python, as a user writes it. ``runner.py`` says which names it finds.
        sinks: the number of its sinks.
        batches: the rows of each batch of the input.
        source: ``files`` or ``kafka``.
        faults: for each run but the last, the crash points that are armed, as text.
        loose: see :class:`Loose`.
        copies: how often an id may occur in a sink for each time that it occurs in the input.
        mistakes: the pieces for which the product may answer with an error; if there are none, it must not.
        is_stateful: whether the stream keeps state.
    """

    seed: int
    pieces: tuple[str, ...]
    text: str
    sinks: int
    batches: tuple[tuple[Row, ...], ...]
    source: str
    faults: tuple[str, ...]
    loose: Loose
    copies: int
    mistakes: tuple[str, ...]
    is_stateful: bool

    def __str__(self) -> str:
        sizes = ", ".join(str(len(rows)) for rows in self.batches)
        facts = [
            f"# program {self.seed}: {self.source} with {sizes} rows, interrupted at {', '.join(self.faults) or 'no point'}",
            f"# {', '.join(self.pieces)}",
            f"# judged: {self.loose.name.lower()}; mistakes: {', '.join(self.mistakes) or 'none'}",
        ]
        return "\n".join([*facts, self.text])
