"""Download the jars of Kafka, HBase, Spark's Kafka connector and PostgreSQL's driver once, and verify them on every use.

`python -m twopc.integration.services.jars` downloads the default sets and prints their files; `--lock` rewrites `jars.lock.json`,
`--lock spark-kafka` only the connector of the installed Spark.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tenacity
from filelock import FileLock
from rich.console import Console

from twopc.integration.services import ServiceError, cache_dir, jar_lock
from twopc.integration.services.ivy import PermanentError, ivy_file, pyspark_jars, run_ivy
from twopc.integration.services.java import java_command

DEFAULT_KAFKA_VERSION = "4.3.0"
#: The versions that `make matrix` runs, and 2.8.2, which is refused.
LOCKED_KAFKA_VERSIONS = ("2.8.2", "3.0.2", "3.3.2", "3.5.2", "3.9.1", "4.0.1", "4.1.1", "4.2.0", DEFAULT_KAFKA_VERSION)
HBASE_VERSION = "2.6.1"
ICEBERG_VERSION = "1.10.0"
#: By Spark's minor version, the newest patch whose Kafka connector every repository serves. Later patches use it, too.
NEWEST_CONNECTORS = {"3.5": "3.5.7", "4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
POSTGRES_JDBC_VERSION = "42.7.7"
#: The last release of 0.10, from which pipelines migrate.
OLD_KAFKA_VERSION = "0.10.2.2"

_ATTEMPTS = 4
_WAIT: tenacity.wait.wait_base = tenacity.wait_random_exponential(multiplier=1, max=15)
# Ivy downloads one file at a time and mostly waits: four parallel runs took 11 s for the Kafka jars instead of 40 s.
_PARALLEL_RUNS = 4
_console = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class JarSet:
    """Jars that are resolved together.

    Attributes:
        name: the set's directory in the cache, and its key in the lock file.
        title: the set's name in messages.
        coordinates: the roots, each "organisation:module:revision".
        excluded: modules to leave out, because the user of the set already has them.
        forced: dependencies whose revision differs from the one that their dependants ask for.
        transitive: whether the dependencies of the roots belong to the set.
    """

    name: str
    title: str
    coordinates: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    forced: tuple[str, ...] = ()
    transitive: bool = True


def kafka_set(version: str) -> JarSet:
    """Return the class path of a Kafka broker."""
    # Kafka is compiled against SLF4J 1.7 and depends on no binding. Without a binding the broker logs nothing.
    roots = (f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-reload4j:1.7.36")
    return JarSet(f"kafka-{version}", f"Kafka {version}", roots)


def spark_kafka_set() -> JarSet:
    """Return Spark's Kafka connector for the installed PySpark, without the jars that PySpark ships."""
    matches = (re.match(r"(.+?)-\d[^-]*.*\.jar$", jar.name) for jar in pyspark_jars().glob("*.jar"))
    shipped = frozenset(match[1] for match in matches if match)
    version = connector_version(importlib.metadata.version("pyspark"))
    scala = "_2.12" if "spark-core_2.12" in shipped else "_2.13"
    return JarSet(
        f"spark-kafka-{version}",
        f"Spark {version} Kafka connector",
        (f"org.apache.spark:spark-sql-kafka-0-10{scala}:{version}",),
        shipped,
        # Repositories lack the token provider of most later versions, which can use this one.
        () if version.startswith("3.") else (f"org.apache.spark:spark-token-provider-kafka-0-10{scala}:4.0.0",),
    )


