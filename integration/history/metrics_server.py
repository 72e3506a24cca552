"""Serve the metrics of this process. Queries with the same port and registry share one server."""

from __future__ import annotations

import threading
from typing import Any, Final

#: The registry that each port and address serves, until the process ends.
_served: Final[dict[tuple[int, str], Any]] = {}
_lock: Final = threading.Lock()


def serve(prometheus: Any, port: int, address: str, registry: Any) -> None:
    """Serve a registry's metrics, unless this process serves them already.

    Args:
        prometheus: the module ``prometheus_client``.
        port: the port.
        address: the server's address.
        registry: the registry.

    Raises:
        OSError: the port cannot be opened, or it serves another registry.
    """
    where = f"port {port} on {address}"
    with _lock:
        served = _served.get((port, address))
        if served is registry:
            return
        if served is not None:
            raise OSError(
                f"{where} already serves another registry in this process, so the metrics of this query are not served. The "
                "query continues. Pass the same registry to each PrometheusMetrics with this port, or choose a different port"
            )
        try:
            prometheus.start_http_server(port, address, registry)
        except OSError as error:
            raise OSError(
                f"{where} cannot be opened ({error}), so no metrics are served. The query tries again at every checkpoint. If "
                "another program uses this port, choose a different port"
            ) from error
        _served[port, address] = registry
