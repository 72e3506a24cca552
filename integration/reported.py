"""Handle a failed command: print one line to stderr, and return the exit status for the failure."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from rich.console import Console

from twopc.errors import TwoPhaseCommitError
from twopc.integration.signals import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NONE: Final[Mapping[type[Exception], int]] = {}


def reported(
    name: str,
    act: Callable[[], int],
    *,
    not_done: int,
    expected: Mapping[type[Exception], int] = _NONE,
    interrupted: str | None = None,
) -> int:
    """Run a command, and return its exit status. After a signal, the command cleans up before it exits.

    Args:
        name: the command's name, which follows ``twopc``.
        act: runs the command, prints the result, and returns the exit status.
        not_done: the exit status after an error. Python's own status for errors, 1, has another meaning in most commands.
        expected: the exit status for each type of error that needs no traceback. The protocol's errors never need a
            traceback. Any other error is printed with its traceback.
        interrupted: the text to print after Ctrl-C, or None to let the KeyboardInterrupt reach the caller.
    """
    known: tuple[type[Exception], ...] = (*expected, TwoPhaseCommitError)
    try:
        with ended_by_signals(*known):
            return act()
    except known as error:
        problem, status = str(error), next((expected[kind] for kind in expected if isinstance(error, kind)), not_done)
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        problem, status = interrupted, not_done
    except Exception as error:  # noqa: BLE001 - see `not_done`
        traceback.print_exc()
        problem = f"unexpected {type(error).__name__} ({error}). Please report this with the traceback above."
        status = not_done
    stderr = Console(stderr=True, highlight=False)
    stderr.print(f"twopc {name}: {problem}", style="red", markup=False, soft_wrap=True)
    return status
