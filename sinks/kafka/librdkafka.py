"""Declare librdkafka's C interface. The library is the copy that confluent-kafka's extension module uses.

This module uses only the documented interface, ``rdkafka.h``. The module accepts only versions 2.x, which keep these
functions and structures. With any other version, the caller does not use the C interface. The C library stays loaded
until the process ends.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from typing import Any, Final

import confluent_kafka

logger = logging.getLogger(__name__)

_MAJOR: Final = 2
_POINTER_BYTES: Final = 8

PRODUCER: Final = 0  #: ``RD_KAFKA_PRODUCER``
CONF_OK: Final = 0  #: ``RD_KAFKA_CONF_OK``
#: ``RD_KAFKA_MSG_F_COPY``: librdkafka copies key and value before the call returns.
COPY: Final = 2
ANY_PARTITION: Final = -1  #: ``RD_KAFKA_PARTITION_UA``: the partitioner chooses

DELIVERIES: Final = 0x1  #: ``RD_KAFKA_EVENT_DR``
LOG: Final = 0x4  #: ``RD_KAFKA_EVENT_LOG``
ERROR: Final = 0x8  #: ``RD_KAFKA_EVENT_ERROR``
STATISTICS: Final = 0x40  #: ``RD_KAFKA_EVENT_STATS``

# ``rd_kafka_vtype_t``: the types of ``rd_kafka_produceva``'s arguments.
TOPIC: Final = 2
PARTITION: Final = 3
VALUE: Final = 4
KEY: Final = 5
FLAGS: Final = 7
TIMESTAMP: Final = 8
HEADER: Final = 9

_INT, _SIZE, _PTR, _TEXT = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p


class Message(ctypes.Structure):
    """``rd_kafka_message_t``. Pointers are declared as numbers, so that numpy can fill them in."""

    _fields_ = (
        ("err", ctypes.c_int32),
        ("topic", _SIZE),
        ("partition", ctypes.c_int32),
        ("value", _SIZE),
        ("value_size", _SIZE),
        ("key", _SIZE),
        ("key_size", _SIZE),
        ("offset", ctypes.c_int64),
        ("private", _SIZE),
    )


class Argument(ctypes.Structure):
    """``rd_kafka_vu_t``: a type, and a union of 64 bytes. At most three words of the union are used."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("first", ctypes.c_int64),
        ("second", ctypes.c_int64),
        ("third", ctypes.c_int64),
        ("_padding", ctypes.c_int64 * 5),
    )


class TopicMetadata(ctypes.Structure):
    """``rd_kafka_metadata_topic_t``."""

    _fields_ = (("topic", _TEXT), ("partition_count", _INT), ("partitions", _PTR), ("err", _INT))


class Metadata(ctypes.Structure):
    """``rd_kafka_metadata_t``, up to the topics."""

    _fields_ = (
        ("broker_count", _INT),
        ("brokers", _PTR),
        ("topic_count", _INT),
        ("topics", ctypes.POINTER(TopicMetadata)),
    )


#: Each function's name, result type and argument types.
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("conf_new", _PTR, ()),
    ("conf_destroy", None, (_PTR,)),
    ("conf_set", _INT, (_PTR, _TEXT, _TEXT, _TEXT, _SIZE)),
    ("conf_set_events", None, (_PTR, _INT)),
    ("new", _PTR, (_INT, _PTR, _TEXT, _SIZE)),
    ("destroy", None, (_PTR,)),
    ("name", _TEXT, (_PTR,)),
    ("last_error", _INT, ()),
    ("fatal_error", _INT, (_PTR, _TEXT, _SIZE)),
    ("set_log_queue", _INT, (_PTR, _PTR)),
    ("set_log_level", None, (_PTR, _INT)),
    ("queue_get_main", _PTR, (_PTR,)),
    ("queue_destroy", None, (_PTR,)),
    ("queue_poll", _PTR, (_PTR, _INT)),
    ("event_type", _INT, (_PTR,)),
    ("event_message_count", _SIZE, (_PTR,)),
    ("event_message_array", _SIZE, (_PTR, _PTR, _SIZE)),
    ("event_stats", _TEXT, (_PTR,)),
    ("event_log", _INT, (_PTR, _PTR, _PTR, _PTR)),
    ("event_destroy", None, (_PTR,)),
    ("topic_new", _PTR, (_PTR, _TEXT, _PTR)),
    ("topic_name", _TEXT, (_PTR,)),
    ("topic_destroy", None, (_PTR,)),
    ("metadata", _INT, (_PTR, _INT, _PTR, ctypes.POINTER(ctypes.POINTER(Metadata)), _INT)),
    ("metadata_destroy", None, (ctypes.POINTER(Metadata),)),
    ("init_transactions", _PTR, (_PTR, _INT)),
    ("begin_transaction", _PTR, (_PTR,)),
    ("abort_transaction", _PTR, (_PTR, _INT)),
    ("flush", _INT, (_PTR, _INT)),
    ("outq_len", _INT, (_PTR,)),
    ("produce_batch", _INT, (_PTR, ctypes.c_int32, _INT, _PTR, _INT)),
    ("produceva", _PTR, (_PTR, _PTR, _SIZE)),
    ("error_code", _INT, (_PTR,)),
    ("error_string", _TEXT, (_PTR,)),
    ("error_is_fatal", _INT, (_PTR,)),
    ("error_is_retriable", _INT, (_PTR,)),
    ("error_txn_requires_abort", _INT, (_PTR,)),
    ("error_destroy", None, (_PTR,)),
)


class Library:
    """Provides the functions in ``rdkafka.h``, named without the prefix ``rd_kafka_``. Each call releases the GIL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, result, arguments in _FUNCTIONS:
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the librdkafka function rd_kafka_{name} is not declared in this class")


@functools.cache
def library() -> Library | None:
    """Load this process's library. If the library's version is not supported, log a warning and return None."""
    try:
        return _load()
    except (OSError, AttributeError, ImportError) as error:
        logger.warning("rows go to Kafka one by one, which is slower but just as safe. Cause: %s", error)
        return None


def _load() -> Library:
    if ctypes.sizeof(_PTR) != _POINTER_BYTES or sys.byteorder != "little":
        raise ImportError("this machine does not have 64-bit pointers, or is not little-endian")
    # Load the extension module itself, because its symbols come from the library that it uses, wherever that library is.
    found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    version = found.rd_kafka_version()
    if version >> 24 != _MAJOR:
        raise ImportError(f"librdkafka {confluent_kafka.libversion()[0]} is not version {_MAJOR}")
    import numpy as np  # noqa: F401, PLC0415 - numpy is not in the base install; pyspark[sql] brings it

    return Library(found)
