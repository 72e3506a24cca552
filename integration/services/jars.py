"""Download the jars of Kafka, HBase and Spark's Kafka connector once, and verify them on every use.

`python -m integration.services.jars` downloads the default sets and prints their files; `--lock` rewrites `jars.lock.json`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tenacity
from filelock import FileLock
from rich.console import Console

from integration.services import jar_lock
from integration.services.cache import cache_dir
from integration.services.errors import ServiceError
from integration.services.ivy import PermanentError, ivy_file, run_ivy
from integration.services.jar_sets import (
    DEFAULT_KAFKA_VERSION,
    LOCKED_KAFKA_VERSIONS,
    JarSet,
    hbase_set,
    kafka_set,
    spark_kafka_set,
)
from integration.services.java import java_command

_ATTEMPTS = 4
_WAIT: tenacity.wait.wait_base = tenacity.wait_random_exponential(multiplier=1, max=15)
# Ivy downloads one file at a time and mostly waits: four runs at once took 11 s for the Kafka jars instead of 40 s.
_PARALLEL_RUNS = 4
_console = Console(stderr=True, highlight=False, soft_wrap=True)


def kafka_jars(version: str = DEFAULT_KAFKA_VERSION) -> list[Path]:
    """Return the class path of a Kafka broker, with an SLF4J binding; downloads it on first use.

    Raises:
        ServiceError: no Java, no Maven repository, no such version, or files that differ from the lock.
    """
    return fetch(kafka_set(version))


def spark_kafka_jars() -> list[Path]:
    """Return Spark's Kafka connector for the installed PySpark, with the dependencies that PySpark does not ship.

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


def fetch(wanted: JarSet) -> list[Path]:
    """Return the verified files of a set; downloads them if they are missing or damaged.

    Other processes may do the same, and any of them may be killed: a set appears in the cache complete or not at all. A set
    without a lock is verified against the sums of its first download.

    Raises:
        ServiceError: see `kafka_jars`.
    """
    target = cache_dir() / "jars" / wanted.name
    locked = jar_lock.read_lock().get(wanted.name)
    if not jar_lock.damage(target, locked):
        return jar_lock.files_in(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The kernel frees this lock when its holder dies.
    with FileLock(target.with_name(f".{wanted.name}.lock")):
        # The previous holder may have downloaded this very set.
        damage = jar_lock.damage(target, locked)
        if damage:
            if target.exists():
                _say(f"{target}: {damage}; downloading {wanted.title} again")
            _install(wanted, target, locked)
    return jar_lock.files_in(target)


def _install(wanted: JarSet, target: Path, locked: jar_lock.Sums | None) -> None:
    """Download into a private directory, verify, and move it into place with one rename. The caller holds the lock."""
    java_command()  # Without Java, fail now and not after four attempts.
    for abandoned in target.parent.glob(f".{wanted.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    count = f"{len(locked)} files, " if locked else ""
    _say(f"downloading {wanted.title} jars ({count}once) into {target}")
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{wanted.name}-"))
    try:
        _download(wanted, work, locked)
        complete = work / "jars"
        jar_lock.record_sums(complete)
        if target.exists():
            # A running JVM keeps the files it has open; nobody else may see a mix of old and new.
            target.rename(work / "replaced")
        complete.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"downloaded {wanted.title} in {time.monotonic() - started:.0f} s")


def _download(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    """Download to `work/jars` and verify, in up to four attempts."""

    def announce(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _say(f"attempt {state.attempt_number} of {_ATTEMPTS} failed, retrying: {error}")

    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda e: isinstance(e, ServiceError) and not isinstance(e, PermanentError)),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=_WAIT,
        before_sleep=announce,
        reraise=True,
    ):
        with attempt:
            _resolve(wanted, work, locked)
            damage = jar_lock.difference(jar_lock.sums_of(work / "jars"), locked) if locked else ""
            if damage:
                # Ivy would copy the same files from its own cache again.
                for stale in (work / "jars", *work.glob("ivy-*")):
                    shutil.rmtree(stale, ignore_errors=True)
                raise ServiceError(
                    f"{wanted.title}: {damage}. The Maven repository served files that differ from "
                    f"{jar_lock.LOCK_FILE.name}; none was installed. Try again, or check proxies and mirrors on the way."
                )


def _resolve(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    """Run Ivy: for the locked files, in parallel, or from the roots if there is no lock."""
    if not locked:
        text = ivy_file(wanted.coordinates, transitive=wanted.transitive, excluded=wanted.excluded)
        run_ivy(text, work, "all", verify=True)
        return
    modules = sorted({":".join(name.split("/")[:3]) for name in locked})
    shares = [share for n in range(_PARALLEL_RUNS) if (share := modules[n::_PARALLEL_RUNS])]
    with ThreadPoolExecutor(len(shares)) as pool:
        # The lock's SHA-256 makes Ivy's checks superfluous.
        runs = [pool.submit(run_ivy, ivy_file(share), work, str(n), verify=False) for n, share in enumerate(shares)]
    for run in runs:
        run.result()


def write_lock() -> None:
    """Resolve the default sets from their roots, ignoring cache and lock, and replace `jars.lock.json`.

    Raises:
        ServiceError: see `kafka_jars`; the lock file is unchanged.
    """
    lock: dict[str, jar_lock.Sums] = {}
    for wanted in (*map(kafka_set, LOCKED_KAFKA_VERSIONS), spark_kafka_set(), hbase_set()):
        _say(f"locking {wanted.title}: " + ", ".join(wanted.coordinates))
        with tempfile.TemporaryDirectory() as work:
            _download(wanted, Path(work), locked=None)
            lock[wanted.name] = jar_lock.sums_of(Path(work) / "jars")
    jar_lock.write_lock(lock)
    _say(f"wrote {jar_lock.LOCK_FILE}")


def _say(message: str) -> None:
    _console.print(f"twopc: {message}", markup=False)


def main() -> None:
    """Download or lock the default sets, from the command line."""
    parser = argparse.ArgumentParser(prog="python -m integration.services.jars", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="resolve from the roots and rewrite jars.lock.json")
    if parser.parse_args().lock:
        write_lock()
        return
    for jars in (kafka_jars(), spark_kafka_jars(), hbase_jars()):
        Console().print(*jars, sep="\n", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
