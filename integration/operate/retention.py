"""How many periodic savepoints are kept. Those that somebody has asked for are never deleted, as in Flink."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from integration.operate.durable import sync
from integration.operate.manifest import savepoints_in

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


def keep_newest(directory: Path, query_id: str, num_retained: int) -> None:
    """Delete the periodic savepoints of a query but the newest. What fails is logged, and the next sweep tries again.

    Each gets a name first that nothing reads: a crash leaves a whole savepoint or none.
    """
    periodic = [
        one for one in savepoints_in(directory)[0] if one.manifest.is_periodic and one.manifest.query_id == query_id
    ]
    for one in periodic[num_retained:]:
        unnamed = one.path.with_name(f".{one.path.name}.deleted")
        try:
            one.path.rename(unnamed)
            sync(directory)
            shutil.rmtree(unnamed)
        except OSError as error:
            logger.warning("an old periodic savepoint could not be deleted: %s", error)
