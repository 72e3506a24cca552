"""The control record of a sink: who owns it, and its newest decision. The store changes it in one atomic step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from twopc.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What the record holds; all fields are empty before the first driver.

    Attributes:
        id: of the sink in this store; it moves with the store's data.
        run: the owner's run, a UUID.
        query_id: the owner's query.
        driver_epoch: how often the sink was acquired.
        version: the highest version given out.
        decided: the version of this query's newest decision.
    """

    id: str = ""
    run: str = ""
    query_id: str = ""
    driver_epoch: int = 0
    version: int = 0
    decided: int = 0


ControlT = TypeVar("ControlT", bound=Control)
#: Field names of version 0.1, which are read and never written.
FORMER_NAMES: Final = {"lineage": "query_id", "incarnation": "driver_epoch"}


def decode_control(fields: Mapping[str, object], kind: type[ControlT]) -> ControlT:
    """The record from its stored fields, whichever version wrote them."""
    former = {FORMER_NAMES[name]: value for name, value in fields.items() if name in FORMER_NAMES}
    return msgspec.convert({**former, **fields}, kind, strict=False)


def fenced(sink: str) -> FencedError:
    """The error of a driver that no longer owns the sink."""
    return FencedError(
        f"sink {sink!r}: another driver has acquired it and fenced this one. No data is at risk; stop this run"
    )
