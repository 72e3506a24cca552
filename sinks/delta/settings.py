"""Check the arguments of a Delta sink. :class:`twopc.sinks.delta.DeltaSink` documents them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from twopc.errors import ConfigurationError
from twopc.redaction import flaws_in
from twopc.sinks.arguments import Arguments
from twopc.sinks.delta.objections import find_malformed, find_objections
from twopc.sinks.delta.rows import fit_rows
from twopc.sinks.delta.store import Store, local_path
from twopc.sinks.delta.table import definition_of
from twopc.sinks.fresh import fresh
from twopc.sinks.lake.errors import explaining
from twopc.uris import has_secrets, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from twopc.sinks.delta.table import Definition
    from twopc.sinks.lake.rows import RowFormat

#: With these options, a commit may overwrite another commit's version of the log.
_UNSAFE: Final = ("allow_unsafe_rename", "aws_s3_allow_unsafe_rename", "mount_allow_unsafe_rename")
#: deltalake decodes a path one time too many. It looks for the table ``a%20b`` in ``a b``, and for ``a\\b`` in ``a/b``.
_MISREAD: Final = "%\\"
_FALSE: Final = ("", "0", "false", "no", "off", "n", "f")


@dataclass(frozen=True, kw_only=True)
class DeltaSettings(Arguments):
    """The settings that a writer and a committer need; see :class:`Arguments`."""

    table_uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, hash=False)  # may contain credentials
    timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.table_uri, str) and self.table_uri, "table_uri", "pass a path")
        if has_secrets(self.table_uri):  # every message about the table contains its URI
            raise ConfigurationError(
                f"DeltaSink(table_uri={shown(self.table_uri)!r}): the URI contains a user, a password or options after a '?', "
                "which deltalake ignores. Pass credentials and options in storage_options"
            )
        self._require(
            not self.table_uri.startswith("memory:"),
            "table_uri",
            "an in-memory table exists in only one process. Pass a table that the driver and all executors can reach",
        )
        self._require(
            not set(str(local_path(self.table_uri) or unquote(self.table_uri))) & set(_MISREAD),
            "table_uri",
            "deltalake misreads '%' and '\\\\' in a path, so it may confuse one table with another. Rename the "
            "directory",
        )
        options: Any = self.storage_options
        self._require(
            options is None
            or (isinstance(options, dict) and all(isinstance(one, str) for pair in options.items() for one in pair)),
            "storage_options",
            "pass the deltalake options as a dictionary of strings",
        )
        for option in _unsafe(options or {}):
            self._refuse(
                "storage_options",
                f"{option} lets two commits overwrite each other. Remove this option. docs/delta.md says what to use "
                "instead",
            )
        for problem in flaws_in(options or {}):
            self._refuse("storage_options", problem)

    def store(self) -> Store:
        """Create a store. The store loads the table later. The caller must close the store.

        Raises:
            ConfigurationError: this process's environment lets two commits overwrite each other.
        """
        for variable in _unsafe(os.environ):
            raise ConfigurationError(
                f"sink {self.name!r}: the environment variable {variable} lets two commits overwrite each other. Nothing was "
                "written. Remove the variable from the environment of the driver and the executors"
            )
        return Store(self.table_uri, self.storage_options, timeout_ms=self.timeout_ms)

    def require_supported(self, definition: Definition) -> None:
        """Reject a table with features or settings that this sink does not support.

        Raises:
            ConfigurationError: the table has an unsupported feature or setting. The message identifies the feature or
                setting, and says what to do.
        """
        for objection in (*find_objections(definition), *find_malformed(definition.configuration)):
            raise ConfigurationError(f"sink {self.name!r}: table {self.table_uri} {objection}. Nothing was written")


@fresh
def row_format(settings: DeltaSettings, schema: pa.Schema) -> RowFormat:
    """Determine how to write a batch's rows. The driver reads the table at most once every 30 s. Each task reads it, too.

    Raises:
        SchemaError: the columns do not fit the table.
        ConfigurationError: the table cannot be read, or it has a feature or setting that the sink does not support.
    """
    with (
        explaining(f"sink {settings.name!r}, reading table {settings.table_uri}"),
        contextlib.closing(settings.store()) as store,
    ):
        definition = definition_of(store.load())
    settings.require_supported(definition)
    return fit_rows(schema, definition, settings.table_uri)


def _unsafe(options: Mapping[str, str]) -> list[str]:
    return [name for name, value in options.items() if name.lower() in _UNSAFE and value.strip().lower() not in _FALSE]
