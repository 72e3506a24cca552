"""Check the values of the table properties that a write reads. pyiceberg would notice a bad value only during a batch.

Some values have worse effects than an error. With ``write.parquet.page-row-limit=0``, pyarrow never returns. With an unknown
``write.avro.compression-codec``, a batch is decided and then cannot be committed.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.codecs import CODEC_MAPPING_ICEBERG_TO_AVRO, KNOWN_CODECS
from pyiceberg.io.pyarrow import match_metrics_mode
from pyiceberg.schema import sanitize_column_names
from pyiceberg.types import strtobool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.table.metadata import TableMetadata

_FILE_SIZE: Final = "write.target-file-size-bytes"
PARQUET_CODEC: Final = "write.parquet.compression-codec"
_PARQUET_LEVEL: Final = "write.parquet.compression-level"
_MANIFEST_CODEC: Final = "write.avro.compression-codec"
METRICS: Final = "write.metadata.metrics."
_MOST: Final = 2**63 - 1

#: Each integer property, with its minimum and its default.
_INTEGERS: Final = {
    _FILE_SIZE: (1, 512 * 2**20),
    "write.parquet.row-group-limit": (1, 2**20),
    "write.parquet.page-row-limit": (1, 20_000),
    "write.parquet.page-size-bytes": (1, 2**20),
    "write.parquet.dict-size-bytes": (0, 2 * 2**20),
    "write.metadata.previous-versions-max": (0, 100),
    "buffer-size": (1, 2**20),
}
#: A table's properties also configure its storage, so some of them belong to S3.
_FLAGS: Final = (
    "write.object-storage.enabled",
    "write.metadata.delete-after-commit.enabled",
    "s3.force-virtual-addressing",
    "s3.resolve-region",
    "s3.anonymous",
)
_SECONDS: Final = ("s3.connect-timeout", "s3.request-timeout")
#: The properties that only data files depend on. Once a batch is decided, it does not matter whether they are valid.
_OF_DATA_FILES: Final = ("write.parquet.", _FILE_SIZE, METRICS)


def find_malformed(metadata: TableMetadata, *, is_decided: bool = False) -> Iterator[str]:
    """Yield a message for each property whose value a write cannot use.

    The message continues "table … " and tells the user what to do.

    Args:
        metadata: the table's metadata.
        is_decided: whether to skip the properties that only data files depend on.
    """
    properties = metadata.properties
    for name, why, good in (*_find_bad_values(properties), *_find_bad_codecs(properties), *_find_bad_metrics(metadata)):
        if not (is_decided and name.startswith(_OF_DATA_FILES)):
            yield (
                f"has {name}={properties[name]!r}, but {why}. Fix it: ALTER TABLE … SET TBLPROPERTIES ('{name}'='{good}')"
            )


def file_size(properties: Mapping[str, str]) -> int:
    """Return the size in bytes at which a data file is full."""
    _, default = _INTEGERS[_FILE_SIZE]
    return int(properties.get(_FILE_SIZE, default))


def parquet_codec(properties: Mapping[str, str]) -> str:
    """Return the name of the data files' compression codec. Iceberg ignores the case of the name."""
    return properties.get(PARQUET_CODEC, "zstd").lower()


def manifest_codec(properties: Mapping[str, str]) -> Any:
    """Return pyiceberg's name for the manifests' compression codec. Iceberg ignores the case of the name."""
    name = properties.get(_MANIFEST_CODEC, "gzip").lower()
    return {"uncompressed": "null", **CODEC_MAPPING_ICEBERG_TO_AVRO}.get(name, name)


def _find_bad_values(properties: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Yield the name of each bad property, the reason, and a good value."""
    for name, (least, default) in _INTEGERS.items():
        number = _parsed(int, properties.get(name, str(default)))
        if number is None or not least <= number <= _MOST:
            yield name, f"it must be an integer from {least} to {_MOST}", default
    for name in _FLAGS:
        if _parsed(strtobool, properties.get(name) or "false") is None:
            yield name, "it must be 'true' or 'false'", "false"
    for name in _SECONDS:
        if not (_parsed(float, properties.get(name) or "1") or 0) > 0:
            yield name, "it must be a positive number of seconds", 10


def _find_bad_codecs(properties: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Try the compression settings, and yield those that do not exist or that this installation does not support."""
    codec, level = parquet_codec(properties), _parsed(int, properties.get(_PARQUET_LEVEL) or "0")
    if why := _parquet_failure(codec, None):
        yield PARQUET_CODEC, f"pyarrow cannot compress Parquet files with it ({why})", "zstd"
    elif level is None:
        yield _PARQUET_LEVEL, "it must be an integer", 3
    elif properties.get(_PARQUET_LEVEL) and (why := _parquet_failure(codec, level)):
        yield _PARQUET_LEVEL, f"the compression {codec!r} does not support this level ({why})", 3
    if why := _manifest_failure(manifest_codec(properties)):
        yield _MANIFEST_CODEC, f"pyiceberg cannot compress manifests with it ({why})", "gzip"


def _find_bad_metrics(metadata: TableMetadata) -> Iterator[tuple[str, str, object]]:
    """Yield bad metrics modes. pyiceberg ignores the mode of a column that is not in the table."""
    columns = sanitize_column_names(metadata.schema()).column_names
    modes = {f"{METRICS}default": metadata.properties.get(f"{METRICS}default", "full")}
    modes |= {name: metadata.properties.get(name) or "full" for name in (f"{METRICS}column.{one}" for one in columns)}
    for name, mode in modes.items():
        if why := _failure(partial(match_metrics_mode, mode)):
            yield name, f"it must be none, counts, full or truncate(length) ({why})", "truncate(16)"


@lru_cache(maxsize=100)
def _parquet_failure(codec: str, level: int | None) -> str:
    table = pa.table({"value": [0]})
    options: Any = {"compression": "none" if codec == "uncompressed" else codec, "compression_level": level}
    return _failure(lambda: pq.write_table(table, pa.BufferOutputStream(), **options))


@lru_cache(maxsize=100)
def _manifest_failure(codec: Any) -> str:
    if codec not in KNOWN_CODECS:
        return f"pyiceberg supports only {', '.join(KNOWN_CODECS)}"
    known = KNOWN_CODECS[codec]
    return "" if known is None else _failure(lambda: known.compress(b"value"))


def _parsed(parse: Callable[[str], float], text: str) -> float | None:
    """Parse a value; return None if it is malformed."""
    try:
        return parse(text)
    except ValueError:
        return None


def _failure(trial: Callable[[], object]) -> str:
    """Say why a trial failed; return an empty string if it succeeded."""
    try:
        trial()
    except Exception as error:  # noqa: BLE001 - each library raises its own errors
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return ""
