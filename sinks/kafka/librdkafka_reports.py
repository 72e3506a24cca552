"""Read many librdkafka delivery reports at a time.

This module examines each report without creating a Python object for it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, Any]"

_WORD_BYTES: Final = 8


def facts_of(messages: Numbers) -> list[tuple[tuple[int, ...], int]]:
    """Count the reports for each distinct combination of error, topic handle and partition.

    Args:
        messages: the addresses of ``rd_kafka_message_t`` structures, which must stay valid until the call returns.
    """
    if not len(messages):
        return []
    rows = _words_at(messages)
    if (rows == rows[0]).all():  # the usual case, because librdkafka reports one request at a time
        return [(tuple(rows[0].tolist()), len(rows))]
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    return list(zip(map(tuple, kinds.tolist()), counts.tolist(), strict=True))


class _Region:
    """Lets numpy read the memory words from one address to another, including both."""

    def __init__(self, first: int, last: int) -> None:
        words = (last - first) // _WORD_BYTES + 1
        self.__array_interface__ = {"data": (first, True), "shape": (words,), "typestr": "<i8", "version": 3}


def _words_at(messages: Numbers) -> Numbers:
    """Read each structure's first three words, which are the error, topic and partition.

    Do not read the memory between structures.
    """
    first = int(messages.min())
    words = np.asarray(_Region(first, int(messages.max()) + 2 * _WORD_BYTES))
    start = ((messages - np.uintp(first)) // np.uintp(_WORD_BYTES)).astype(np.intp)
    error, topic, partition = (words[start + place] for place in range(3))
    # Two of the fields have 32 bits, followed by padding.
    return np.stack([error.astype(np.int32), topic, partition.astype(np.int32)], axis=1)
