"""Download the jars for Kafka, HBase, Spark's Kafka connector and the PostgreSQL driver once, and verify them on every use.

`python -m twopc.integration.services.jars` downloads the default sets and prints their files. `--lock` rewrites `jars.lock.json`.
`--lock spark-kafka` rewrites only the entry of the installed Spark's Kafka connector.
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

from twopc.integration.services import ServiceError, cache_dir, jar_lock
from twopc.integration.services.ivy import PermanentError, ivy_file, run_ivy
from twopc.integration.services.jar_sets import (
    DEFAULT_KAFKA_VERSION,
    LOCKED_KAFKA_VERSIONS,
    JarSet,
    hbase_set,
    iceberg_set,
    kafka_set,
    mirror_set,
    old_kafka_set,
    postgres_jdbc_set,
    spark_delta_set,
    spark_iceberg_set,
    spark_kafka_set,
)
from twopc.integration.services.java import java_command

_ATTEMPTS = 4
_WAIT: tenacity.wait.wait_base = tenacity.wait_random_exponential(multiplier=1, max=15)
# Ivy downloads one file at a time and mostly waits: four parallel runs took 11 s for the Kafka jars instead of 40 s.
_PARALLEL_RUNS = 4
_console = Console(stderr=True, highlight=False, soft_wrap=True)


def kafka_jars(version: str = DEFAULT_KAFKA_VERSION) -> list[Path]:
    """Return the class path of a Kafka broker, with an SLF4J binding. The first use downloads the jars.

    Raises:
        ServiceError: Java is not installed, the Maven repository does not respond, this version is missing from it, or
            the files differ from the lock.
    """
    return fetch(kafka_set(version))


def mirror_jars() -> list[Path]:
    """Return the class path of MirrorMaker 2. See `mirror_set` and `kafka_jars`."""
    return fetch(mirror_set())


def old_kafka_jars() -> list[Path]:
    """Return the class path of Kafka 0.10 and ZooKeeper. See `old_kafka_set` and `kafka_jars`."""
    return fetch(old_kafka_set())


def spark_kafka_jars() -> list[Path]:
    """Return Spark's Kafka connector. See `spark_kafka_set` and `kafka_jars`."""
    return fetch(spark_kafka_set())


def postgres_jdbc_jars() -> list[Path]:
    """Return PostgreSQL's JDBC driver. See `postgres_jdbc_set` and `kafka_jars`."""
    return fetch(postgres_jdbc_set())


def hbase_jars() -> list[Path]:
    """Return the class path of HBase. See `hbase_set` and `kafka_jars`."""
    return fetch(hbase_set())


def iceberg_jars() -> list[Path]:
    """Return the class path of Iceberg's REST catalog. See `iceberg_set` and `kafka_jars`."""
    return fetch(iceberg_set())


def spark_iceberg_jars() -> list[Path]:
    """Return the Iceberg jar for Spark. See `spark_iceberg_set` and `kafka_jars`."""
    return fetch(spark_iceberg_set())


def spark_delta_jars() -> list[Path]:
    """Return the Delta Lake jars for Spark. See `spark_delta_set` and `kafka_jars`."""
    return fetch(spark_delta_set())


def fetch(wanted: JarSet, lock: Path | None = None) -> list[Path]:
    """Return a set's verified files. Download missing or damaged files.

    Other processes may download the same set, and any process may be killed. So a set appears in the cache only once it is
    complete. A set without a lock is verified against the checksums from its first download.
    For errors see `kafka_jars`.
    """
    target = cache_dir() / "jars" / wanted.name
    locked = jar_lock.read_lock(lock or jar_lock.LOCK_FILE).get(wanted.name)
    if not jar_lock.damage(target, locked):
        return jar_lock.files_in(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The kernel frees this lock when its holder dies.
    with FileLock(target.with_name(f".{wanted.name}.lock")):
        # The previous holder may have downloaded the same set.
        damage = jar_lock.damage(target, locked)
        if damage:
            if target.exists():
                _say(f"{target}: {damage}. Downloading {wanted.title} again")
            _install(wanted, target, locked)
    return jar_lock.files_in(target)


def _install(wanted: JarSet, target: Path, locked: jar_lock.Sums | None) -> None:
    """Download the set into a private directory, verify the files, and rename the directory to its final name.

    The caller holds the lock.
    """
    java_command()  # If Java is missing, fail now instead of after four attempts.
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
            # A running JVM keeps the files that it has open, and no other process may see a mix of old and new files.
            target.rename(work / "replaced")
        complete.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"downloaded {wanted.title} in {time.monotonic() - started:.0f} s")


