"""Wrap the pyiceberg internals that this sink uses.

If pyiceberg moves one of them, a test fails (``test_iceberg_private.py``).

In pyiceberg, no public function writes a data file without committing it, and none lists a directory. Also, pyiceberg's
requests to REST catalogs have no time limit.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import _ENV_CONFIG, PY_CATALOG_IMPL, TYPE, URI, load_catalog
from pyiceberg.catalog.rest import SIGV4_MAX_RETRIES, SNAPSHOT_LOADING_MODE, RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2AuthManager, OAuth2TokenProvider
from pyiceberg.io.pyarrow import (
    PYARROW_PARQUET_FIELD_ID_KEY,
    ParquetFormatModel,
    PyArrowFileIO,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import sanitize_column_names
from pyiceberg.types import UUIDType
from pyiceberg.utils.config import merge_config
from requests import Session

from twopc.sinks.iceberg.properties import METRICS, PARQUET_CODEC, parquet_codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest.auth import AuthManager
    from pyiceberg.io import FileIO
    from pyiceberg.io.fileformat import FileFormatWriter
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from requests import PreparedRequest, Response

_MODEL: Final = ParquetFormatModel()
_FIELD_ID: Final = PYARROW_PARQUET_FIELD_ID_KEY
_TIMEOUT_MS: Final = "twopc.timeout-ms"
_NAME: Final = "name"
_USUAL_NAME: Final = "default"


def configured(catalog: str) -> Mapping[str, Any]:
    """Return a catalog's properties from the environment and from pyiceberg's configuration file."""
    return _ENV_CONFIG.get_catalog_config(catalog) or {}


def whole(catalog: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the properties that a user has passed with those that are :func:`configured`, as pyiceberg does.

    Code that depends on a catalog's properties must use this result, because a user may pass only the catalog's name.
    """
    found = {key: value for key, value in configured(catalog.get(_NAME, _USUAL_NAME)).items() if key != _NAME}
    return merge_config(found, dict(catalog))


def open_catalog(catalog: Mapping[str, Any], timeout_ms: int) -> Catalog:
    """Open the catalog that these properties describe. If it is a REST catalog, set a time limit for each of its requests.

    pyiceberg must not load :class:`TimedRestCatalog` as a user-defined class, because such a class does not receive the
    properties that are only :func:`configured`.
    """
    given = dict(catalog)
    name = given.pop(_NAME, _USUAL_NAME)
    properties = {key: value for key, value in whole(catalog).items() if key != _NAME}
    if given.get(PY_CATALOG_IMPL) or not _is_rest(properties):
        return load_catalog(name, **given)
    # The driver itself repeats a failed request. Without this setting, pyiceberg would repeat a signed request 10
    # times.
    return TimedRestCatalog(name, **{SIGV4_MAX_RETRIES: "0", **properties, _TIMEOUT_MS: str(timeout_ms)})


def _is_rest(properties: Mapping[str, Any]) -> bool:
    """Return whether pyiceberg would open a REST catalog for these properties. Without a URI, it would open none."""
    kind, uri = properties.get(TYPE), str(properties.get(URI) or "")
    return uri != "" and (str(kind).lower() == "rest" if kind else uri.startswith("http"))


class ParquetFile:
    """Writes one Parquet file, with the table's field ids, compression and column metrics."""

    def __init__(self, io: FileIO, metadata: TableMetadata, path: str) -> None:
        self.path = path
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # pyiceberg warns about options that only the Java writer supports, such as bloom filters
            output = io.new_output(path)
            schema = sanitize_column_names(metadata.schema())
            self._ids = parquet_path_to_id_mapping(schema)
            # Iceberg for Java compares UUIDs as signed numbers, so it would skip some UUIDs that lie between the bounds. It
            # also fails if it has to look for a UUID in Parquet's own bounds or in a dictionary.
            unordered = {id_ for id_ in self._ids.values() if isinstance(schema.find_type(id_), UUIDType)}
            properties = {
                **metadata.properties,
                PARQUET_CODEC: parquet_codec(metadata.properties),
                **{f"{METRICS}column.{schema.find_column_name(id_)}": "none" for id_ in unordered},
            }
            writer: Any = _MODEL.create_writer(output, schema, properties)
        others = [path for path, id_ in self._ids.items() if id_ not in unordered]
        writer._parquet_writer_kwargs.update(write_statistics=others, use_dictionary=others)  # noqa: SLF001 - see above
        self._writer: FileFormatWriter = writer
        self._nans = Counter[int]()

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        self._writer.write(rows)
        for field, column in zip(rows.schema, rows.columns, strict=True):
            self._nans.update(dict(_nans(field, column)))

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        stream: Any = self._writer._fos  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        return 0 if stream is None else int(stream.tell())

    def close(self) -> dict[str, Any]:
        """Complete the file, and return its statistics for a manifest entry.

        The statistics from pyiceberg would be wrong in three cases. If a value exceeds 4 KiB, Parquet omits its row group's
        bounds. pyiceberg would then use only the other row groups' bounds for the file, and readers would wrongly skip
        the file. The bounds do not cover NaNs. If NaNs were not counted, a DELETE for other rows would also delete rows with
        NaN. A truncated string may end in a character that has no successor.
        """
        statistics: Any = self._writer.close()
        for field_id in self._unbounded():
            statistics.column_aggregates.pop(field_id, None)
        for bounds in statistics.column_aggregates.values():
            try:
                bounds.max_as_bytes()
            except UnicodeEncodeError:  # the next character after U+D7FF is a surrogate
                bounds.current_max = None
        counted = self._nans.keys() & statistics.value_counts.keys()
        statistics.nan_value_counts.update({field_id: self._nans[field_id] for field_id in counted})
        return dict(statistics.to_serialized_dict())

    def _unbounded(self) -> Iterator[int]:
        """Yield the ids of columns that have values but no bounds in at least one row group."""
        footer = self._writer._writer.writer.metadata  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                found = column.statistics
                if found is None or not (found.has_min_max or found.null_count == column.num_values):
                    yield self._ids[column.path_in_schema]


