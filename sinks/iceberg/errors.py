"""Explain errors from a catalog or from the table's storage while a batch is undecided."""

from __future__ import annotations

from typing import Final

from twopc.errors import ConfigurationError, FatalError
from twopc.sinks.lake.errors import UNWRITABLE, Meaning, Translation

#: Each error's meaning, by the name of the error's class, because each catalog uses a different client.
_MEANINGS: Final[dict[str, Meaning]] = {
    "NoSuchTableError": (ConfigurationError, "Create the table, or check its name"),
    "NoSuchNamespaceError": (ConfigurationError, "Create the namespace and the table, or check the table name"),
    "UnauthorizedError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "OAuthError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ForbiddenError": (ConfigurationError, "Grant the sink's user the permissions that docs/iceberg.md lists"),
    "ArrowInvalid": (FatalError, UNWRITABLE),
    "PermissionError": (ConfigurationError, "Grant the sink's user the permissions that docs/iceberg.md lists"),
    "SignError": (ConfigurationError, "Check the credentials in the catalog's configuration"),
    "ModuleNotFoundError": (ConfigurationError, "Install the package that this catalog needs"),
    "ValidationError": (
        ConfigurationError,
        "Use a pyiceberg version that can read the table's metadata, or use another table",
    ),
    "BadRequestError": (FatalError, "The catalog rejected the request"),
}

#: The errors of an SQL catalog without the pyiceberg tables. SQLite and PostgreSQL use different names.
_WORDS: Final[dict[str, Meaning]] = {
    "no such table: iceberg_|undefinedtable.*iceberg_": (
        ConfigurationError,
        "This database does not contain an Iceberg catalog. Check the catalog's uri",
    ),
    "could not initialize fileio|py-io-impl should be": (
        ConfigurationError,
        "Correct the table's or catalog's py-io-impl property, or install the package that contains the class",
    ),
}


def _first_line(error: Exception) -> str:
    """Return the message's first line. Later lines may quote a long statement."""
    return next(iter(str(error).strip().splitlines()), "")


#: Turns an error from pyiceberg, or from an underlying client, into a StoreError.
translated: Final = Translation(_first_line, _MEANINGS, _WORDS)