def _download(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    """Download the files to `work/jars` and verify them, in up to four attempts."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ServiceError) & tenacity.retry_if_not_exception_type(PermanentError),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=_WAIT,
        before_sleep=_announce,
        reraise=True,
    )
    retrying(_resolve_verified, wanted, work, locked)


def _announce(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _say(f"attempt {state.attempt_number} of {_ATTEMPTS} failed, retrying: {error}")


def _resolve_verified(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    _resolve(wanted, work, locked)
    damage = jar_lock.difference(jar_lock.sums_of(work / "jars"), locked) if locked else ""
    if damage:
        # Otherwise, Ivy would copy the same files from its own cache again.
        for stale in (work / "jars", *work.glob("ivy-*")):
            shutil.rmtree(stale, ignore_errors=True)
        raise ServiceError(
            f"{wanted.title}: {damage}. The Maven repository served files that differ from {jar_lock.LOCK_FILE.name}, so "
            "no jar was installed. Try again, or check the proxies and mirrors between this machine and the repository."
        )


def _resolve(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    """Run several Ivy processes in parallel for the locked files. Without a lock, run Ivy once for the roots."""
    if not locked:
        text = ivy_file(
            wanted.coordinates, transitive=wanted.transitive, excluded=wanted.excluded, forced=wanted.forced
        )
        run_ivy(text, work, "all", verify=True)
        return
    modules = sorted(map(_coordinate, locked))
    shares = [share for n in range(_PARALLEL_RUNS) if (share := modules[n::_PARALLEL_RUNS])]
    with ThreadPoolExecutor(len(shares)) as pool:
        # The lock's SHA-256 makes Ivy's checks unnecessary.
        runs = [pool.submit(run_ivy, ivy_file(share), work, str(n), verify=False) for n, share in enumerate(shares)]
    for run in runs:
        run.result()


def _coordinate(name: str) -> str:
    """Return the coordinate of ``organisation/module/revision/module-revision-classifier.jar``; most files have no classifier."""
    organisation, module, revision, file = name.split("/")
    classifier = file.removesuffix(".jar").removeprefix(f"{module}-{revision}").removeprefix("-")
    return ":".join(filter(None, (organisation, module, revision, classifier)))


def write_lock(prefix: str = "") -> None:
    """Resolve sets from their roots, ignoring the cache and the lock, and rewrite `jars.lock.json`.

    Args:
        prefix: the prefix of the sets' names. All other sets stay unchanged. The connectors for other Spark versions stay
            unchanged, too, because a connector's set depends on the jars that the installed Spark ships.
    """
    locked = jar_lock.read_lock(jar_lock.LOCK_FILE)
    lock = {name: sums for name, sums in locked.items() if name.startswith("spark-") or prefix}
    for wanted in (
        *map(kafka_set, LOCKED_KAFKA_VERSIONS),
        old_kafka_set(),
        mirror_set(),
        spark_kafka_set(),
        hbase_set(),
        postgres_jdbc_set(),
        iceberg_set(),
        spark_iceberg_set(),
        spark_delta_set(),
    ):
        if not wanted.name.startswith(prefix):
            continue
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
    parser = argparse.ArgumentParser(prog="python -m twopc.integration.services.jars", description=__doc__)
    parser.add_argument(
        "--lock",
        nargs="?",
        const="",
        metavar="PREFIX",
        help="resolve the sets whose names begin with PREFIX (default: all) from their roots, and rewrite jars.lock.json",
    )
    prefix = parser.parse_args().lock
    if prefix is not None:
        write_lock(prefix)
        return
    for jars in (kafka_jars(), spark_kafka_jars(), hbase_jars(), postgres_jdbc_jars()):
        Console().print(*jars, sep="\n", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