def connector_version(spark: str) -> str:
    """Return the version of the Kafka connector for a version of Spark: the same, or the newest one that is served."""
    newest = NEWEST_CONNECTORS.get(".".join(spark.split(".")[:2]), spark)
    return min(spark, newest, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def hbase_set() -> JarSet:
    """Return the class path of HBase: master, region server and ZooKeeper."""
    # These are the jars that a small HBase loads: 59 MB instead of 110 MB with all dependencies.
    roots = tuple(json.loads(Path(__file__).with_name("hbase.jars.json").read_text()))
    return JarSet(f"hbase-{HBASE_VERSION}", f"HBase {HBASE_VERSION}", roots, transitive=False)


def postgres_jdbc_set() -> JarSet:
    """Return PostgreSQL's JDBC driver, for Spark's own writer."""
    roots = (f"org.postgresql:postgresql:{POSTGRES_JDBC_VERSION}",)
    title = f"PostgreSQL {POSTGRES_JDBC_VERSION} JDBC driver"
    return JarSet(f"postgres-jdbc-{POSTGRES_JDBC_VERSION}", title, roots, transitive=False)


def mirror_set() -> JarSet:
    """Return the class path of MirrorMaker 2."""
    roots = (
        f"org.apache.kafka:connect-mirror:{DEFAULT_KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{DEFAULT_KAFKA_VERSION}",
        "org.slf4j:slf4j-reload4j:1.7.36",
    )
    return JarSet(f"mirror-{DEFAULT_KAFKA_VERSION}", f"Kafka {DEFAULT_KAFKA_VERSION} MirrorMaker", roots)


def old_kafka_set() -> JarSet:
    """Return the class path of Kafka 0.10 and of its ZooKeeper. The dependencies include their own binding of SLF4J."""
    # 0.10 was made for Java 8, which had this package.
    roots = (f"org.apache.kafka:kafka_2.11:{OLD_KAFKA_VERSION}", "javax.xml.bind:jaxb-api:2.3.1")
    return JarSet(f"kafka-{OLD_KAFKA_VERSION}", f"Kafka {OLD_KAFKA_VERSION}", roots)


def iceberg_set() -> JarSet:
    """Return the class path of Iceberg's own REST catalog, which is among its tests."""
    iceberg, jetty = (f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}", "org.eclipse.jetty:jetty-{}:11.0.26")
    roots = (iceberg, f"{iceberg}:tests", jetty.format("server"), jetty.format("servlet"), "org.slf4j:slf4j-nop:2.0.17")
    return JarSet(f"iceberg-{ICEBERG_VERSION}", f"Iceberg {ICEBERG_VERSION} REST catalog", roots)


def spark_iceberg_set() -> JarSet:
    """Return Iceberg's own reader and writer for the installed PySpark, in one jar."""
    minor = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    root = f"org.apache.iceberg:iceberg-spark-runtime-{minor}_{'2.12' if minor < '4' else '2.13'}:{ICEBERG_VERSION}"
    return JarSet(
        f"spark-iceberg-{minor}-{ICEBERG_VERSION}",
        f"Iceberg {ICEBERG_VERSION} for Spark {minor}",
        (root,),
        transitive=False,
    )


def kafka_jars(version: str = DEFAULT_KAFKA_VERSION) -> list[Path]:
    """Return the class path of a Kafka broker, with an SLF4J binding; downloads it on first use.

    Raises:
        ServiceError: Java is not installed, the Maven repository does not answer or does not have this version, or the files
            differ from the lock.
    """
    return fetch(kafka_set(version))


def mirror_jars() -> list[Path]:
    """Return the class path of MirrorMaker 2; see `mirror_set` and `kafka_jars`."""
    return fetch(mirror_set())


def old_kafka_jars() -> list[Path]:
    """Return the class path of Kafka 0.10 and ZooKeeper; see `old_kafka_set` and `kafka_jars`."""
    return fetch(old_kafka_set())


def spark_kafka_jars() -> list[Path]:
    """Return Spark's Kafka connector; see `spark_kafka_set` and `kafka_jars`."""
    return fetch(spark_kafka_set())


def postgres_jdbc_jars() -> list[Path]:
    """Return PostgreSQL's JDBC driver; see `postgres_jdbc_set` and `kafka_jars`."""
    return fetch(postgres_jdbc_set())


def hbase_jars() -> list[Path]:
    """Return the class path of HBase; see `hbase_set` and `kafka_jars`."""
    return fetch(hbase_set())


def iceberg_jars() -> list[Path]:
    """Return the class path of Iceberg's REST catalog; see `iceberg_set` and `kafka_jars`."""
    return fetch(iceberg_set())


def spark_iceberg_jars() -> list[Path]:
    """Return Iceberg for Spark; see `spark_iceberg_set` and `kafka_jars`."""
    return fetch(spark_iceberg_set())


def fetch(wanted: JarSet, lock: Path | None = None) -> list[Path]:
    """Return the verified files of a set; downloads them if they are missing or damaged.

    Other processes may do the same, and any of them may be killed, so a set appears in the cache complete or not at all. A set
    without a lock is verified against the sums of its first download. For errors see `kafka_jars`.
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
                _say(f"{target}: {damage}; downloading {wanted.title} again")
            _install(wanted, target, locked)
    return jar_lock.files_in(target)


def _install(wanted: JarSet, target: Path, locked: jar_lock.Sums | None) -> None:
    """Download into a private directory, verify, and move it into place with one rename. The caller holds the lock."""
    java_command()  # If Java is missing, fail now and not after four attempts.
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
    """Download to `work/jars` and verify, in up to four attempts."""
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
        # Ivy would copy the same files from its own cache again.
        for stale in (work / "jars", *work.glob("ivy-*")):
            shutil.rmtree(stale, ignore_errors=True)
        raise ServiceError(
            f"{wanted.title}: {damage}. The Maven repository served files that differ from "
            f"{jar_lock.LOCK_FILE.name}, so none was installed. Try again, or check the proxies and mirrors on the way."
        )


def _resolve(wanted: JarSet, work: Path, locked: jar_lock.Sums | None) -> None:
    """Run Ivy for the locked files, in parallel, or from the roots if there is no lock."""
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
    """The coordinate of ``organisation/module/revision/module-revision-classifier.jar``; most files have no classifier."""
    organisation, module, revision, file = name.split("/")
    classifier = file.removesuffix(".jar").removeprefix(f"{module}-{revision}").removeprefix("-")
    return ":".join(filter(None, (organisation, module, revision, classifier)))


def write_lock(prefix: str = "") -> None:
    """Resolve sets from their roots, ignoring cache and lock, and rewrite `jars.lock.json`.

    Args:
        prefix: the beginning of the names of the sets. All other sets stay unchanged. So do the connectors of Spark versions
            other than the installed one, because a connector's set depends on the jars that Spark ships.
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
        help="resolve from the roots and rewrite jars.lock.json, for the sets whose names begin with PREFIX (default: all)",
    )
    prefix = parser.parse_args().lock
    if prefix is not None:
        write_lock(prefix)
        return
    for jars in (kafka_jars(), spark_kafka_jars(), hbase_jars(), postgres_jdbc_jars()):
        Console().print(*jars, sep="\n", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
