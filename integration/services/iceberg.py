"""Run the Iceberg REST catalog in memory, on 127.0.0.1 only. Iceberg's own tests use this catalog as their reference."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from twopc.integration.services.jars import iceberg_jars
from twopc.integration.services.java import FAST_START, java_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RestCatalogs:
    """A JVM that serves catalogs.

    Iceberg's ``RESTCatalogServer`` would listen on all addresses, so this class makes the same calls as that server's
    ``main``, through py4j.
    """

    def __init__(self) -> None:
        port, token, self._process = launch_gateway(
            classpath=os.pathsep.join(map(str, iceberg_jars())),
            java_path=str(java_command()),
            javaopts=["-Xmx256m", *FAST_START],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)

    @contextlib.contextmanager
    def served(self, warehouse: Path) -> Iterator[str]:
        """Serve a new catalog while the body runs, and yield its URI.

        Args:
            warehouse: the directory for the tables.
        """
        java = self._gateway.jvm.java
        rest, jetty = self._gateway.jvm.org.apache.iceberg.rest, self._gateway.jvm.org.eclipse.jetty
        catalog = self._gateway.jvm.org.apache.iceberg.inmemory.InMemoryCatalog()
        catalog.initialize("test", java.util.HashMap({"warehouse": warehouse.as_uri()}))
        context = jetty.servlet.ServletContextHandler()
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(java.net.InetSocketAddress("127.0.0.1", 0))
        server.setHandler(context)
        server.start()
        try:
            yield f"http://127.0.0.1:{server.getURI().getPort()}"
        finally:
            server.stop()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Keep all catalogs from responding while the body runs."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until it is stopped, the server may still respond
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the JVM."""
        self._gateway.close()
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
