"""The transactional ids of a sink: one for its drivers, one for each producer of its tasks."""

from __future__ import annotations


def prefix_of(sink: str) -> str:
    """What every transactional id of the sink starts with. Sink names have no dot, so no other sink shares it."""
    return f"{sink}."


def of_driver(sink: str) -> str:
    """The one id of all drivers of the sink: initialising it fences the former driver (rule 1)."""
    return f"{sink}.driver"


def of_task(sink: str, driver_epoch: int, worker: str, sequence: int) -> str:
    """The id of a Python worker's ``sequence``-th producer; ``worker`` is a UUID, so no two workers share an id."""
    return f"{sink}.{driver_epoch}.{worker}.{sequence}"


def driver_epoch_of(transactional_id: str) -> int | None:
    """The driver epoch in a task's transactional id; None for any other id."""
    parts = transactional_id.split(".")
    if len(parts) != 4 or not parts[1].isdigit():  # noqa: PLR2004 - the four parts
        return None
    return int(parts[1])
