"""Each stored file, cut at each byte and with one bit flipped in each: no duplicate, no loss, or a clear error."""

from __future__ import annotations

import hashlib
import re
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from tests.unit.coordinator_support import die_at
from tests.unit.fake_sink import Cluster, World, all_rows, batch_of
from tests.unit.history_support import ended
from tests.unit.savepoint_support import saving
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.files import LocalFiles, MemoryFiles
from twopc.integration.history.reader import read
from twopc.integration.history.writer import AppendingWriter
from twopc.integration.migrate.handover import Bounds, Handover, Handovers, Kind
from twopc.integration.operate.durable import Copied, write
from twopc.integration.operate.manifest import Manifest, directory_name, newest_good
from twopc.integration.operate.request import Request
from twopc.integration.spark.handed_over import require_taken_over
from twopc.sealed import seal
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from twopc.files import Files


class Kept(NamedTuple):
    """The state that survives a driver."""

    world: World
    files: dict[str, bytes]

    def restart(self, name: str, data: bytes) -> Cluster:
        """A cluster as it was, except for one file."""
        return _cluster(deepcopy(self.world), {**self.files, name: data})


def _cluster(world: World, files: dict[str, bytes]) -> Cluster:
    cluster = Cluster.__new__(Cluster)
    cluster.world, cluster.files, cluster.kinds = world, MemoryFiles(), {}
    for name, data in files.items():
        cluster.files.put_if_absent(name, data)
    return cluster


def _content(files: Files) -> dict[str, bytes]:
    names = [f"{directory}/{name}".lstrip("/") for directory in ("", "registers") for name in files.names(directory)]
    return {name: data for name in names if (data := files.read(name)) is not None}


def _finished(cluster: Cluster) -> None:
    cluster.start().run(0, 1)


def _decided(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0)
    die_at(cluster, query, "driver.decided", 1)


def _repaired(cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0)
    die_at(cluster, query, "driver.committing", 1)
    cluster.store.expire(1)
    die_at(cluster, cluster.start(), "driver.decided", 1)


def _acquired(cluster: Cluster) -> None:
    _decided(cluster)
    die_at(cluster, cluster.start(), "driver.acquired", 1)


def _truncated(cluster: Cluster) -> None:
    cluster.start(settings=Settings(keep_batches=1)).run(0, 1)


def _damaged(data: bytes) -> Iterator[bytes]:
    """The content cut anywhere, or with a bit flipped anywhere."""
    for position in range(len(data)):
        yield data[:position]
        altered = bytearray(data)
        altered[position] ^= 1 << (3 * position % 8)
        yield bytes(altered)


def _error_of(act: Callable[[], object]) -> str | None:
    """The text of one of our errors; None if there was none."""
    try:
        act()
    except TwoPhaseCommitError as error:
        return str(error)
    return None


def _restart(cluster: Cluster) -> None:
    cluster.start().run(1, 2)


def _require_equal(found: object, expected: object) -> None:
    assert found == expected


