"""Find settings with which Spark uses a kind of shuffle other than its default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: The settings, each with the values that select Spark's own sort shuffle. The first value is the default.
_PLAIN: Final = (
    ("spark.shuffle.push.enabled", ("false",)),
    ("spark.shuffle.manager", ("sort", "tungsten-sort", "org.apache.spark.shuffle.sort.sortshufflemanager")),
)


def other_shuffles(get: Callable[[str, str], object]) -> list[str]:
    """Return the settings to change so that Spark uses its own sort shuffle, each with the required value.

    Args:
        get: returns a setting's value. The second argument is the default.
    """
    return [f"{name}={plain[0]}" for name, plain in _PLAIN if str(get(name, plain[0])).lower() not in plain]
