"""Store the reported episodes in a small file, so that a restart does not report the episodes again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.integration.alerts.episodes import State

if TYPE_CHECKING:
    from pathlib import Path

logger: Final = logging.getLogger("twopc.alerts")


def load(path: Path | None) -> State:
    """Read the file. If the file is absent or unreadable, return an empty state. An episode may then be reported twice."""
    if path is None:
        return State()
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning(
            "%s cannot be read, so if a rule is still firing, its alert will be sent again. Cause: %s", path, error
        )
        return State()


def save(path: Path | None, state: State) -> None:
    """Replace the file. If the file cannot be written, log a warning."""
    if path is None:
        return
    written = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_bytes(msgspec.json.encode(state))
        written.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written, so alerts may be sent again after a restart. Cause: %s", path, error)
