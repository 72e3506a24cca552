"""Fetch the jars of Kafka, of Spark's Kafka connector and of HBase, once, with the Ivy that PySpark ships.

`python -m integration.services.jars` fetches the default sets and prints where they are; `--lock` writes `jars.lock.json` anew.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import tenacity
from filelock import FileLock
from rich.console import Console

from integration.services.hbase_coordinates import HBASE_COORDINATES, HBASE_VERSION
from integration.services.java import ServiceError, cache_dir, java_command, trust_arguments

DEFAULT_KAFKA_VERSION = "4.3.0"
LOCKED_KAFKA_VERSIONS = (DEFAULT_KAFKA_VERSION, "3.9.1")
LOCK_FILE = Path(__file__).with_name("jars.lock.json")

_ATTEMPTS = 4
_WAIT: tenacity.wait.wait_base = tenacity.wait_random_exponential(multiplier=1, max=15)
_IVY_TIMEOUT_S = 900
# Ivy fetches one file at a time and mostly waits: four at once took 11 s for the Kafka jars instead of 40 s.
_PARALLEL_RESOLVES = 4
_SUMS_FILE = "sums.json"
_console = Console(stderr=True, highlight=False, soft_wrap=True)

Sums = dict[str, dict[str, str | int]]
"""File path below the set's directory -> {"size": bytes, "sha256": hex}."""


class _PermanentError(ServiceError):
    """Another attempt cannot help."""


@dataclass(frozen=True)
class JarSet:
    """A set of jars resolved together.

    Attributes:
        name: directory name in the cache and key in the lock file.
        title: what a reader of the console is told is being fetched.
        coordinates: the roots, each "organisation:module:revision"; their dependencies come with them.
        excluded: module names that must not come along (the user of the set has them already).
        transitive: False: nothing comes along.
    """

    name: str
    title: str
    coordinates: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    transitive: bool = True


def kafka_jars(version: str = DEFAULT_KAFKA_VERSION) -> list[Path]:
    """Return the class path of the Kafka broker of `version`, with an SLF4J binding, fetching it when needed.

    Raises:
        ServiceError: no Java, no registry, no such version, or files that differ from the lock.
    """
    return fetch(kafka_set(version))


def spark_kafka_jars() -> list[Path]:
    """Return Spark's Kafka connector for the installed PySpark with the dependencies PySpark does not ship.

    Raises:
        ServiceError: see `kafka_jars`.
    """
    return fetch(spark_kafka_set())


def hbase_jars() -> list[Path]:
    """Return the class path of HBase: master, region server and ZooKeeper.

    Raises:
        ServiceError: see `kafka_jars`.
    """
    return fetch(hbase_set())


def hbase_set() -> JarSet:
    """Return the set of HBase's class path."""
    return JarSet(f"hbase-{HBASE_VERSION}", f"HBase {HBASE_VERSION}", HBASE_COORDINATES, transitive=False)


