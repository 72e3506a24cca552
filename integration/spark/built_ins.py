"""Check that the SQL functions in the toolkit's expressions are Spark's own functions.

``spark.udf.register("transform", …)`` gives a temporary function the name of a built-in function. Then Spark calls the temporary
function wherever SQL contains this name. Up to Spark 4.1, SQL has no other name for the built-in function (SPARK-54807).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

_QUOTED: Final = re.compile("`[^`]*`|'[^']*'")
_CALL: Final = re.compile(r"(\w+)\(")
#: Before a parenthesis, SQL does not read these names as functions.
_SYNTAX: Final = frozenset({"cast", "decimal"})
#: The package of the classes that implement Spark's functions.
_OWN: Final = "org.apache.spark.sql.catalyst.expressions."


def functions_in(sql: str) -> frozenset[str]:
    """Return the names of the functions that an expression calls, in lower case."""
    return frozenset(map(str.lower, _CALL.findall(_QUOTED.sub("", sql)))) - _SYNTAX


class BuiltIns:
    """Checks each function once. If other queries may change the functions, each attempt needs a new object.

    In a classic session, Spark copies the session's functions when a query starts. Under Spark Connect, all queries share them.
    """

    def __init__(self) -> None:
        self._own: set[str] = set()

    def require(self, session: SparkSession, names: Collection[str]) -> None:
        """Check that these functions are Spark's own.

        Raises:
            ConfigurationError: a temporary function replaces one of them.
        """
        for name in sorted({*names} - self._own):
            if not _is_own(session, name):
                raise ConfigurationError(
                    f"a temporary function replaces Spark's own function {name} in this session. The toolkit's SQL uses "
                    f"Spark's function {name} to convert and check the rows. With the temporary function, Spark could write "
                    "changed rows, or too few rows. Nothing was written. Register the temporary function under another name, "
                    f"such as my_{name}, in a new session, and restart the query"
                )
            self._own.add(name)


def _is_own(session: SparkSession, name: str) -> bool:
    try:
        return str(session.catalog.getFunction(name).className).startswith(_OWN)
    except AnalysisException:  # without the function, Spark rejects the expression
        return True
