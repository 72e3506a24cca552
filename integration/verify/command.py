"""``twopc verify`` behind its options: run it, print what it found, return the exit status."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console

from integration.verify.watch import run_verify
from twopc.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    from integration.verify.connection import Connection
    from integration.verify.verifier import VerifyOptions
    from integration.verify.watch import Pace

_NO_ERRORS: Final = 0
_ERRORS_FOUND: Final = 1
_NOT_CHECKED: Final = 2


def main(connection: Connection, options: VerifyOptions, pace: Pace, *, as_json: bool) -> int:
    """Verify a sink.

    Args:
        connection: the sink.
        options: what to check.
        pace: how often.
        as_json: print JSON objects to stdout, everything else to stderr.

    Returns:
        the exit status.
    """
    stderr = Console(stderr=True, highlight=False)
    console = stderr if as_json else Console(highlight=False)
    try:
        is_ok = run_verify(connection.kafka_sink(), options, pace, console, typer.echo if as_json else None)
    except TwoPhaseCommitError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - Python would exit with status 1, which means that the sink has errors
        traceback.print_exc()
        problem = (
            f"unexpected {type(error).__name__} ({error}). The sink was not checked. Please report this with the traceback "
            "above."
        )
    else:
        return _NO_ERRORS if is_ok else _ERRORS_FOUND
    stderr.print(f"twopc verify: {problem}", style="red", markup=False, soft_wrap=True)
    return _NOT_CHECKED
