"""The parts of pyiceberg that are not public: this notices when a new version moves one, before a batch does."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import SIGV4_MAX_RETRIES, RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2TokenProvider
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.fileformat import FileFormatWriter
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import ParquetFormatModel, PyArrowFileIO
from pyiceberg.manifest import construct_partition_summaries, write_manifest, write_manifest_list
from pyiceberg.table.update import AssertRefSnapshotId
from requests.adapters import HTTPAdapter

from tests.unit.iceberg_support import TAG, Shop
from twopc import IcebergSink, UnavailableError
from twopc.sinks.iceberg.files import TableFiles
from twopc.sinks.iceberg.private import ParquetFile, _TimedTokens, whole
from twopc.sinks.lake.errors import StoreError
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from requests import Session


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def test_the_installed_pyiceberg_version_is_one_whose_source_has_been_checked() -> None:
    assert importlib.metadata.version("pyiceberg").startswith("0.12.")


def test_the_functions_of_pyiceberg_have_the_signatures_that_the_sink_calls() -> None:
    expected: dict[Any, list[str]] = {
        Catalog.commit_table: ["self", "table", "requirements", "updates"],
        Catalog._delete_old_metadata: ["io", "base", "metadata"],
        ParquetFormatModel.create_writer: ["self", "output_file", "file_schema", "properties"],
        FileFormatWriter.write: ["self", "table"],
        FileFormatWriter.close: ["self"],
        PyArrowFileIO.parse_location: ["location", "properties"],
        FsspecFileIO.get_fs: ["self", "scheme", "hostname"],
        construct_partition_summaries: ["spec", "schema", "partitions"],
        RestCatalog._create_session: ["self"],
        RestCatalog._create_legacy_oauth2_auth_manager: ["self", "session"],
        RestCatalog._init_sigv4: ["self", "session"],
        OAuth2TokenProvider._refresh_token: ["self"],
        write_manifest: ["format_version", "spec", "schema", "output_file", "snapshot_id", "avro_compression"],
        write_manifest_list: [
            "format_version",
            "output_file",
            "snapshot_id",
            "parent_snapshot_id",
            "sequence_number",
            "avro_compression",
        ],
    }
    for function, names in expected.items():
        assert list(inspect.signature(function).parameters) == names, function.__qualname__


def test_a_parquet_file_is_written_in_row_groups_and_reports_its_size(shop: Shop) -> None:
    table = shop.table()
    path = f"{table.location()}/data/one.parquet"
    file = ParquetFile(table.io, table.metadata, path)
    assert file.size == 0
    rows = pa.table({"value": [1, 2], "note": ["a", None]}, schema=table.schema().as_arrow())
    sizes = []
    for _ in range(2):
        file.write(rows)
        sizes.append(file.size)
    assert 0 < sizes[0] < sizes[1]
    found = file.close()
    assert (found["record_count"], len(found["split_offsets"])) == (4, 2)
    assert found["null_value_counts"] == {1: 0, 2: 2}
    assert set(found) == {
        "record_count",
        "column_sizes",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
        "split_offsets",
    }


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_a_directory_is_listed(kind: type[PyArrowFileIO], tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "1" / "7").mkdir(parents=True)
    (root / "1" / "7" / "a.parquet").write_text("")
    (root / "2").mkdir()
    files = TableFiles(kind({}))
    assert files.listed(root.as_uri(), directories=True) == ["1", "2"]
    assert files.listed(f"{root.as_uri()}/1", directories=True) == ["7"]
    assert files.listed(f"{root.as_uri()}/1/7") == ["a.parquet"]
    assert files.listed(f"{root.as_uri()}/3/1") == [] == files.listed(f"{root.as_uri()}/3", directories=True)


def test_a_directory_without_a_scheme_is_listed_where_its_files_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def opened(_: PyArrowFileIO, scheme: str, netloc: str | None = None) -> LocalFileSystem:
        asked.append((scheme, netloc))
        return LocalFileSystem()

    monkeypatch.setattr(PyArrowFileIO, "_initialize_fs", opened)
    files = TableFiles(PyArrowFileIO({"DEFAULT_SCHEME": "hdfs", "DEFAULT_NETLOC": "namenode:8020"}))
    assert files.listed("/nowhere/data") == []
    assert files.size_of("/nowhere/data/a.parquet") is None
    assert set(asked) == {("hdfs", "namenode:8020")}


@contextlib.contextmanager
def _answering(respond: Callable[[BaseHTTPRequestHandler], tuple[int, Any]]) -> Iterator[str]:
    """A server; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = respond(self)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name that the base class looks for

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("place", ["catalog", "defaults", "overrides"])
def test_all_snapshots_are_loaded_even_if_a_setting_asks_only_for_some(place: str) -> None:
    """Spark's own writer records its batches in snapshots that no branch or tag names."""
    refs = {"snapshot-loading-mode": "refs"}
    config: dict[str, Any] = {"defaults": {}, "overrides": {}, place: refs}
    asked: list[str] = []

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        asked.append(request.path)
        if request.path.startswith("/v1/config"):
            return 200, config
        return 404, {"error": {"message": "no table", "type": "NoSuchTableException", "code": 404}}

    with _answering(respond) as uri:
        catalog = {"type": "rest", "uri": uri, **config.get("catalog", {})}
        with pytest.raises(StoreError, match="no table"):
            IcebergSink(name="orders", catalog=catalog, table="shop.orders").store().load()
    assert asked[-1] == "/v1/namespaces/shop/tables/orders"


