"""A real S3 server, and a proxy in front of it that never lists chosen objects."""

from __future__ import annotations

import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.live.hadoop.jars import s3_server_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer, Startable

BUCKET = "bucket"
_HTTP = "http"
_TIMEOUT_S = 60
_LISTED = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
#: The headers that a proxy must not pass on.
_OF_A_CONNECTION = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "expect"})


class LocalS3(LocalServer):
    """S3Proxy, which keeps everything in memory. It ends when this process ends, even by kill -9."""

    def __init__(self) -> None:
        super().__init__("S3Proxy", [_HTTP], None)

    @property
    def port(self) -> int:
        return self._ports[_HTTP]

    def _program(self) -> list[str]:
        class_path = ":".join(map(str, s3_server_jars()))
        return [str(java_command()), "-Xmx256m", *FAST_START, "-cp", class_path, "org.gaul.s3proxy.Main"]

    def _launch(self, program: list[str]) -> None:
        """Start the server, and return once it has the bucket."""
        properties = self.data_dir / "s3proxy.conf"
        properties.write_text(
            f"s3proxy.endpoint=http://{HOST}:{self.port}\ns3proxy.authorization=none\n"
            "jclouds.provider=transient\njclouds.identity=x\njclouds.credential=x\n"
        )
        self._serve([*program, "--properties", str(properties)], self._has_bucket)

    def _has_bucket(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("PUT", f"/{BUCKET}")
            return connection.getresponse().status in {200, 409}
        except OSError:
            return False
        finally:
            connection.close()


class LateListing(Startable):
    """An S3 endpoint that passes everything on to another, and leaves objects out of listings.

    Attributes:
        hidden: the keys of the objects that are never listed.
    """

    def __init__(self, server: LocalS3, hidden: str) -> None:
        self.hidden = re.compile(hidden.encode())
        self._server = server

    def start(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                proxy.serve(self)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._http = ThreadingHTTPServer((HOST, 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._http.server_address[1]}"

    def spark_settings(self) -> dict[str, str]:
        """Spark's settings for ``s3a://bucket/…``."""
        settings = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": "x",
            "secret.key": "y",
            "attempts.maximum": "3",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}

    def environment(self) -> dict[str, str]:
        """The environment for pyarrow's ``s3://bucket/…``."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # S3Proxy 2.6 knows no trailers
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",  # else pyarrow can read none of its objects
        }

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Pass a request on, and its answer back."""
        length = int(request.headers.get("Content-Length", "0"))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_A_CONNECTION}
        body = request.rfile.read(length)
        connection = http.client.HTTPConnection(HOST, self._server.port, timeout=_TIMEOUT_S)
        try:
            connection.request(request.command, request.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if request.command == "GET" and "list-type" in urlsplit(request.path).query:
            content = _LISTED.sub(lambda found: b"" if self.hidden.search(found[1]) else found[0], content)
        request.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_A_CONNECTION:
                request.send_header(name, value)
        is_head = request.command == "HEAD"
        request.send_header("Content-Length", answer.getheader("Content-Length", "0") if is_head else str(len(content)))
        request.end_headers()
        if not is_head:
            request.wfile.write(content)
