"""Plans that Spark has cut short."""

from __future__ import annotations

from typing import Final

#: What Spark 4.0.5 returns for a plan if ``spark.sql.maxPlanStringLength`` is at most 30, 31 or 60.
CUT_SHORT: Final = (
    "Truncated plan of 355 characters",
    "A... 354 more characters",
    "AdaptiveSparkPlan isFinalPlan=... 325 more characters",
)
