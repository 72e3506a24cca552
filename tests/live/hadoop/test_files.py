"""Checkpoint files on a real S3 server and a real HDFS, through Hadoop."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.hadoop.jars import s3_client_jars
from tests.live.hadoop.s3 import BUCKET
from tests.live.spark_support import spark
from tests.unit.test_binding import BOUND, WITH_REDIS
from tests.unit.test_binding_objects import OTHER_LOG
from twopc.binding import Binding
from twopc.errors import FatalError, RefusedStartError
from twopc.integration.spark.hadoop_files import HadoopFiles, HadoopObjects
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.integration.spark.staging_location import below, open_location
from twopc.integration.spark.views import View
from twopc.override import Overrides

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.live.hadoop.hdfs import LocalHdfs
    from tests.live.hadoop.s3 import LateListing

__all__ = ["spark"]


def on_s3(spark: SparkSession, s3: LateListing, directory: str) -> HadoopObjects:
    """The shared session has no s3a, but a configuration with its own class loader finds it."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    urls = context._gateway.new_array(jvm.java.net.URL, len(s3_client_jars()))
    for index, jar in enumerate(s3_client_jars()):
        urls[index] = jvm.java.net.URL(jar.as_uri())
    configuration = jvm.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
    configuration.setClassLoader(jvm.java.net.URLClassLoader(urls, configuration.getClassLoader()))
    for name, value in s3.spark_settings().items():
        configuration.set(name.removeprefix("spark.hadoop."), value)
    return HadoopObjects(context._gateway, configuration, f"s3a://{BUCKET}/{directory}")


@pytest.mark.whole
def test_names_are_listed_on_a_store_whose_file_status_has_a_class_of_its_own(
    spark: SparkSession, s3: LateListing
) -> None:
    files = on_s3(spark, s3, uuid.uuid4().hex)
    for name in ("b", "a, b", ".hidden"):
        files.put_if_absent(f"x/{name}", b"1")
    assert (files.names("x"), files.names(""), files.names("none")) == (["a, b", "b"], ["x"], [])


@pytest.mark.whole
def test_the_binding_survives_on_a_store_that_cannot_rename_files_and_lists_them_late(
    spark: SparkSession, s3: LateListing
) -> None:
    """Fails if the binding is looked for in a listing, or if put-if-absent renames."""
    files = on_s3(spark, s3, f"{uuid.uuid4().hex}/twopc")
    assert (files.read("x/y"), files.names("")) == (None, [])
    assert files.put_if_absent("x/y", b"first")
    assert not files.put_if_absent("x/y", b"second")
    assert (files.read_end("x/y", 2), files.read_end("x/z", 2), files.names("x")) == (b"st", None, [])
    files.remove("x/y")
    files.remove("x/y")

    first, paused = Binding(files), Binding(files)
    first.bind(BOUND, 3)
    added = Binding(files)
    added.check(WITH_REDIS, Overrides(added_sinks={"r"}), decided=first.number)
    added.bind(WITH_REDIS, 7)
    paused.bind(BOUND, 1)
    assert files.names("") == []
    assert Binding(files).log == BOUND.log
    Binding(files).check(WITH_REDIS, Overrides(), decided=added.number)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(k\) again"):
        Binding(files).check(OTHER_LOG, Overrides())


@pytest.mark.whole
@pytest.mark.parametrize("put", [1, 2])
def test_a_driver_that_pauses_in_its_put_on_s3_leaves_the_other_drivers_binding(
    put: int, spark: SparkSession, s3: LateListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3A looks for the file when a put begins, and publishes it when the put ends. The store lists nothing in between."""
    files = on_s3(spark, s3, f"{uuid.uuid4().hex}/twopc")
    first, second, puts = Binding(files), Binding(files), list[str]()
    really, listed = files._create, False

    def create(path: Any, data: bytes) -> None:
        nonlocal listed
        puts.append(path.getName())
        if len(puts) != put:
            really(path, data)
            return
        stream = files._file_system.create(path, False)  # noqa: FBT003 - Hadoop's parameter overwrite
        first.bind(BOUND, 4)
        listed = True
        stream.write(data)
        stream.close()

    monkeypatch.setattr(files, "_create", create)
    monkeypatch.setattr(files, "names", lambda _: [f"binding-{first.number:06d}.json"] if listed else [])
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 4)
    assert first.number
    assert Binding(files).log == BOUND.log
    listed = False
    assert Binding(files).log == BOUND.log
    listed = True
    added = Binding(files)
    added.check(WITH_REDIS, Overrides(added_sinks={"r"}), decided=first.number)
    added.bind(WITH_REDIS, 7)


@pytest.mark.whole
def test_only_one_of_many_writers_on_hdfs_creates_the_file(spark: SparkSession, hdfs: LocalHdfs) -> None:
    context: Any = spark.sparkContext
    files = HadoopFiles(
        context._gateway, context._jsc.hadoopConfiguration(), f"{hdfs.url}/{uuid.uuid4().hex}/checkpoint"
    )
    assert (files.read("x/y"), files.read_end("x/y", 2), files.names("x")) == (None, None, [])
    won: dict[int, list[bytes]] = {number: [] for number in range(20)}

    def write(mine: bytes) -> None:
        for number, winners in won.items():
            if files.put_if_absent(f"x/{number}", mine):
                winners.append(mine)

    writers = [threading.Thread(target=write, args=(b"writer %d" % number * 1000,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [[files.read(f"x/{number}")] for number in won] == list(won.values())
    assert files.names("x") == sorted(map(str, won))
    files.remove("x/0")
    files.remove("x/0")
    assert files.put_if_absent("x/0", b"again")
    assert files.read_end("x/0", 3) == b"ain"


def test_a_staged_file_on_s3_is_read_back_and_rejected_if_it_was_altered_or_cut_off(
    s3: LateListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in s3.environment().items():
        monkeypatch.setenv(setting, value)
    location = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    writer = StagedFileWriter(location, 0, 0, {"s": View(columns=(("value", 0),))})
    writer.write(pa.record_batch({"0": ["one", "two"]}))
    name, staging = writer.close() or "", Staging(location)
    assert staging.has(name)
    assert [rows.to_pylist() for rows in staging.read(name, "s")] == [[{"value": "one"}, {"value": "two"}]]
    filesystem, root = open_location(location)
    with filesystem.open_input_file(f"{root}/{name}") as source:
        whole = source.read()
    for data, is_staged in ((whole.replace(b"onetwo", b"onesix"), True), (whole[:-10], False)):
        with filesystem.open_output_stream(f"{root}/{name}") as stream:
            stream.write(data)
        assert staging.has(name) is is_staged
        with pytest.raises(FatalError, match="torn or was altered"):
            list(staging.read(name, "s"))


def test_on_s3_each_query_deletes_only_its_own_undecided_staged_files(
    s3: LateListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in s3.environment().items():
        monkeypatch.setenv(setting, value)
    shared = f"s3://{BUCKET}/{uuid.uuid4().hex}?region=us-east-1"
    own, other = (below(shared, query) for query in ("own", "other"))
    names: dict[tuple[str, int], str] = {}
    for location, epoch in ((own, 1), (own, 2), (own, 3), (other, 1)):
        writer = StagedFileWriter(location, epoch, 0, {"s": View(columns=(("value", 0),))})
        writer.write(pa.record_batch({"0": ["one"]}))
        names[location, epoch] = writer.close() or ""
    Staging(own).discard(2, {names[own, 1]})
    left = {place for place, name in names.items() if Staging(place[0]).has(name)}
    assert left == {(own, 1), (own, 3), (other, 1)}
