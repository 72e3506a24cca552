"""Which file systems are relied upon to create a file only if it is absent."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from tests.unit.java_support import java_error
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
    file_system.getClass.return_value.getSimpleName.return_value = "DistributedFileSystem"
    assert open_files(context, f"{scheme}://store/checkpoint").is_atomic is is_atomic
    file_system.resolvePath.assert_not_called()  # every batch opens the directory, so it must cost no request


@pytest.mark.parametrize("scheme", ["viewfs", "hdfs"])  # hdfs: ViewFileSystemOverloadScheme
@pytest.mark.parametrize(
    ("mounted", "has_acls", "is_atomic"),
    [
        ("hdfs", True, True),
        ("abfs", True, True),
        ("file", False, False),
        ("s3a", False, False),
        ("viewfs", False, False),
    ],
)
def test_the_file_system_that_is_mounted_decides_and_not_the_scheme_of_the_view(
    scheme: str,
    mounted: str,
    has_acls: bool,  # noqa: FBT001
    is_atomic: bool,  # noqa: FBT001
) -> None:
    """The directory does not exist yet, but its parent does."""
    context = MagicMock()
    file_system = context._gateway.jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    qualified = file_system.makeQualified.return_value
    qualified.toUri.return_value.getScheme.return_value = scheme
    file_system.hasPathCapability.return_value = has_acls
    file_system.getClass.return_value.getSimpleName.return_value = "ViewFileSystemOverloadScheme"
    resolved = MagicMock()
    resolved.toUri.return_value.getScheme.return_value = mounted
    found = {qualified.getParent.return_value: resolved}

    def resolve(path: MagicMock) -> MagicMock:
        if path not in found:
            raise java_error("java.io.FileNotFoundException")
        return found[path]

    file_system.resolvePath.side_effect = resolve
    assert open_files(context, f"{scheme}://store/checkpoint").is_atomic is is_atomic
