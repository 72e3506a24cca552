"""How a command ends that did not come to its answer: one line on stderr, and an exit status of its own."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from rich.console import Console

from twopc.errors import TwoPhaseCommitError

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
    """Run a command; return its exit status.

    Args:
        name: of the command, behind ``twopc``.
        act: does it, prints the answer, and returns the status.
        not_done: the status if something is wrong. Python's own, 1, has a meaning in most commands.
        expected: the status of errors whose message says enough; with those of the protocol it does, too. Any other one comes
            with its traceback.
        interrupted: what to say after Ctrl-C; None leaves that to the caller.
    """
    known: tuple[type[Exception], ...] = (*expected, TwoPhaseCommitError)
    try:
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
