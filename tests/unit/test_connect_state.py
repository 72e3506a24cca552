"""The check of a batch's state in the files of a checkpoint."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.connect.state import ConnectState, StateFiles

if TYPE_CHECKING:
    from pathlib import Path

_JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")


class Batch:
    """A DataFrame of Spark Connect, which writes state as it is evaluated."""

    def __init__(self) -> None:
        self.evaluated = 0

    @property
    def write(self) -> Batch:
        return self

    def format(self, _: str) -> Batch:
        return self

    def mode(self, _: str) -> Batch:
        return self

    def save(self) -> None:
        self.evaluated += 1


def state_of(
    root: Path, batch: Any, batch_id: int = 1, *, is_cached: bool = False, without_keys: frozenset[int] = frozenset()
) -> ConnectState:
    state = StateFiles(LocalFiles(root), without_keys)
    return ConnectState(batch_id, batch, state, lambda _: None, is_cached=is_cached)


def written(root: Path, *names: str, partitions: int = 2, metadata: str = "_metadata/metadata") -> None:
    operator = root / "state" / "0"
    content = json.dumps(
        {"operatorInfo": {}, "stateStoreInfo": [{"storeName": "default", "numPartitions": partitions}]}
    )
    for name, text in [(metadata, f"v1\n{content}"), ("0/_metadata/schema", ""), *((name, "") for name in names)]:
        path = operator / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("suffix", ["delta", "zip", "changelog", "_0f3e2a10-5c3e-4d2a-9d0e-7a1c2b3d4e5f.zip"])
def test_the_version_of_each_partition_is_found(suffix: str, tmp_path: Path) -> None:
    dot = "" if suffix.startswith("_") else "."
    written(tmp_path, f"0/1{dot}{suffix}", f"0/2{dot}{suffix}", f"1/2{dot}{suffix}")
    batch = Batch()
    state_of(tmp_path, batch).complete()
    assert batch.evaluated == 1


@pytest.mark.parametrize(
    "names",
    [
        ("0/2.delta", "1/1.delta"),
        ("0/2.delta",),
        ("0/2.delta", "1/12.delta"),
        ("0/2.delta", "1/2.snapshot"),
        ("0/2.delta", *(f"1/{store}/2.delta" for store in _JOIN[1:]), f"1/{_JOIN[0]}/1.delta"),
    ],
)
def test_a_partition_without_the_batchs_version_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    written(tmp_path, *names)
    with pytest.raises(ConfigurationError, match="but has not written state/0/1 of the batch's state"):
        state_of(tmp_path, Batch()).complete()


def test_every_store_of_a_join_is_searched_for(tmp_path: Path) -> None:
    written(tmp_path, *(f"{partition}/{store}/2.delta" for partition in range(2) for store in _JOIN))
    state_of(tmp_path, Batch()).complete()


def test_the_newest_metadata_gives_the_number_of_partitions(tmp_path: Path) -> None:
    written(tmp_path, "0/2.delta", metadata="_metadata/v2/10", partitions=2)
    written(tmp_path, metadata="_metadata/v2/9", partitions=1)
    with pytest.raises(ConfigurationError, match="state/0/1"):
        state_of(tmp_path, Batch()).complete()


def planned(root: Path, batch_id: int, partitions: object) -> None:
    """The batch's file in ``offsets``, with Spark's setting for the number of state partitions."""
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": partitions}
    (root / "offsets").mkdir()
    (root / f"offsets/{batch_id}").write_text(f"v1\n{json.dumps({'conf': conf})}\n-")


def test_after_a_repartition_to_fewer_partitions_only_these_are_expected(tmp_path: Path) -> None:
    """Spark 4.2 does not change an operator's metadata in the first format. Fails if every later batch is refused."""
    written(tmp_path, "0/2.delta", "1/2.delta", "2/1.delta", "3/1.delta", partitions=4)
    planned(tmp_path, 1, "2")
    state_of(tmp_path, Batch()).complete()


def test_after_a_repartition_to_more_partitions_all_of_these_are_expected(tmp_path: Path) -> None:
    """Fails if a batch is decided without the state of the new partitions."""
    written(tmp_path, "0/2.delta", "1/2.delta", "2/2.delta", "3/1.delta", partitions=2)
    planned(tmp_path, 1, "4")
    with pytest.raises(ConfigurationError, match="has not written state/0/3"):
        state_of(tmp_path, Batch()).complete()


@pytest.mark.parametrize("of_batch", [None, 0], ids=["not in the file", "no file"])
def test_without_the_setting_the_metadata_give_the_number_of_partitions(of_batch: int | None, tmp_path: Path) -> None:
    """Spark 4.2 does not write the setting into version 2 of the file."""
    written(tmp_path, "0/2.delta", "1/1.delta", partitions=2)
    planned(tmp_path, 1 if of_batch is None else 7, None)
    with pytest.raises(ConfigurationError, match="state/0/1"):
        state_of(tmp_path, Batch()).complete()


def test_a_setting_that_is_no_number_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "0/2.delta", "1/2.delta")
    planned(tmp_path, 1, "many")
    with pytest.raises(ConfigurationError, match="offsets/1 cannot be read"):
        state_of(tmp_path, Batch()).complete()


@pytest.mark.parametrize(("files", "missing"), [(["0/2.delta"], ""), (["0/1.delta"], "state/0/0")])
def test_an_operator_without_keys_has_one_partition(files: list[str], missing: str, tmp_path: Path) -> None:
    written(tmp_path, *files, partitions=200)
    with pytest.raises(ConfigurationError, match=missing) if missing else contextlib.nullcontext():
        state_of(tmp_path, Batch(), without_keys=frozenset({0})).complete()


@pytest.mark.parametrize("content", ["", "v1\n{}", "v1\n[]", "v3\n{"])
def test_state_without_a_number_of_partitions_is_refused(content: str, tmp_path: Path) -> None:
    written(tmp_path, "0/2.delta", "1/2.delta")
    (tmp_path / "state" / "0" / "_metadata" / "metadata").write_text(content)
    with pytest.raises(ConfigurationError, match="does not show how many partitions the state has"):
        state_of(tmp_path, Batch()).complete()


@pytest.mark.parametrize(("is_batch", "is_cached", "evaluated"), [(True, False, 0), (True, True, 1), (False, False, 1)])
def test_the_evaluation_is_skipped_only_if_a_job_has_read_the_batch_itself(
    tmp_path: Path, *, is_batch: bool, is_cached: bool, evaluated: int
) -> None:
    written(tmp_path, "0/2.delta", "1/2.delta")
    batch = Batch()
    state = state_of(tmp_path, batch, is_cached=is_cached)
    with state.watching(batch if is_batch else Batch()):
        pass
    state.complete()
    state.complete()
    assert batch.evaluated == evaluated


def test_a_job_that_fails_proves_nothing(tmp_path: Path) -> None:
    written(tmp_path, "0/2.delta", "1/2.delta")
    batch = Batch()
    state = state_of(tmp_path, batch)
    with pytest.raises(RuntimeError), state.watching(batch):
        raise RuntimeError
    state.complete()
    assert batch.evaluated == 1
