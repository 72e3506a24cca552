"""Draws a program from a seed; the same seed always yields the same program."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.users import pieces_before as before
from tests.users import pieces_frame as frame
from tests.users import pieces_query as query
from tests.users import pieces_write as write
from tests.users.piece import Loose, Piece
from tests.users.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.users.program import Row

_TENANTS: Final = ("a", "b", "c")
_SIMPLE: Final = "one call"


@dataclass
class _Draft:
    """A program in the making."""

    chance: random.Random
    pieces: list[Piece] = field(default_factory=list)
    tops: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: ["tenant", "n"])
    has_time: bool = True

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def one_of(self, pieces: Sequence[Piece]) -> Piece:
        return self.chance.choices(pieces, [piece.weight for piece in pieces])[0]

    def note(self, piece: Piece) -> Piece:
        self.pieces.append(piece)
        if piece.top and piece.top not in self.tops:
            self.tops.append(piece.top)
        if piece.after:
            self.after.insert(0, piece.after)
        if piece.drops:
            self.columns, self.has_time = ["tenant", "n"], False
        self.columns += [column for column in piece.adds if column not in self.columns]
        return piece

    def add(self, piece: Piece) -> None:
        self.body.append(self.note(piece).text)

    def fits(self, piece: Piece) -> bool:
        return (self.has_time or '"at"' not in piece.text) and not set(piece.adds) & set(self.columns)


def drawn(seed: int) -> Program:
    """Draw the program of a seed."""
    draft = _Draft(random.Random(f"users {seed}"))
    wrong = _mistake(draft) if draft.maybe(0.45) else None
    is_stateful = wrong != "shared" and draft.maybe(0.25)
    batches = _batches(draft, 4 if is_stateful else 3)
    stream = draft.note(draft.one_of(query.STATEFUL if is_stateful else query.STREAMS))
    if wrong == "skip":
        draft.add(draft.one_of(before.SKIPS))
    _look(draft)
    draft.body.append("out = batch")
    _transform(draft)
    settings = draft.note(draft.one_of(query.SETTINGS)).text
    many = 2 if draft.maybe(0.4) or wrong == "queries" else 1
    is_double = many == 2 and (wrong == "queries" or (wrong is None and draft.maybe(0.15)))
    written = _written(draft, wrong, many, is_double=is_double)
    if draft.maybe(0.15) and not is_double and written.name in {_SIMPLE, "select *, then", "swallows"}:
        settings += draft.note(query.SELECT).text.format(other=query.SELECT_OTHER if many == 2 else "")
    else:
        _finish(draft)
    number = draft.note(draft.one_of(write.WRONG_NUMBERS if wrong == "number" else write.NUMBERS)).text
    loose = _loosest(draft, written)
    text = _text(draft, stream, written, number, settings, many, wrong, is_double=is_double)
    partly = is_stateful and any(piece.name in {"limit", "limit of all"} for piece in draft.pieces)
    copies = 2 if wrong in {"queries", "shared"} else 1  # both queries write to one sink
    for piece in draft.pieces:
        copies *= piece.copies
    return Program(
        seed=seed,
        pieces=tuple(piece.name for piece in draft.pieces),
        text=text,
        sinks=many,
        batches=batches,
        source="kafka" if draft.maybe(0.35) and all(batches) else "files",
        faults=_faults(draft),
        loose=loose,
        copies=copies,
        mistakes=(
            *(piece.name for piece in draft.pieces if piece.mistake),
            *(["part of a stateful batch"] if partly else []),
            *([wrong] if wrong in {"queries", "shared", "checkpoint"} else []),
        ),
        is_stateful=is_stateful,
    )


def _mistake(draft: _Draft) -> str:
    kinds = {"write": 8, "number": 5, "skip": 4, "queries": 1, "shared": 1, "checkpoint": 1}
    return draft.chance.choices(list(kinds), list(kinds.values()))[0]


def _batches(draft: _Draft, count: int) -> tuple[tuple[Row, ...], ...]:
    batches: list[tuple[Row, ...]] = []
    rows: list[Row] = []
    for number in range(draft.chance.randint(2, count)):
        size = 0 if draft.maybe(0.15) else draft.chance.randint(1, 9)
        new: list[Row] = [
            {
                "id": f"{number}-{place:02d}",
                "tenant": draft.chance.choice(_TENANTS),
                "n": draft.chance.randrange(1, 40),
                "at": f"2026-01-01T00:{2 * number:02d}:{5 * place:02d}Z",
            }
            for place in range(size)
        ]
        if rows and new and draft.maybe(0.3):
            again = draft.chance.choice(rows)
            rows.remove(again)  # so that no row occurs three times
            new.append(again)
        batches.append(tuple(new))
        rows += new[:size]
    return tuple(batches)


def _look(draft: _Draft) -> None:
    """The operations on the batch before it is written."""
    if draft.maybe(0.3):
        draft.add(draft.one_of(before.SETTINGS))
    if draft.maybe(0.4):
        draft.add(draft.one_of(before.PROPERTIES))
    elif draft.maybe(0.45):
        draft.add(draft.one_of(before.CACHES))
    while draft.maybe(0.4):
        draft.add(draft.one_of(before.LOOKS))


def _transform(draft: _Draft) -> None:
    if draft.maybe(0.15) and not draft.columns[2:]:
        draft.add(draft.one_of(frame.GROUPED))
    while draft.maybe(0.55):
        piece = draft.one_of(frame.FUNCTIONS if draft.maybe(0.12) else frame.PLAIN)
        if draft.fits(piece):
            draft.add(piece)


def _written(draft: _Draft, wrong: str | None, sinks: int, *, is_double: bool) -> Piece:
    if is_double:
        return draft.note(write.WRITES[0])
    pieces = write.WRONG_WRITES if wrong == "write" else write.WRITES
    fitting = [piece for piece in pieces if piece.sinks == sinks] if draft.maybe(0.8) else []
    return draft.note(draft.one_of(fitting or [piece for piece in pieces if piece.sinks <= sinks]))


def _finish(draft: _Draft) -> None:
    final = draft.note(draft.one_of(frame.FINAL))
    values = ", ".join(f"CAST({column} AS STRING)" for column in draft.columns)
    names = ", ".join(f'"{column}"' for column in draft.columns)
    draft.body.append(final.text.format(values=values, names=names))


def _loosest(draft: _Draft, written: Piece) -> Loose:
    pieces = draft.pieces
    loose = max(piece.loose for piece in pieces)
    names = [piece.name for piece in pieces]
    if "explode" in names and any(piece.ties for piece in pieces[names.index("explode") :]):
        loose = max(loose, Loose.IDS)
    if "limit" in names:
        frames = [piece.name for piece in pieces if piece in frame.PLAIN + frame.FUNCTIONS]
        is_plain = frames[-1] == "limit" and names.count("limit") == 1 and written.name == _SIMPLE
        return Loose.SOME if is_plain and loose <= Loose.SOME else Loose.ANY
    if any(piece.loose is Loose.ANY for piece in pieces):
        return Loose.ANY
    chosen = {"limit of an order", "window", "dropDuplicates"}
    if loose is Loose.UNION and chosen & set(names):
        return loose
    return loose


def _faults(draft: _Draft) -> tuple[str, ...]:
    if draft.maybe(0.45):
        return ()
    count = 1 if draft.maybe(0.7) else 2
    return tuple(
        f"{draft.chance.choice(query.POINTS)}@{draft.chance.choice((1, 1, 2, 3))}={'drop' if draft.maybe(0.15) else 'raise'}"
        for _ in range(count)
    )


def _text(
    draft: _Draft,
    stream: Piece,
    written: Piece,
    number: str,
    settings: str,
    sinks: int,
    wrong: str | None,
    *,
    is_double: bool,
) -> str:
    names = "one, two" if sinks == 2 and not is_double else "one"
    place = 'CHECKPOINT + "-other"' if wrong == "checkpoint" else "CHECKPOINT"
    make = f"exactly_once({names}, checkpoint_location={place}{settings})"
    _, top, inside, each = draft.chance.choice(write.PLACES)
    _, function, reference = draft.chance.choice(write.SHAPES)
    if is_double:
        top, inside, each = "", "", "each"
        function, reference = (
            "def write(each, batch, batch_id):\n{body}",
            "functools.partial(write, {each})",
        )
    top, inside, each = (text.format(make=make) for text in (top, inside, each))
    lines = [*([inside] if inside else []), *draft.body, written.text.format(each=each, make=make, id=number)]
    if draft.after and draft.maybe(0.4):
        lines = [
            "try:",
            textwrap.indent("\n".join(lines), "    "),
            "finally:",
            textwrap.indent("\n".join(draft.after), "    "),
        ]
    else:
        lines += draft.after
    body = "\n".join(lines)
    function = function.format(body=textwrap.indent(body, "    "), body8=textwrap.indent(body, "        "))
    mode = f', mode="{stream.name}"' if stream.name in {"update", "complete"} else ""
    started = f"start({stream.text}, {reference}, CHECKPOINT{mode})"
    if is_double:
        second = "one" if wrong == "queries" else "two"
        top = f"first = {make}\nsecond = exactly_once({second}, checkpoint_location=CHECKPOINT_2{settings})"
        started = (
            started.format(each="first") + "\n" + started.replace("CHECKPOINT", "CHECKPOINT_2").format(each="second")
        )
    elif wrong == "shared":
        started += "\n" + started.replace("CHECKPOINT", "CHECKPOINT_2")
    parts = ["seen = []\ncounter = itertools.count()", *draft.tops, top, function, started]
    return "\n\n\n".join(part for part in parts if part) + "\n"
