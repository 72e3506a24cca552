"""Check the arguments that a user passes to a sink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, NoReturn

from twopc.errors import ConfigurationError
from twopc.sinks.sink_names import RULE, is_sink_name


def is_positive(value: object) -> bool:
    """Whether an argument is a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a sink. The sink's class documents them.

    Attributes:
        positive: the arguments that must be positive numbers.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    positive: ClassVar[tuple[str, ...]] = ("timeout_ms",)

    name: str

    def __post_init__(self) -> None:
        self._require(is_sink_name(self.name), "name", RULE)
        for argument in self.positive:
            self._require(is_positive(getattr(self, argument)), argument, "set a positive number")

    def _require(self, is_valid: object, argument: str, advice: str) -> None:
        if not is_valid:
            self._refuse(argument, advice)

    def _refuse(self, argument: str, advice: str) -> NoReturn:
        field = self.__dataclass_fields__[argument]
        shown = repr(getattr(self, argument)) if field.repr else "…"  # the value may contain a password
        raise ConfigurationError(f"{type(self).__name__}({argument}={shown}): {advice}")
