"""Which file systems are relied upon to create a file only if it is absent."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from twopc.integration.spark.hadoop_files import open_files


@pytest.mark.parametrize(
    ("scheme", "has_acls", "is_atomic"),
    [
        ("file", False, True),
        ("hdfs", True, True),
        ("webhdfs", True, True),
        ("abfss", True, True),  # a hierarchical namespace
        ("abfss", False, False),  # a flat one
        ("s3a", False, False),
        ("s3a", True, False),
        ("gs", False, False),
        ("new", True, False),
    ],
)
def test_a_rename_is_relied_upon_only_where_it_is_atomic(scheme: str, has_acls: bool, is_atomic: bool) -> None:  # noqa: FBT001
    context = MagicMock()
    file_system = context._gateway.jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    file_system.makeQualified.return_value.toUri.return_value.getScheme.return_value = scheme
    file_system.makeQualified.return_value.toUri.return_value.getPath.return_value = "/checkpoint"
    file_system.hasPathCapability.return_value = has_acls
    assert open_files(context, f"{scheme}://store/checkpoint").is_atomic is is_atomic
