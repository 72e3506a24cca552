"""Explain errors of a catalog or of the table's storage for a batch that is not decided yet."""

from __future__ import annotations

from typing import Final

from twopc.errors import ConfigurationError, FatalError
from twopc.sinks.lake.errors import Meaning, Translation

#: The meanings by the name of the error's class, because each catalog has its own client.
_MEANINGS: Final[dict[str, Meaning]] = {
    "NoSuchTableError": (ConfigurationError, "Create the table, or correct its name"),
    "NoSuchNamespaceError": (ConfigurationError, "Create the namespace and the table, or correct the table's name"),
    "UnauthorizedError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "OAuthError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ForbiddenError": (ConfigurationError, "Grant the sink's user the rights that docs/iceberg.md lists"),
    "PermissionError": (ConfigurationError, "Grant the sink's user the rights that docs/iceberg.md lists"),
    "SignError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ModuleNotFoundError": (ConfigurationError, "Install the package that this catalog needs"),
    "ValidationError": (ConfigurationError, "Use a pyiceberg that can read the table's metadata, or another table"),
    "BadRequestError": (FatalError, "The catalog rejected the request"),
}


def _first_line(error: Exception) -> str:
    """Return the first line of the message. Later lines may quote a long statement."""
    return next(iter(str(error).strip().splitlines()), "")


#: Turns an error of pyiceberg, or of a client below it, into a StoreError.
translated: Final = Translation(_first_line, _MEANINGS)
