"""The parts of Kafka's frames that a nemesis needs: whose request it is, what it asks, and the response.

A frame is a four-byte length followed by the payload. A request's payload begins with api key, api version, correlation id and
client id, a response's with the correlation id. Bodies are decoded by kafka-python's generated schemas, and only on demand,
so that records pass through unread.

Source: https://kafka.apache.org/protocol (message framing, request and response headers).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import (
    DescribeClusterResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

NONE: Final = "NONE"
#: The errors for a producer whose epoch is not the newest: which of the two a broker returns depends on the request's
#: version.
FENCED: Final = frozenset({"ProducerFencedError", "InvalidProducerEpochError"})
_COORDINATES_TRANSACTIONS: Final = 1
_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")
_LARGEST_FRAME_BYTES: Final = 200_000_000


class Api(IntEnum):
    """The requests that a schedule can name, with Kafka's api keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


_REQUESTS: Final[Mapping[int, Any]] = {
    Api.PRODUCE: ProduceRequest,
    Api.FIND_COORDINATOR: FindCoordinatorRequest,
    Api.INIT_PRODUCER_ID: InitProducerIdRequest,
    Api.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest,
    Api.END_TXN: EndTxnRequest,
    Api.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest,
}
_RESPONSES: Final[Mapping[int, Any]] = {
    Api.PRODUCE: ProduceResponse,
    Api.FETCH: FetchResponse,
    Api.METADATA: MetadataResponse,
    Api.FIND_COORDINATOR: FindCoordinatorResponse,
    Api.API_VERSIONS: ApiVersionsResponse,
    Api.INIT_PRODUCER_ID: InitProducerIdResponse,
    Api.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnResponse,
    Api.END_TXN: EndTxnResponse,
    Api.DESCRIBE_CLUSTER: DescribeClusterResponse,
    Api.DESCRIBE_TRANSACTIONS: DescribeTransactionsResponse,
    Api.LIST_TRANSACTIONS: ListTransactionsResponse,
}
#: From these versions on, a refusal contains the new leader's address (KIP-951).
_NAMES_LEADERS_FROM: Final[Mapping[int, int]] = {Api.PRODUCE: 10, Api.FETCH: 16}


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """The payloads of a connection until its other end closes it. An incomplete last frame is dropped.

    Raises:
        ValueError: the data is not Kafka's plain protocol (TLS, another service).
    """
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        if not 0 < length <= _LARGEST_FRAME_BYTES:
            raise ValueError(f"{head!r} is not the start of a plain Kafka frame. Does the listener use TLS?")
        payload = stream.read(length)
        if len(payload) < length:
            return
        yield payload


def framed(payload: bytes) -> bytes:
    """A payload as it goes over the wire."""
    return _LENGTH.pack(len(payload)) + payload


@dataclass(frozen=True)
class Request:
    """A request as received, without its length prefix."""

    payload: bytes

    @cached_property
    def _header(self) -> tuple[int, int, int, int]:
        api_key, version, correlation_id, client_id_length = _HEADER.unpack_from(self.payload)
        return api_key, version, correlation_id, client_id_length

    @property
    def api_key(self) -> int:
        """The kind of request, see :class:`Api`; requests of other kinds pass, too."""
        return self._header[0]

    @property
    def version(self) -> int:
        """The request's version."""
        return self._header[1]

    @property
    def correlation_id(self) -> int:
        """The id that its response repeats."""
        return self._header[2]

    @property
    def client_id(self) -> str:
        """The client id."""
        return self.payload[_HEADER.size : _HEADER.size + max(0, self._header[3])].decode()

    @cached_property
    def body(self) -> Any:
        """The decoded body, with kafka-python's field names.

        Raises:
            KeyError: requests of this kind are not decoded here.
        """
        return _REQUESTS[self.api_key].decode(self.payload, version=self.version, header=True)

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """The transactional ids in the request; empty if it has no id."""
        if self.api_key not in _REQUESTS:
            return ()
        if self.api_key == Api.FIND_COORDINATOR:
            if self.body.key_type != _COORDINATES_TRANSACTIONS:
                return ()
            return tuple(self.body.coordinator_keys or [self.body.key])
        if self.api_key == Api.DESCRIBE_TRANSACTIONS:
            return tuple(self.body.transactional_ids)
        if self.api_key == Api.ADD_PARTITIONS_TO_TXN:
            several = [row.transactional_id for row in self.body.transactions or []]
            return tuple(several or [self.body.v3_and_below_transactional_id])
        return () if self.body.transactional_id is None else (self.body.transactional_id,)

    @property
    def committed(self) -> bool | None:
        """Whether an EndTxn commits; None for other requests."""
        return bool(self.body.committed) if self.api_key == Api.END_TXN else None


@dataclass(frozen=True)
class Response:
    """The response to ``request`` as received, without its length prefix."""

    payload: bytes
    request: Request

    @cached_property
    def body(self) -> Any:
        """The decoded body, with kafka-python's field names.

        Raises:
            KeyError: responses of this kind are not decoded here.
        """
        return _RESPONSES[self.request.api_key].decode(self.payload, version=self.request.version, header=True)

    @property
    def error(self) -> str:
        """NONE, or kafka-python's name of the first error, whether of the whole request or of a part."""
        code = next(filter(None, _error_codes(self.body.to_dict())), 0)
        return NONE if code == 0 else str(kafka_errors.for_code(code).__name__)

    @property
    def _addresses(self) -> Sequence[Any]:
        """The rows that have a ``host`` and a ``port``."""
        api = self.request.api_key
        if api in {Api.METADATA, Api.DESCRIBE_CLUSTER}:
            rows: Sequence[Any] = self.body.brokers
        elif api == Api.FIND_COORDINATOR:
            rows = self.body.coordinators or [self.body]  # before v4, the body itself is the only row
        elif api in _NAMES_LEADERS_FROM and self.request.version >= _NAMES_LEADERS_FROM[api]:
            rows = self.body.node_endpoints
        else:
            rows = ()
        return rows

    def readdressed(self, front: Callable[[str, int], tuple[str, int]]) -> bytes:
        """The payload with ``front(host, port)`` in place of every broker's address."""
        rows = self._addresses
        if not rows:
            return self.payload  # including responses with records
        for row in rows:
            if row.port > 0:  # a failed look-up has no address
                row.host, row.port = front(row.host, row.port)
        encoded: bytes = self.body.encode(header=True)
        return encoded


def limited(response: Response, newest: Mapping[Api, int]) -> bytes:
    """The payload of a response to ApiVersions, with no newer version of a request than ``newest`` has for its kind."""
    for row in response.body.api_keys:
        row.max_version = min(row.max_version, newest.get(row.api_key, row.max_version))
    encoded: bytes = response.body.encode(header=True)
    return encoded


def _error_codes(found: object) -> Iterator[int]:
    if isinstance(found, dict):
        for name, of in found.items():
            if name.endswith("error_code"):
                yield of
            yield from _error_codes(of)
    elif isinstance(found, list):
        for of in found:
            yield from _error_codes(of)


def correlation_id_of(payload: bytes) -> int:
    """The id of the request that a response answers."""
    (correlation_id,) = _LENGTH.unpack_from(payload)
    return int(correlation_id)