class _Signing(HTTPAdapter):
    """As pyiceberg's own, which needs boto3."""


def _mount_signing(catalog: RestCatalog, session: Session) -> None:
    session.mount(catalog.uri, _Signing(max_retries=int(catalog.properties[SIGV4_MAX_RETRIES])))


OAUTH2 = {"client_id": "id", "client_secret": "secret", "expires_in": 60}


#: pyiceberg's own configuration, which it has read when it was imported.
OUTSIDE = "twopc.sinks.iceberg.private._ENV_CONFIG.config"


@pytest.mark.parametrize("given", ["all", "only the uri", "nothing"])
@pytest.mark.parametrize(
    "kind",
    [
        {"type": "rest"},
        {"type": "REST"},
        {},
        {"type": "rest", "rest.sigv4-enabled": "true"},
        {"type": "rest", "credential": "id:secret"},
        {"type": "rest", "auth": {"type": "oauth2", "oauth2": OAUTH2}},
    ],
    ids=str,
)
@pytest.mark.timeout(30)
def test_a_rest_catalog_that_does_not_respond_is_not_waited_for(
    kind: dict[str, Any], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its properties, or some of them, may be in the environment."""
    monkeypatch.setattr(RestCatalog, "_init_sigv4", _mount_signing)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if "auth" in kind:
            kind = {**kind, "auth": {"type": "oauth2", "oauth2": {**OAUTH2, "token_url": uri}}}
        properties = {**kind, "uri": uri}
        catalog = {"all": properties, "only the uri": {"uri": uri}, "nothing": {}}[given]
        outside = {key: value for key, value in properties.items() if key not in catalog}
        monkeypatch.setattr(OUTSIDE, {"catalog": {"lake": outside}})
        sink = IcebergSink(name="orders", catalog={**catalog, "name": "lake"}, table="shop.orders", timeout_ms=300)
        with pytest.raises(UnavailableError, match=r"loading table shop.orders: .*Read timed out"):
            Driver(sink)


@pytest.mark.parametrize("kind", [{"type": "rest"}, {}], ids=str)
def test_properties_in_the_environment_complete_those_that_are_passed(
    kind: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        asked.append((request.path, request.headers["Authorization"]))
        return 404, {"error": {"message": "no catalog", "type": "NotFoundException", "code": 404}}

    outside = {"type": "rest", "uri": "http://127.0.0.1:1", "token": "t1", "warehouse": "theirs", "s3.region": "eu"}
    monkeypatch.setattr(OUTSIDE, {"catalog": {"lake": outside}})
    with _answering(respond) as uri:
        catalog = {**kind, "name": "lake", "uri": uri, "warehouse": "ours"}
        with pytest.raises(StoreError, match="no catalog"):
            IcebergSink(name="orders", catalog=catalog, table="shop.orders").store().load()
    assert asked == [("/v1/config?warehouse=ours", "Bearer t1")]
    assert whole(catalog) == {**outside, **catalog}


@pytest.mark.parametrize("answer", [{"access_token": "t1", "expires_in": 3600}, {"access_token": "t1"}], ids=str)
def test_a_token_is_requested_as_pyiceberg_does(answer: dict[str, Any]) -> None:
    """The sink's own request differs only in its time limit."""
    asked: list[tuple[str, str | None]] = []

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        body = request.rfile.read(int(request.headers["Content-Length"])).decode()
        asked.append((body, request.headers["Authorization"]))
        return 200, answer

    with _answering(respond) as uri:
        theirs = OAuth2TokenProvider("id", "s", f"{uri}/token", "a b", expires_in=600)
        ours = _TimedTokens(OAuth2TokenProvider("id", "s", theirs.token_url, "a b", expires_in=600), 5_000)
        assert [theirs.get_token(), ours.get_token(), ours.get_token()] == ["t1"] * 3
        assert asked[0] == asked[1] and len(asked) == 2
        assert abs(theirs._expires_at - ours._expires_at) < 30


def test_a_catalog_refuses_each_stale_requirement_that_the_sink_sends(shop: Shop) -> None:
    """Each requirement by itself; and on a table without snapshots none about a tag."""
    with shop.warehouse.catalog() as catalog:
        table = catalog.load_table("shop.orders")
        tag = AssertRefSnapshotId.model_validate({"ref": TAG, "snapshot-id": None})
        with pytest.raises(CommitFailedException, match="no snapshots"):
            catalog.commit_table(table, (tag,), ())
        Driver(shop.sink)
        for ref in (TAG, "main"):
            stale = AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": 1})
            with pytest.raises(CommitFailedException, match="has changed"):
                catalog.commit_table(table, (stale,), ())
