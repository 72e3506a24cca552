"""The output of the commands in a narrow window, in a wide one, and into a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.history_support import ended, failed, write
from twopc.integration.operate.opened import OpenTransaction, Standing
from twopc.integration.operate.printing import show_transactions

_ID = "orders-enriched-by-customer-and-product.00000000000000000004.{}.0"


def printed(width: int, *, is_terminal: bool) -> list[str]:
    found = [
        OpenTransaction(
            transactional_id=_ID.format(task), producer_id=task, producer_epoch=0, state="Ongoing",
            standing=Standing.DECIDED, age_s=12.0, expires_in_s=888.0, batch=41, task=task, rows=10_000,
        )
        for task in (3, 11)
    ]  # fmt: skip
    file = StringIO()
    show_transactions(found, Console(file=file, width=width, force_terminal=is_terminal, color_system=None))
    return re.sub(r"\x1b\[\d*m", "", file.getvalue()).splitlines()


def test_output_to_a_pipe_contains_every_column_and_whole_ids() -> None:
    head, *lines = printed(20, is_terminal=False)
    assert head.split()[-4:] == ["in", "batch", "rows", "evidence"]
    assert [line.split()[0] for line in lines] == [_ID.format(3), _ID.format(11)]
    assert lines[0].endswith("the decision for batch 41 names this transaction (task 3)")


@pytest.mark.parametrize(("width", "gone"), [(108, "evidence"), (100, "evidence, rows"), (60, "evidence, rows, batch")])
def test_a_table_omits_columns_and_lists_their_names_if_the_window_is_too_narrow(width: int, gone: str) -> None:
    head, first, _, last = printed(width, is_terminal=True)
    assert last == f"Columns omitted to fit a window {width} characters wide: {gone}."
    assert _ID.format(3) in first
    assert not [name for name in gone.split(", ") if name in head]
    assert width < 100 or len(first) <= width


def test_a_wide_enough_window_shows_every_column() -> None:
    head, *lines = printed(200, is_terminal=True)
    assert "evidence" in head and len(lines) == 2


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_history_in_a_real_terminal_has_no_line_that_wraps(tmp_path: Path, columns: int) -> None:
    lines = [ended(number, rows=12_345_678, took_ms=654_321.0) for number in range(3)]
    checkpoint = write(tmp_path / "c", [*lines, failed(3, "BadRecordError", "bad")])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    command = [str(Path(sys.executable).parent / "twopc"), "history", str(checkpoint)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}):
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
    os.close(ours)
    shown = re.sub(r"\x1b\[[\d;]*m", "", output.decode()).splitlines()
    table = shown[:5]
    assert max(map(len, table)) <= columns and "…" not in "".join(shown)
    assert all("12,345,678" in line for line in table[1:4]) is (columns > 60)
    assert ("Columns omitted" in shown[5]) is (columns < 200)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the terminal's other side is closed
        return b""
