"""Checkpoint files accessed through Hadoop satisfy the same contract as local files. The tests use ``file:``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JJavaError

from tests.live.spark_support import spark
from twopc.integration.spark.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> HadoopFiles:
    context: Any = spark.sparkContext
    return HadoopFiles(context._gateway, context._jsc.hadoopConfiguration(), tmp_path.as_uri())


def test_a_read_of_a_missing_file_finds_nothing(files: HadoopFiles) -> None:
    assert (files.read("x/y"), files.names("x")) == (None, [])
    files.remove("x/y")


def test_the_first_put_wins_and_is_never_overwritten(files: HadoopFiles) -> None:
    assert files.put_if_absent("x/y", b"first")
    assert not files.put_if_absent("x/y", b"second")
    assert files.read("x/y") == b"first"
    assert files.names("x") == ["y"]


def test_a_put_that_fails_leaves_no_file(files: HadoopFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = files._create

    def create_and_fail(path: Any, data: bytes) -> None:
        really(path, data)
        files._file_system.getFileStatus(files._path("none"))  # raises an error from Java, as a full disk does

    monkeypatch.setattr(files, "_create", create_and_fail)
    with pytest.raises(Py4JJavaError):
        files.put_if_absent("x/y", b"1")
    assert list((tmp_path / "x").iterdir()) == []


def test_a_temporary_file_that_seems_to_exist_does_not_count_as_another_writer(
    files: HadoopFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the response to a create is lost, the client may repeat the request, and then it finds its own file."""
    really = files._create

    def create_twice(path: Any, data: bytes) -> None:
        really(path, data)
        really(path, data)

    monkeypatch.setattr(files, "_create", create_twice)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        files.put_if_absent("x/y", b"1")
    assert files.read("x/y") is None


def test_the_end_of_a_file_can_be_read_alone(files: HadoopFiles) -> None:
    assert files.read_end("x/y", 3) is None
    files.put_if_absent("x/y", b"12345")
    assert [files.read_end("x/y", size) for size in (1, 3, 5, 6)] == [b"5", b"345", b"12345", b"12345"]


def test_every_name_is_listed_whatever_it_contains(files: HadoopFiles, tmp_path: Path) -> None:
    names = ["1", "1.compact", "a b", "a, b", "[x]", "é", "%2F"]
    for name in (*names, ".hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "empty").mkdir()
    assert files.names("") == sorted([*names, "empty"])
    assert files.names("empty") == []


def test_a_listing_of_many_names_needs_few_calls_to_the_jvm(
    files: HadoopFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        (tmp_path / f"{number}").write_text("")
    sent, send = list[str](), GatewayClient.send_command

    def send_command(self: GatewayClient, command: str, *rest: object, **named: object) -> object:
        if not command.startswith("m\n"):  # py4j frees the objects that Python has forgotten, at any time
            sent.append(command)
        return send(self, command, *rest, **named)

    monkeypatch.setattr(GatewayClient, "send_command", send_command)
    assert len(files.names("")) == 200
    assert 0 < len(sent) < 60


def test_the_sessions_hadoop_configuration_applies_to_every_request(spark: SparkSession, tmp_path: Path) -> None:
    """Credentials in ``spark.hadoop.*`` are in no other configuration. Here, a umask shows which configuration was used."""
    context: Any = spark.sparkContext
    configuration = context._jvm.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
    configuration.set("fs.file.impl.disable.cache", "true")
    configuration.set("fs.permissions.umask-mode", "077")
    HadoopFiles(context._gateway, configuration, tmp_path.as_uri()).put_if_absent("x", b"1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_a_file_can_be_created_again_after_its_removal(files: HadoopFiles) -> None:
    files.put_if_absent("x", b"1")
    files.remove("x")
    files.remove("x")
    assert files.put_if_absent("x", b"2")
