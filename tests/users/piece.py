"""A piece of a program: a few lines that people write, and the facts that the judge needs about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Loose(IntEnum):
    """How far the rows of two runs of the same program may differ; a program is as loose as its loosest piece."""

    EXACT = 0  # the same rows
    IDS = 1  # the same ids: the rows contain a random value or a time
    UNION = 2  # the same ids across all sinks: a random split
    SOME = 3  # the same number of rows, with ids from the input: a limit without an order
    ANY = 4  # ids from the input, none more often than allowed: a random filter


@dataclass(frozen=True)
class Piece:
    """Some lines of a program.

    Attributes:
        name: for the summary of a run.
        text: the lines.
        loose: see :class:`Loose`.
        adds: the columns that the rows have afterwards.
        copies: how often each id may occur afterward.
        mistake: whether the product may answer with an error that names what to change.
        after: lines for the end of the function.
        top: lines for the top of the program.
        drops: whether columns that were added before are gone.
        sinks: how many sinks it needs.
        ties: whether it chooses among rows that differ only in what ``explode`` adds.
        weight: how often it is drawn, compared with others.
    """

    name: str
    text: str
    loose: Loose = Loose.EXACT
    adds: tuple[str, ...] = ()
    copies: int = 1
    mistake: bool = False
    after: str = ""
    top: str = ""
    drops: bool = False
    sinks: int = 1
    ties: bool = False
    weight: int = 1
