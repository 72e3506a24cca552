"""The calls that the callable refuses before it examines a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame

from tests.unit.fake_sink import FakeSink, World
from twopc.errors import ConfigurationError
from twopc.integration.spark.several import by_frame

if TYPE_CHECKING:
    from typing_extensions import Self


class ConnectFrame(DataFrame):
    """Stands in for ``pyspark.sql.connect.dataframe.DataFrame``, which cannot be imported without grpc."""

    __module__ = "pyspark.sql.connect.dataframe"

    def __new__(cls) -> Self:
        return object.__new__(cls)


@pytest.mark.parametrize("of_sink", [False, True])
def test_a_dataframe_of_spark_connect_is_refused_in_the_driver_of_a_classic_session(*, of_sink: bool) -> None:
    frame = ConnectFrame()
    with pytest.raises(ConfigurationError, match=r"Spark Connect.*classic session.*Nothing was written"):
        by_frame({"fake": frame} if of_sink else frame, [FakeSink(World(), "fake")], 0)
