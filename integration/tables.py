"""Print tables for people and for pipes. Cells are never truncated or wrapped, so you can search for an id and copy it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

_GAP: Final = "  "


def show_table(
    console: Console,
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    left: Collection[str],
    first_to_go: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        console: a terminal, a file or a pipe. Files and pipes receive every column, even if the table is very wide.
        titles: the column titles.
        rows: the cells of each row.
        left: the titles of the columns that contain text; the other columns contain numbers.
        first_to_go: the columns to leave out, in this order, if the terminal is too narrow. The last line names the
            columns that are left out.
    """
    widths = {title: max(map(_width, [title, *cells])) for title, *cells in zip(titles, *rows, strict=True)}
    gone = []
    for title in first_to_go if console.is_terminal else ():
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= console.width:
            break
        del widths[title]
        gone.append(title)
    for number, row in enumerate([titles, *rows]):
        shown = [(title, cell) for title, cell in zip(titles, row, strict=True) if title in widths]
        cells = [_padded(cell, widths[title], is_left=title in left) for title, cell in shown]
        line = Text(_GAP).join(cells)
        line.rstrip()
        if number == 0:
            line.stylize("bold")
        console.print(line, soft_wrap=True)
    if gone:
        text = f"Columns omitted to fit a window {console.width} characters wide: {', '.join(gone)}."
        console.print(Text(text, style="dim"), soft_wrap=True)


def _width(cell: str | Text) -> int:
    return cell_len(str(cell))


def _padded(cell: str | Text, width: int, *, is_left: bool) -> Text:
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    missing = width - _width(cell)
    text.pad_right(missing) if is_left else text.pad_left(missing)
    return text
