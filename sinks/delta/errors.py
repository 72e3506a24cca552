"""Explain errors from deltalake or from the table's storage while a batch is undecided."""

from __future__ import annotations

import re
from typing import Final

from twopc.errors import ConfigurationError, FatalError
from twopc.sinks.lake.errors import UNWRITABLE, Meaning, Translation

_MEANINGS: Final[dict[str, Meaning]] = {
    "TableNotFoundError": (ConfigurationError, "Create the table, or correct table_uri"),
    "DeltaProtocolError": (ConfigurationError, "Use a table without this feature"),
    "ArrowInvalid": (FatalError, UNWRITABLE),
    "PermissionError": (ConfigurationError, "Grant the sink's user the permissions that docs/delta.md lists"),
}
#: These errors are recognized by their messages, because their classes do not say why the storage rejected a request.
_WORDS: Final[dict[str, Meaning]] = {
    "accessdenied|access denied|forbidden|unauthorized|permission denied|invalidaccesskeyid|signaturedoesnotmatch": (
        ConfigurationError,
        "Check storage_options, and grant the sink's user the permissions that docs/delta.md lists",
    ),
    "unsupported table features|is not supported|catalog-managed": (
        ConfigurationError,
        "Use a table without this feature",
    ),
    "kernel error: schema error": (ConfigurationError, "Repair the table's schema, or use another table"),
    "found gap|expected contiguous": (
        ConfigurationError,
        "The table's log is damaged, because some of its files were deleted. Restore these files",
    ),
}
_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|\s+0: <unknown>.*", re.DOTALL)


def _one_line(error: Exception) -> str:
    """Remove line breaks, colors and stack frames from a message."""
    return " ".join(_NOISE.sub("", str(error)).split())


#: Turns an error from deltalake, or from the underlying storage, into a StoreError.
translated: Final = Translation(_one_line, _MEANINGS, _WORDS)
