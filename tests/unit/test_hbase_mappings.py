"""A mapping whose rows need a marker changes cells in one column family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.hbase import Append, Delete, Increment, Put

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.sinks.hbase.mappings import Mapping

CELLS = {"a:x": "n", "b:y": "n"}


@pytest.mark.parametrize("kind", [Increment, Append])
def test_an_increment_or_append_over_several_families_is_refused(kind: Callable[..., Mapping]) -> None:
    """Another client can delete the family with the marker, and the retry of a commit would change the other family again."""
    with pytest.raises(ConfigurationError, match=r"several column families.*separate sink for each"):
        kind("{id}", CELLS)
    assert kind("{id}", {"a:x": "n", "a:y": "n"}).places == ((b"a", b"x"), (b"a", b"y"))


def test_a_put_or_delete_may_change_several_families() -> None:
    for mapping in (Put("{id}", CELLS), Delete("{id}", CELLS)):
        assert mapping.places == ((b"a", b"x"), (b"b", b"y"))
