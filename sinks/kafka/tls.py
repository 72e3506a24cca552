"""Create TLS contexts that accept the same certificates as librdkafka, so that all clients of a sink agree."""

from __future__ import annotations

import ssl


def tls_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Create a context that trusts these authorities. If none are given, trust the host's authorities.

    From Python 3.13 on, ``ssl.create_default_context`` sets VERIFY_X509_STRICT. librdkafka and its curl do not set this flag.
    With the flag, the driver would reject certificates without an Authority Key Identifier, although the tasks accept them.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
