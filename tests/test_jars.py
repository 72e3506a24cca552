from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tenacity

from twopc.integration.services import ServiceError, ivy, jar_lock, jars
from twopc.integration.services.ivy import ivy_file
from twopc.integration.services.jar_sets import (
    LOCKED_KAFKA_VERSIONS,
    NEWEST_CONNECTORS,
    JarSet,
    connector_version,
    hbase_set,
    iceberg_set,
    mirror_set,
    old_kafka_set,
    postgres_jdbc_set,
    spark_delta_set,
    spark_kafka_set,
)
from twopc.integration.services.jars import fetch

CONTENT = {"org.a/one/1/one-1.jar": b"first", "org.b/two/2/two-2.jar": b"second"}
WANTED = JarSet("set-1", "Set 1", ("org.a:one:1",))


class FakeRegistry:
    """Replaces a run of Ivy: writes the files that the ivy.xml names, or fails on request."""

    def __init__(self) -> None:
        self.content = dict(CONTENT)
        self.failures: list[ServiceError] = []
        self.ivy_files: list[str] = []

    def __call__(self, ivy_file: str, work: Path, name: str, *, verify: bool) -> None:
        assert verify == (name == "all")
        self.ivy_files.append(ivy_file)
        for path, content in self.content.items():
            if name == "all" or f'name="{path.split("/")[1]}"' in ivy_file:
                (work / "jars" / path).parent.mkdir(parents=True, exist_ok=True)
                (work / "jars" / path).write_bytes(content)
                if self.failures:
                    raise self.failures.pop(0)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRegistry:
    fake = FakeRegistry()
    lock = {n: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in CONTENT.items()}
    (tmp_path / "jars.lock.json").write_text(json.dumps({WANTED.name: lock}))
    monkeypatch.setenv("TWOPC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jar_lock, "LOCK_FILE", tmp_path / "jars.lock.json")
    monkeypatch.setattr(jars, "run_ivy", fake)
    monkeypatch.setattr(jars, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(jars, "java_command", lambda: Path("java"))
    return fake


def test_a_jar_set_is_downloaded_once(registry: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    first = fetch(WANTED)
    assert [path.read_bytes() for path in first] == [b"first", b"second"]
    assert "downloading Set 1 jars (2 files, once)" in capsys.readouterr().err
    runs = len(registry.ivy_files)
    assert fetch(WANTED) == first
    assert len(registry.ivy_files) == runs
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damaged", [b"fir", b"firsT", None])
@pytest.mark.parametrize("is_locked", [True, False])
def test_a_damaged_jar_is_detected_and_downloaded_again(
    registry: FakeRegistry, capsys: pytest.CaptureFixture[str], damaged: bytes | None, *, is_locked: bool
) -> None:
    if not is_locked:
        jar_lock.LOCK_FILE.unlink()
    victim = fetch(WANTED)[0]
    victim.unlink() if damaged is None else victim.write_bytes(damaged)
    assert fetch(WANTED)[0].read_bytes() == b"first"
    assert "one-1.jar" in capsys.readouterr().err
    assert registry.failures == []


def test_a_temporary_failure_is_retried(registry: FakeRegistry) -> None:
    registry.failures = [ServiceError("connection reset")] * 2
    assert len(fetch(WANTED)) == len(CONTENT)


def test_content_that_differs_from_the_lock_is_rejected_and_never_stored(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.content["org.b/two/2/two-2.jar"] = b"evil!!"
    with pytest.raises(ServiceError, match=r"two-2\.jar has different content"):
        fetch(WANTED)
    assert list((tmp_path / "cache").rglob("*.jar")) == []


def test_a_failed_download_leaves_nothing_behind(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.failures = [ServiceError("gone")] * 100
    with pytest.raises(ServiceError, match="gone"):
        fetch(WANTED)
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] in ([], [".set-1.lock"])
    registry.failures.clear()
    assert len(fetch(WANTED)) == len(CONTENT)


def test_files_left_by_a_killed_download_are_removed(registry: FakeRegistry, tmp_path: Path) -> None:
    abandoned = tmp_path / "cache" / "jars" / ".set-1-abandoned"
    abandoned.mkdir(parents=True)
    fetch(WANTED)
    assert registry.ivy_files
    assert not abandoned.exists()


def test_concurrent_fetches_download_once(registry: FakeRegistry) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(fetch, [WANTED] * 4))
    assert results == [results[0]] * 4
    assert len(registry.ivy_files) == len(CONTENT)  # one download per module


def test_a_missing_version_is_not_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\necho ':: org.a#one;1: not found'\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("TWOPC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "java_command", lambda: java)
    monkeypatch.setattr(ivy, "java_command", lambda: java)
    monkeypatch.setattr(ivy, "trust_arguments", list)
    with pytest.raises(ServiceError, match=r"A file is missing from the Maven repository: :: org\.a#one;1: not found"):
        fetch(WANTED)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_the_spark_jars_leave_out_those_that_pyspark_ships() -> None:
    wanted = spark_kafka_set()
    assert {"scala-library", "spark-tags_2.13", "hadoop-client-runtime", "lz4-java"} <= wanted.excluded
    assert not any("kafka" in name for name in wanted.excluded)
    assert '<exclude org="*" module="scala-library"' in ivy_file(wanted.coordinates, excluded=wanted.excluded)


@pytest.mark.parametrize(
    ("spark", "connector"),
    [
        ("4.0.5", "4.0.4"),
        ("4.0.4", "4.0.4"),
        ("4.0.0", "4.0.0"),
        ("4.0.10", "4.0.4"),
        ("4.3.0", "4.3.0"),
        ("3.5.9", "3.5.7"),
    ],
)
def test_a_patch_without_a_connector_uses_the_newest_one_of_its_minor_version(spark: str, connector: str) -> None:
    assert connector_version(spark) == connector


def test_locking_one_jar_set_leaves_the_other_sets_unchanged(registry: FakeRegistry) -> None:
    jars.write_lock("hbase-")
    lock = jar_lock.read_lock(jar_lock.LOCK_FILE)
    assert set(lock) == {WANTED.name, hbase_set().name}
    assert set(lock[hbase_set().name]) == set(CONTENT)
    assert len(registry.ivy_files) == 1


def test_the_default_sets_are_locked() -> None:
    lock = json.loads(jar_lock.LOCK_FILE.read_text())
    kafka = (f"kafka-{version}" for version in LOCKED_KAFKA_VERSIONS)
    connectors = {f"spark-kafka-{version}" for version in NEWEST_CONNECTORS.values()}
    sets = (
        old_kafka_set(),
        mirror_set(),
        spark_kafka_set(),
        hbase_set(),
        postgres_jdbc_set(),
        iceberg_set(),
        spark_delta_set(),
    )
    others = {one.name for one in sets} | {"spark-iceberg-4.0-1.10.0"}
    assert {*kafka, *connectors, *others} == set(lock)
    for files in lock.values():
        assert all(entry["size"] > 0 and len(entry["sha256"]) == 64 for entry in files.values())


def test_a_coordinate_with_a_classifier_adds_an_artifact_to_the_modules_own() -> None:
    text = ivy_file(("org:one:1", "org:one:1:tests", "org:two:2"), transitive=True)
    assert text.count("<dependency ") == 2
    assert '<artifact name="one" type="jar" /><artifact name="one" type="jar" m:classifier="tests" />' in text
    assert jars._coordinate("org/one/1/one-1-tests.jar") == "org:one:1:tests"
    assert jars._coordinate("org/one/1/one-1.jar") == "org:one:1"


def test_the_real_jar_sets_are_complete() -> None:
    assert any(path.name == "kafka_2.13-4.3.0.jar" for path in jars.kafka_jars())
    assert any(path.name.startswith("spark-sql-kafka-0-10_2.13-") for path in jars.spark_kafka_jars())