def _nans(field: pa.Field[Any], values: Any) -> Iterator[tuple[int, int]]:
    """Count NaNs by field id.

    Do not count the NaNs in elements of lists and maps, because readers do not need these counts.
    """
    if pa.types.is_floating(field.type):
        yield int((field.metadata or {})[_FIELD_ID]), pc.sum(pc.is_nan(values)).as_py() or 0
    elif pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            yield from _nans(field.type.field(index), pc.struct_field(values, [index]))


def listed(file_io: FileIO, location: str) -> Iterator[tuple[str, bool]]:
    """Yield each name in a directory, with a flag that says whether it is a file.

    Yield nothing if this FileIO cannot list directories.
    """
    scheme, netloc, path = PyArrowFileIO.parse_location(location, file_io.properties)
    if isinstance(file_io, PyArrowFileIO):
        selector = FileSelector(path, allow_not_found=True)
        for info in file_io.fs_by_scheme(scheme, netloc).get_file_info(selector):
            yield info.base_name, info.type is FileType.File
    elif hasattr(file_io, "get_fs"):
        with contextlib.suppress(FileNotFoundError):
            for found in file_io.get_fs(scheme).ls(path, detail=True):
                yield found["name"].rstrip("/").rpartition("/")[2], found["type"] == "file"


class _TimedTokens(OAuth2TokenProvider):
    """Requests a token with a time limit. pyiceberg requests it outside the catalog's session, and without a limit."""

    def __init__(self, provider: OAuth2TokenProvider, timeout_ms: int) -> None:
        self.__dict__.update(provider.__dict__)
        self._timeout_ms = timeout_ms

    def _refresh_token(self) -> None:
        scope = {"scope": self.scope} if self.scope else {}
        with Session() as session:
            _limit(session, self._timeout_ms)
            response = session.post(
                self.token_url,
                data={"grant_type": "client_credentials", **scope},
                headers={"Authorization": self._client_secret_header},
            )
        response.raise_for_status()
        found = response.json()
        lasts_s = found.get("expires_in", self.expires_in)
        if lasts_s is None:
            raise ValueError("the token response contains no expires_in. Set expires_in in the catalog's configuration")
        self._token = found["access_token"]
        self._expires_at = time.monotonic() + lasts_s - self.refresh_margin


class TimedRestCatalog(RestCatalog):
    """A REST catalog with a time limit for all requests, even the first one.

    Without this limit, pyiceberg would wait forever.
    """

    def _create_session(self) -> Session:
        session = super()._create_session()
        _limit(session, self._timeout_ms())
        if isinstance(self._auth_manager, OAuth2AuthManager):
            manager: Any = self._auth_manager
            manager.token_provider = _TimedTokens(manager.token_provider, self._timeout_ms())
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        _limit(session, self._timeout_ms())  # the call below requests a token
        return super()._create_legacy_oauth2_auth_manager(session)

    def _timeout_ms(self) -> int:
        return int(self.properties[_TIMEOUT_MS])


def delete_old_metadata(before: Table, metadata: TableMetadata) -> None:
    """If the table's properties ask for it, delete the metadata files that a commit has dropped from the table's log.

    pyiceberg does this only in its own transactions. A failure does no harm.
    """
    with contextlib.suppress(Exception):
        before.catalog._delete_old_metadata(before.io, before.metadata, metadata)  # noqa: SLF001 - see above


def limit_time(catalog: Catalog, timeout_ms: int) -> None:
    """Set a time limit for an open REST catalog's requests. The catalog's class may be user-defined."""
    if isinstance(catalog, RestCatalog):
        _limit(catalog._session, timeout_ms)  # noqa: SLF001 - see above


def load_all_snapshots(catalog: Catalog) -> None:
    """Make an open REST catalog return all snapshots, regardless of what the user or the server has configured.

    With the mode ``refs``, the catalog would return only the snapshots to which a branch or tag points. The sink would not see
    the batches that Spark's own writer committed.
    """
    if isinstance(catalog, RestCatalog):
        catalog.properties.pop(SNAPSHOT_LOADING_MODE, None)


def _limit(session: Session, timeout_ms: int) -> None:
    """Set the time limit in the session, because an adapter that signs requests sets no limit, and must not be replaced."""
    send = session.send

    def limited(request: PreparedRequest, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or timeout_ms / 1000
        return send(request, **options)

    session.send = limited  # type: ignore[method-assign]