def kafka_set(version: str) -> JarSet:
    """Return the set of a broker's class path."""
    # Kafka is compiled against SLF4J 1.7, and resolves no binding: without one the broker logs nothing.
    roots = (f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-reload4j:1.7.36")
    return JarSet(f"kafka-{version}", f"Kafka {version}", roots)


def spark_kafka_set() -> JarSet:
    """Return the set of Spark's Kafka connector for the installed PySpark."""
    version = importlib.metadata.version("pyspark")
    shipped = (re.match(r"(.+?)-\d[^-]*.*\.jar$", jar.name) for jar in _pyspark_jars().glob("*.jar"))
    return JarSet(
        f"spark-kafka-{version}",
        f"Spark {version} Kafka connector",
        (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",),
        frozenset(match[1] for match in shipped if match),
    )


def fetch(wanted: JarSet) -> list[Path]:
    """Return the files of a set, verified against the lock, downloading them first if they are missing or damaged.

    Safe against another process doing the same and against being killed: a set appears in the cache whole or not at
    all. A set that is not in the lock is verified against what its first download gave.

    Raises:
        ServiceError: see `kafka_jars`.
    """
    target = cache_dir() / "jars" / wanted.name
    locked = _read_lock().get(wanted.name)
    if not _damage(target, locked):
        return _files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The kernel frees the lock when its holder dies.
    with FileLock(target.with_name(f".{wanted.name}.lock")):
        # Whoever held the lock before may have fetched the very set.
        damage = _damage(target, locked)
        if damage:
            if target.exists():
                _say(f"{target}: {damage}; fetching {wanted.title} again")
            _download(wanted, target, locked)
    return _files(target)


def _download(wanted: JarSet, target: Path, locked: Sums | None) -> None:
    """Resolve into a directory nobody looks at, verify, and put it in place by one rename. The lock is held."""
    java_command()  # No Java is an error at once, not after four attempts.
    for abandoned in target.parent.glob(f".{wanted.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    count = f"{len(locked)} files, " if locked else ""
    _say(f"resolving {wanted.title} jars ({count}once) into {target}")
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{wanted.name}-"))
    try:
        _download_with_retries(wanted, work, locked)
        complete = work / "jars"
        (complete / _SUMS_FILE).write_text(json.dumps(_sums(complete), indent=1))
        if target.exists():
            # A running JVM keeps the files it has open; nobody else may see a mix of old and new.
            target.rename(work / "replaced")
        complete.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"resolved {wanted.title} in {time.monotonic() - started:.0f} s")


def _download_with_retries(wanted: JarSet, work: Path, locked: Sums | None) -> None:
    def announce(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _say(f"attempt {state.attempt_number} of {_ATTEMPTS} failed, trying again: {error}")

    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServiceError) and not isinstance(e, _PermanentError)),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=_WAIT,
        before_sleep=announce,
        reraise=True,
    ):
        with attempt:
            _resolve(wanted, work, locked)
            damage = _difference(_sums(work / "jars"), locked) if locked else ""
            if damage:
                # What Ivy keeps would only be copied again.
                for stale in (work / "jars", *work.glob("ivy-*")):
                    shutil.rmtree(stale, ignore_errors=True)
                raise ServiceError(
                    f"{wanted.title}: {damage}, against {LOCK_FILE.name}. The registry served other files than those "
                    "locked: try again, or check what stands between this machine and the registry."
                )


def _resolve(wanted: JarSet, work: Path, locked: Sums | None) -> None:
    """Run Ivy for a set: the locked files in parallel, or from the roots when there is no lock."""
    if not locked:
        _run_ivy(ivy_file(wanted.coordinates, wanted.excluded if wanted.transitive else None), work, "all")
        return
    modules = sorted({":".join(name.split("/")[:3]) for name in locked})
    shares = [share for n in range(_PARALLEL_RESOLVES) if (share := modules[n::_PARALLEL_RESOLVES])]
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = [pool.submit(_run_ivy, ivy_file(share), work, str(n)) for n, share in enumerate(shares)]
    for run in runs:
        run.result()


