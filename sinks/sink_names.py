"""Check a sink's name. In every store, the name is part of ids, keys or file names."""

from __future__ import annotations

import re
from typing import Final

# A dot is not allowed, because the driver finds transactional ids in Kafka by the prefix "<name>.".
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
#: The advice for a name that is not allowed.
RULE: Final = "use 1 to 100 letters, digits, '_' or '-'"


def is_sink_name(text: str) -> bool:
    """Return whether a sink may have this name."""
    return _NAME.fullmatch(text) is not None
