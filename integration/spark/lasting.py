"""Reject a query whose next start would not find its checkpoint.

Spark lets a ``foreachBatch`` query start without a ``checkpointLocation`` (``ResolveWriteToStream``). Then the checkpoint is
a temporary directory, or, if ``spark.sql.streaming.checkpointLocation`` is set and the query has no name, a directory
with a random name. Each start makes a new directory, so each start is a new query, which starts from the beginning or
skips rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError
from twopc.integration.spark.running import CHECKPOINTS

if TYPE_CHECKING:
    from twopc.integration.spark.running import RunningQuery

_RANDOM: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TEMPORARY: Final = f"temporary-{_RANDOM}"
_LOCATION: Final = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL
)
_EACH_START: Final = (
    "Each time you start this program, Spark would use a new checkpoint and run a new query, so rows would be lost or "
    "duplicated. Nothing was written"
)


def require_lasting(query: RunningQuery) -> None:
    """Check that the query's next start will find the query's checkpoint.

    A directory that Spark has just made begins with batch 0. If the batch has a higher number, the directory already existed.

    Raises:
        ConfigurationError: Spark has created the directory for this start only.
    """
    location = query.checkpoint_location
    parent, _, last = location.rstrip("/").rpartition("/")
    if query.batch_id > 0:
        return
    if re.fullmatch(_TEMPORARY, last):
        raise ConfigurationError(
            f"query {query.query_id} has no checkpointLocation, so Spark uses the temporary directory {location!r}. "
            f"{_EACH_START}. Set .option('checkpointLocation', …) to a permanent directory, and restart"
        )
    if re.fullmatch(_RANDOM, last) and query.name is None and _is_in(parent, query.checkpoint_parent):
        raise ConfigurationError(
            f"query {query.query_id} has neither a checkpointLocation nor a name, so Spark uses {location!r}, a directory "
            f"with a random name below {CHECKPOINTS}. {_EACH_START}. Set .option('checkpointLocation', …), or give the query a "
            "fixed name with .queryName(…), and restart. If you have set this location yourself, pass it to exactly_once(), too, "
            "as checkpoint_location"
        )


def _is_in(parent: str, configured: str | None) -> bool:
    """Whether a resolved path is the configured directory, which may be relative and may omit its file system."""
    if configured is None:
        return False
    found, wanted = _parts_of(parent), _parts_of(configured)
    if not wanted["scheme"] and wanted["path"] and not configured.startswith("/"):
        return found["path"].endswith("/" + wanted["path"])
    return found["path"] == wanted["path"] and all(
        wanted[part] in ("", found[part]) for part in ("scheme", "authority")
    )


def _parts_of(location: str) -> dict[str, str]:
    found = _LOCATION.fullmatch(location.rstrip("/"))
    assert found is not None, location  # the pattern always matches, because every part is optional
    return found.groupdict(default="")