def ivy_file(coordinates: tuple[str, ...] | list[str], excluded: frozenset[str] | None = None) -> str:
    """Return an ivy.xml; with `excluded` given the dependencies of the coordinates are wanted too."""
    transitive = excluded is not None
    confs = "default->default" if transitive else "default->master"
    lines = [
        '<ivy-module version="2.0"><info organisation="twopc" module="jars"/>',
        f'<configurations defaultconfmapping="{confs}"><conf name="default"/></configurations><dependencies>',
    ]
    for coordinate in coordinates:
        organisation, module, revision = map(quoteattr, coordinate.split(":"))
        lines.append(
            f'<dependency org={organisation} name={module} rev={revision} transitive="{str(transitive).lower()}"/>'
        )
    lines += [f'<exclude org="*" module={quoteattr(name)} matcher="exact"/>' for name in sorted(excluded or ())]
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def _run_ivy(ivy_file: str, work: Path, name: str) -> None:
    """Run Ivy on one ivy.xml; the files land in `work/jars/ORGANISATION/MODULE/REVISION/`."""
    file = work / f"ivy-{name}.xml"
    file.write_text(ivy_file)
    settings = os.environ.get("TWOPC_IVY_SETTINGS")
    command: list[str | Path] = [
        *(java_command(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *trust_arguments(),
        # Locked files are verified by SHA-256: Ivy's own SHA-1 and MD5 would be one more request a file.
        *([] if name == "all" else ["-Divy.checksums="]),
        "-jar",
        _ivy_jar(),
        *(["-settings", settings] if settings else []),
        *("-cache", work / f"ivy-{name}", "-ivy", file, "-confs", "default", "-types", "jar", "bundle", "-retrieve"),
        f"{work}/jars/[organisation]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]",
    ]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_IVY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"Ivy did not finish in {_IVY_TIMEOUT_S} s: is the registry reachable?") from error
    if done.returncode == 0:
        return
    problems = [
        line.strip()
        for line in done.stdout.splitlines()
        if re.search(r"not found|access error|FAILED|Exception|^Error", line) and "tried" not in line
    ]
    summary = "; ".join(dict.fromkeys(problems)) or done.stdout.strip()[-600:]
    absent = "not found" in summary and "error" not in summary.lower() and "FAILED" not in summary
    if absent:
        raise _PermanentError(f"the registry does not have it: {summary[:900]}")
    raise ServiceError(f"Ivy could not fetch the jars (code {done.returncode}): {summary[:900]}")


def _pyspark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise _PermanentError("PySpark is not installed: it brings the Ivy that fetches jars (`pip install pyspark`)")
    return Path(spec.origin).parent / "jars"


def _ivy_jar() -> Path:
    found = sorted(_pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise _PermanentError(f"no ivy-*.jar in {_pyspark_jars()}: install the full `pyspark` package from PyPI")
    return found[-1]


def _files(target: Path) -> list[Path]:
    return sorted(target.rglob("*.jar"))


def _sums(directory: Path) -> Sums:
    """Return size and SHA-256 of every jar below `directory` (all Kafka jars, 44 MB: 0.05 to 0.2 s)."""
    return {
        path.relative_to(directory).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in _files(directory)
    }


def _damage(target: Path, locked: Sums | None) -> str:
    """Return what is wrong with a set in the cache, empty when it is whole."""
    try:
        expected: Sums = locked or json.loads((target / _SUMS_FILE).read_text())
        return _difference(_sums(target), expected)
    except (OSError, ValueError) as error:
        return f"not readable ({error})"


def _difference(actual: Sums, expected: Sums) -> str:
    """Return the first file that is missing, unexpected or different, empty when there is none."""
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong to the set"
        if actual[name] != expected[name]:
            return f"{name} has other content ({actual[name]['size']} bytes, expected {expected[name]['size']})"
    return ""


def _read_lock() -> dict[str, Sums]:
    if not LOCK_FILE.exists():
        return {}
    lock: dict[str, Sums] = json.loads(LOCK_FILE.read_text())
    return lock


def write_lock() -> None:
    """Resolve the default sets from their roots, ignoring cache and lock, and write `jars.lock.json`.

    Raises:
        ServiceError: see `kafka_jars`; the lock file is left as it was.
    """
    lock: dict[str, Sums] = {}
    for wanted in (*map(kafka_set, LOCKED_KAFKA_VERSIONS), spark_kafka_set(), hbase_set()):
        _say(f"locking {wanted.title}: " + ", ".join(wanted.coordinates))
        with tempfile.TemporaryDirectory() as work:
            _download_with_retries(wanted, Path(work), locked=None)
            lock[wanted.name] = _sums(Path(work) / "jars")
    LOCK_FILE.write_text(json.dumps(lock, indent=1, sort_keys=True) + "\n")
    _say(f"wrote {LOCK_FILE}")


def _say(message: str) -> None:
    _console.print(f"twopc: {message}", markup=False)


def main() -> None:
    """Fetch or lock the default sets, from the command line."""
    parser = argparse.ArgumentParser(prog="python -m integration.services.jars", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="resolve anew and write jars.lock.json")
    if parser.parse_args().lock:
        write_lock()
        return
    for jars in (kafka_jars(), spark_kafka_jars()):
        Console().print(*jars, sep="\n", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