@pytest.mark.parametrize("file", ["newest", "id", "binding"])
@pytest.mark.parametrize("leave", [_finished, _decided, _repaired, _acquired, _truncated])
def test_a_damaged_decision_causes_no_loss_and_the_error_identifies_the_file_and_the_remedy(
    leave: Callable[[Cluster], None], file: str
) -> None:
    cluster = _cluster(World(), {})
    leave(cluster)
    kept = Kept(cluster.world, _content(cluster.files))
    newest = max(name for name in kept.files if re.fullmatch(r"registers/[0-9]+", name))
    name = {"newest": newest, "id": "registers/id", "binding": "binding-000001.json"}[file]
    stopped = 0
    for data in _damaged(kept.files[name]):
        cluster = kept.restart(name, data)
        visible = cluster.store.visible()
        said = _error_of(partial(_restart, cluster))
        if said is None:
            assert cluster.store.visible() == all_rows(0, 1, 2)
            continue
        stopped += 1
        assert name in said
        assert "Nothing was written" in said
        assert re.search(r"Restore (the file|the log) from a backup|Write that id's 32 digits into", said)
        assert cluster.store.visible() == visible
        assert _content(cluster.files) == {**kept.files, name: data}
    # A change in the checksum's own name, or a cut there, leaves the rest intact.
    harmless = {"newest": 0, "id": 0, "binding": 0}[file]
    assert stopped >= 2 * len(kept.files[name]) - harmless


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_the_id_of_the_registers_is_written_again_as_the_error_says(ending: str) -> None:
    """An editor, or ``echo``, ends the line."""
    cluster = _cluster(World(), {})
    _decided(cluster)
    kept = Kept(cluster.world, _content(cluster.files))
    bound = msgspec.json.decode(kept.files["binding-000001.json"])
    cluster = kept.restart("registers/id", f"{bound['log_identity']}{ending}".encode())
    cluster.start().run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_a_damaged_handover_is_never_mistaken_for_another_one() -> None:
    """With another batch in it, rows that are already in the output would be written again."""
    files, batch = MemoryFiles(), batch_of(7)
    bounds = {"out": {0: Bounds(start=10, exact=11, end=20)}}
    kept = Handover(query_id=batch.query_id, batch_id=7, offsets=batch.offsets, kind=Kind.REST, topics=bounds)
    Handovers(files).add(kept)
    whole = files.read("handover-000001.json") or b""
    for data in _damaged(whole):
        files.remove("handover-000001.json")
        files.put_if_absent("handover-000001.json", data)
        with pytest.raises(ConfigurationError, match=r"cannot be read|left the batch half-written"):
            require_taken_over(files, batch, lambda: None)
        said = _error_of(lambda: _require_equal(Handovers(files).newest(), kept))
        assert said is None or re.search(r"handover-000001\.json cannot be read.*`twopc migrate cutover` again", said)


def test_a_damaged_history_line_is_skipped_and_reported_and_no_other_line_is_lost(tmp_path: Path) -> None:
    writing = AppendingWriter(tmp_path / "twopc/history")
    for batch in range(2):
        writing.ended(ended(batch))
    writing.close()
    (file,) = (tmp_path / "twopc/history").iterdir()
    whole = file.read_bytes()
    start = whole.index(b"\n") + 1
    for data in _damaged(whole[start:]):
        file.write_bytes(whole[:start] + data)
        found = read(tmp_path)
        assert found.checkpoints[0] == ended(0)
        if len(found.checkpoints) > 1:  # altered in the checksum's own name, or cut before the line's end
            assert found.checkpoints[1:] == (ended(1),)
        elif data:
            assert found.skipped[:1] == (f"{file.name}:2",)


def test_the_newest_complete_savepoint_counts_and_the_faults_of_newer_ones_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, newest = (_savepoint(tmp_path, batch) for batch in (3, 4))
    assert newest_good(tmp_path).path == newest
    for file in (newest / "manifest.json", newest / "checkpoint/offsets/4"):
        whole = file.read_bytes()
        for data in _damaged(whole):
            file.write_bytes(data)
            caplog.clear()
            assert newest_good(tmp_path).path == good
            assert str(newest) in caplog.text
        file.write_bytes(whole)


def _savepoint(directory: Path, batch: int) -> Path:
    path = directory / directory_name(batch, batch)
    data = b"v1\n{}\n{}"
    copied = {f"offsets/{batch}": Copied(size=len(data), sha256=hashlib.sha256(data).hexdigest())}
    found = Manifest(
        query_id="q",
        batch_id=batch,
        offsets=(),
        taken_from="/c",
        at_ms=batch,
        log=None,
        sinks={},
        positions={},
        files=copied,
    )
    write(path / "manifest.json", seal(found))
    write(path / f"checkpoint/offsets/{batch}", data)
    return path


def test_a_damaged_savepoint_request_stops_no_query(tmp_path: Path) -> None:
    whole = msgspec.json.encode(Request(directory=str(tmp_path / "kept"), stop=False))
    written: list[int] = []
    each = saving(lambda _, batch: written.append(batch), tmp_path)
    requests = LocalFiles(tmp_path / "twopc")
    each(0)
    for batch, data in enumerate(_damaged(whole), start=1):
        requests.put_if_absent("savepoint-request-1", data)
        each(batch)
        assert requests.names("") == ["savepoint-request-answer-1"]
        requests.remove("savepoint-request-answer-1")
    assert written == list(range(2 * len(whole) + 1))
