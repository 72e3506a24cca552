"""``twopc verify`` behind its options: run it, print what it found, return the exit status."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from integration.verify.watch import run_verify
from sinks.kafka.options import PREFIX
from twopc.errors import ConfigurationError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from integration.verify.verifier import VerifyOptions
    from integration.verify.watch import Pace
    from sinks.kafka import KafkaSink

_NO_ERRORS: Final = 0
_ERRORS_FOUND: Final = 1
_NOT_CHECKED: Final = 2


def main(sink: Callable[[], KafkaSink], options: VerifyOptions, pace: Pace, *, as_json: bool) -> int:
    """Verify a sink.

    Args:
        sink: describes the sink; a ConfigurationError is reported like those of the check.
        options: what to check.
        pace: how often.
        as_json: print JSON objects to stdout, everything else to stderr.

    Returns:
        the exit status.
    """
    stderr = Console(stderr=True, highlight=False)
    console = stderr if as_json else Console(highlight=False)
    try:
        is_ok = run_verify(sink(), options, pace, console, typer.echo if as_json else None)
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


def connection_options(pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Parse librdkafka's options: ``key=value`` words win over a properties file; the prefix ``kafka.`` is optional.

    Raises:
        ConfigurationError: an option is not ``key=value``, or the file cannot be read.
    """
    lines = list(pairs)
    if file is not None:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--config-file {file} cannot be read: {error}") from error
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")] + lines
    options = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigurationError("an option is not key=value (not shown: it may be a password)")
        options[PREFIX + name.strip().removeprefix(PREFIX)] = value.strip()
    return options
