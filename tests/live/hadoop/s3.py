"""A real S3 server, and a proxy in front of it that never lists chosen objects."""

from __future__ import annotations

import http.client
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.http_proxy import HttpProxy, send
from tests.live.hadoop.jars import s3_server_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

BUCKET = "bucket"
_HTTP = "http"
_TIMEOUT_S = 60
_LISTED = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)


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


class LateListing(HttpProxy):
    """An S3 endpoint that passes everything on to another, and leaves objects out of listings.

    Attributes:
        hidden: the keys of the objects that are never listed.
    """

    def __init__(self, server: LocalS3, hidden: str) -> None:
        super().__init__(server.port)
        self.hidden = re.compile(hidden.encode())

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
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # S3Proxy 2.6 does not support trailers
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",  # otherwise, pyarrow cannot read S3Proxy's objects
        }

    def serve(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        """Pass a request on, and its response back."""
        answer = self.passed_on(request, content)
        if request.command == "GET" and "list-type" in urlsplit(request.path).query:
            listed = _LISTED.sub(lambda found: b"" if self.hidden.search(found[1]) else found[0], answer.content)
            answer = replace(answer, content=listed)
        send(answer, request)
