"""Savepoints of a checkpoint as Spark leaves it: the files that are copied, and a process that is killed at any step."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from tests.live.operate.support import command
from tests.unit.coordinator_support import OTHER, die_at
from tests.unit.fake_sink import QUERY_ID, Cluster, all_rows
from tests.unit.savepoint_support import saving
from twopc.errors import ConfigurationError, RetriableError
from twopc.files import LocalFiles
from twopc.integration.operate import create_savepoint, durable, restore_savepoint
from twopc.integration.operate import restore as restore_module
from twopc.integration.operate import savepoint as savepoint_module
from twopc.integration.operate.boundary import StoppedWithSavepointError, _Run
from twopc.integration.operate.manifest import NAME, TREE, check, newest_good, open_savepoint, savepoints_in
from twopc.integration.operate.observe import SinkState
from twopc.integration.operate.request import request_savepoint
from twopc.integration.services.server import wait_until
from twopc.integration.verify.history import History
from twopc.log_view import LogView
from twopc.override import Overrides, ResumeAt
from twopc.records import Begin
from twopc.sealed import seal, with_check
from twopc.settings import Settings
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.operate.manifest import Savepoint

_ROOT = Path(__file__).parents[2]
_SINK = KafkaSink(name="s", bootstrap_servers="x:1", topic="t")


def add_batch(checkpoint: Path, batch: int, *, is_finished: bool = True) -> None:
    """Add the files as Spark does: offsets, then state, then commits."""
    put(checkpoint / "offsets" / str(batch), f'v1\n{{}}\n{{"in":{{"0":{batch}}}}}')
    put(checkpoint / "state/0/0" / f"{batch + 1}.delta", f"delta {batch}")
    put(checkpoint / "state/1/0" / f"{batch + 1}_0a-1b.changelog", f"changes {batch}")
    if batch % 3 == 2:
        put(checkpoint / "state/0/0" / f"{batch + 1}.snapshot", f"snapshot {batch}")
    if is_finished:
        put(checkpoint / "commits" / str(batch), "v1\n{}")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Four batches are finished, the fifth is in progress."""
    found = tmp_path / "checkpoint"
    put(found / "metadata", '{"id":"old"}')
    put(found / "sources/0/0", '\0v1\n{"in":{"0":0}}')
    put(found / "state/0/_metadata/metadata", "v1")
    put(found / "state/0/0/.1.delta.crc", "x")
    bound = with_check(b'{"format":1,"log":"l","log_identity":"i","sinks":{"s":{"ledger":"l"}}}')
    put(found / "twopc/binding-000001.json", bound.decode())
    put(found / "twopc/staging/x", "rows")
    put(found / "twopc/alerts.json", "{}")
    put(found / "twopc/registers/00000000000000000001", "truncated meanwhile")
    for batch in range(5):
        add_batch(found, batch, is_finished=batch < 4)
    return found


def test_a_savepoint_contains_only_the_files_that_belong_to_its_batch(checkpoint: Path, tmp_path: Path) -> None:
    found = create_savepoint(checkpoint, tmp_path / "kept")
    names = set(found.manifest.files)
    assert {"metadata", "offsets/3", "commits/3", "state/0/0/4.delta", "state/1/0/4_0a-1b.changelog"} <= names
    assert {"sources/0/0", "state/0/_metadata/metadata", "twopc/binding-000001.json"} <= names
    ours = {"twopc/staging/x", "twopc/alerts.json"}
    assert not names & {"offsets/4", "state/0/0/5.delta", "state/1/0/5_0a-1b.changelog", *ours}
    assert not any("/." in name for name in names)
    manifest = open_savepoint(found.path).manifest
    assert (manifest.query_id, manifest.batch_id, manifest.offsets) == ("old", 3, ('{"in":{"0":3}}',))
    assert manifest.sinks == {"s": {"ledger": "l"}}


def test_a_checkpoint_without_a_finished_batch_gives_no_savepoint(tmp_path: Path) -> None:
    put(tmp_path / "c/metadata", '{"id":"old"}')
    with pytest.raises(ConfigurationError, match="no finished batch yet"):
        create_savepoint(tmp_path / "c", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def while_copying(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Do something before each file is copied."""

    def copy(source: Path, target: Path) -> durable.Copied:
        act(target.as_posix().partition(f"/{TREE}/")[2])
        return durable.copy(source, target)

    monkeypatch.setattr(savepoint_module, "copy", copy)


def test_batches_that_finish_while_a_savepoint_is_taken_are_not_part_of_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query_goes_on(name: str) -> None:
        if name == "offsets/2" and not (checkpoint / "commits/5").exists():
            put(checkpoint / "commits/4", "v1\n{}")
            add_batch(checkpoint, 5)

    while_copying(monkeypatch, query_goes_on)
    found = create_savepoint(checkpoint, tmp_path / "kept")
    assert (checkpoint / "commits/5").exists()
    assert found.manifest.batch_id == 3
    assert max(int(name.partition("/")[2]) for name in found.manifest.files if name.startswith("commits/")) == 3


@pytest.mark.parametrize(
    ("deleted", "is_harmless"),
    [
        ("offsets/1", True),
        ("offsets/2", False),
        ("state/0/0/2.delta", True),
        ("twopc/registers/00000000000000000001", True),
        ("state/0/0/4.delta", False),
        ("state/1/0/1_0a-1b.changelog", False),
    ],
)
def test_a_savepoint_begins_again_if_spark_deletes_a_file_that_its_batch_needs(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deleted: str,
    caplog: pytest.LogCaptureFixture,
    *,
    is_harmless: bool,
) -> None:
    before = (checkpoint / deleted).read_text()
    copies = []
    really = savepoint_module._wanted

    def wanted(path: Path, batch: int) -> list[str]:
        names = really(path, batch)
        copies.append(batch)
        if len(copies) == 1:
            (checkpoint / deleted).unlink()
        else:
            put(checkpoint / deleted, before)
            names = really(path, batch)
        return names

    monkeypatch.setattr(savepoint_module, "_wanted", wanted)
    found = create_savepoint(checkpoint, tmp_path / "kept")
    assert (len(copies), deleted in found.manifest.files) == ((1, False) if is_harmless else (2, True))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [found.path.name]
    assert (deleted in caplog.text) is not is_harmless


def test_a_savepoint_ends_with_an_error_if_spark_always_deletes_files_before_they_are_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(name: str) -> None:
        if name == "offsets/2":
            (checkpoint / name).unlink(missing_ok=True)

    while_copying(monkeypatch, delete)
    with pytest.raises(RetriableError, match="before they could be copied"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


# -- RocksDB's own files, which Spark deletes before the versions that refer to them ------------------------------------

_ROCKSDB = "state/2/0"
_SST, _LOG = f"{_ROCKSDB}/SSTs/000007-0a1b.sst", f"{_ROCKSDB}/logs/000008-0a1b.log"


def add_snapshot(checkpoint: Path, version: int, *, sst: str = _SST, log: str | None = _LOG, name: str = "") -> Path:
    """Add a snapshot as Spark does: first RocksDB's own files, and then the zip file that refers to them."""
    facts: dict[str, Any] = {
        "sstFiles": [{"localFileName": "000007.sst", "dfsSstFileName": Path(sst).name, "sizeBytes": 4}],
        "numKeys": 1,
    }
    put(checkpoint / sst, "rows")
    if log is not None:  # Spark leaves out an empty list of these files
        put(checkpoint / log, "rows")
        facts["logFiles"] = [{"localFileName": "000008.log", "dfsLogFileName": Path(log).name, "sizeBytes": 4}]
    found = checkpoint / _ROCKSDB / (name or f"{version}.zip")
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as stream:
        stream.writestr("OPTIONS-000005", "x")
        stream.writestr("metadata", f"v1\n{json.dumps(facts)}")
    return found


@pytest.mark.parametrize("lost", [_SST, _LOG])
@pytest.mark.parametrize("when", ["before the list", "after the list"])
@pytest.mark.parametrize("name", ["4.zip", "4_0a-1b.zip"])
def test_a_savepoint_begins_again_if_spark_deletes_the_files_of_the_copied_rocksdb_snapshot(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, when: str, name: str
) -> None:
    """Spark deletes these files first, so the snapshot that refers to them may still have been copied."""
    snapshot = add_snapshot(checkpoint, 4, name=name)
    if when == "before the list":
        (checkpoint / lost).unlink()

    def query_goes_on(file: str) -> None:
        if file == "offsets/2" and snapshot.exists():  # the snapshot is copied, but its files are not
            (checkpoint / lost).unlink(missing_ok=True)
            snapshot.unlink()
            put(checkpoint / "commits/4", "v1\n{}")
            add_snapshot(checkpoint, 5, sst=f"{_ROCKSDB}/SSTs/000009-2c.sst", log=None)

    while_copying(monkeypatch, query_goes_on)
    found = create_savepoint(checkpoint, tmp_path / "kept")
    assert found.manifest.batch_id == 4
    assert {f"{_ROCKSDB}/5.zip", f"{_ROCKSDB}/SSTs/000009-2c.sst"} <= found.manifest.files.keys()


def test_a_savepoint_does_not_need_the_rocksdb_files_of_older_snapshots(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"{_ROCKSDB}/SSTs/000001-9f.sst"
    add_snapshot(checkpoint, 2, sst=old)
    add_snapshot(checkpoint, 4)

    def delete(file: str) -> None:
        if file == "offsets/2":
            (checkpoint / old).unlink()

    while_copying(monkeypatch, delete)
    found = create_savepoint(checkpoint, tmp_path / "kept")
    assert found.manifest.batch_id == 3
    assert {f"{_ROCKSDB}/2.zip", f"{_ROCKSDB}/4.zip", _SST, _LOG} <= found.manifest.files.keys()
    assert old not in found.manifest.files


def test_a_checkpoint_that_lacks_a_rocksdb_file_gives_no_savepoint(checkpoint: Path, tmp_path: Path) -> None:
    add_snapshot(checkpoint, 4)
    (checkpoint / _SST).unlink()
    with pytest.raises(RetriableError, match=f"before they could be copied, most recently {_SST}.*is damaged"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("harm", ["torn", "no metadata", "v2", "not JSON", "no files", "encrypted"])
def test_a_rocksdb_snapshot_whose_files_are_unknown_gives_no_savepoint(
    checkpoint: Path, tmp_path: Path, harm: str
) -> None:
    snapshot = add_snapshot(checkpoint, 4)
    if harm == "torn":
        snapshot.write_bytes(snapshot.read_bytes()[:-30])
    elif harm == "encrypted":  # one bit of the entry's flags says so
        data = bytearray(snapshot.read_bytes())
        for head, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            data[data.rindex(head) + flags] |= 1
        snapshot.write_bytes(data)
    else:
        texts = {"v2": 'v2\n{"sstFiles":[]}', "not JSON": "v1\nx", "no files": "v1\n{}"}
        with zipfile.ZipFile(snapshot, "w") as stream:
            stream.writestr("metadata" if harm in texts else "x", texts.get(harm, ""))
    with pytest.raises(ConfigurationError, match=rf"{_ROCKSDB}/4\.zip.*No savepoint was taken"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def without(savepoint: Savepoint, *names: str) -> Savepoint:
    """Make the savepoint one that an earlier version took while Spark deleted these files."""
    files = {name: copied for name, copied in savepoint.manifest.files.items() if name not in names}
    for name in names:
        (savepoint.path / TREE / name).unlink()
    (savepoint.path / NAME).write_bytes(seal(structs.replace(savepoint.manifest, files=files)))
    return open_savepoint(savepoint.path)


@pytest.mark.parametrize("lost", [_SST, _LOG])
@pytest.mark.parametrize("name", ["4.zip", "5_0a-1b.zip"])
def test_an_older_savepoint_that_lacks_a_rocksdb_file_is_neither_listed_as_good_nor_restored(
    checkpoint: Path, tmp_path: Path, lost: str, name: str
) -> None:
    """An earlier version did not check these references when it took a savepoint. The checksums of all other files match."""
    kept = tmp_path / "kept"
    good = create_savepoint(checkpoint, kept)
    put(checkpoint / "commits/4", "v1\n{}")
    add_snapshot(checkpoint, 4, name=name)
    lacking = without(create_savepoint(checkpoint, kept), lost)
    with pytest.raises(ConfigurationError, match=f"is incomplete.*{lost}.*No query can continue from it") as refused:
        restore_savepoint(lacking.path, tmp_path / "new")
    assert str(lacking.path) in str(refused.value) and not (tmp_path / "new").exists()
    listed = command("savepoint", "list", str(kept), "--thorough", "--json")
    assert (listed.status, [one["batch_id"] for one in listed.facts["savepoints"]]) == (1, [3])
    assert listed.facts["problems"] == [str(refused.value)]
    assert command("savepoint", "list", str(kept)).status == 0  # it reads only the manifests
    assert restore_savepoint(kept, tmp_path / "new").savepoint.path == good.path


def test_an_older_savepoint_may_lack_the_rocksdb_files_of_snapshots_that_no_restart_reads(
    checkpoint: Path, tmp_path: Path
) -> None:
    old = f"{_ROCKSDB}/SSTs/000001-9f.sst"
    add_snapshot(checkpoint, 2, sst=old)
    add_snapshot(checkpoint, 4)
    found = without(create_savepoint(checkpoint, tmp_path / "kept"), old)
    assert restore_savepoint(found.path, tmp_path / "new").savepoint.path == found.path
    assert command("savepoint", "list", str(tmp_path / "kept"), "--thorough").status == 0


def test_an_older_savepoint_whose_rocksdb_files_are_unknown_is_not_restored(checkpoint: Path, tmp_path: Path) -> None:
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    snapshot = taken.path / TREE / _ROCKSDB / "4.zip"
    snapshot.parent.mkdir(parents=True)
    with zipfile.ZipFile(snapshot, "w") as stream:
        stream.writestr("metadata", "v2\n{}")
    files = {**taken.manifest.files, f"{_ROCKSDB}/4.zip": durable.measure(snapshot)}
    (taken.path / NAME).write_bytes(seal(structs.replace(taken.manifest, files=files)))
    with pytest.raises(ConfigurationError, match=rf"cannot be checked.*{_ROCKSDB}/4\.zip does not say.*might lack"):
        restore_savepoint(taken.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert command("savepoint", "list", str(tmp_path / "kept"), "--thorough").status == 1


# -- directories that a list of the checkpoint's files would lack -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_dangling"),
    [
        ("state", False),
        ("sources", False),
        ("state/0/0", False),
        ("offsets", False),
        ("twopc", False),
        ("sources", True),
    ],
)
def test_a_checkpoint_with_a_link_to_a_directory_gives_no_savepoint(
    checkpoint: Path, tmp_path: Path, name: str, *, is_dangling: bool
) -> None:
    (checkpoint / name).rename(tmp_path / "elsewhere")
    (checkpoint / name).symlink_to(tmp_path / ("nowhere" if is_dangling else "elsewhere"))
    with pytest.raises(ConfigurationError, match=rf"checkpoint/{name} is a symbolic link.*No savepoint was taken"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_links_that_hide_nothing_are_allowed(checkpoint: Path, tmp_path: Path) -> None:
    """The checkpoint itself may be a link, a savepoint needs no staged rows, and a link to a file is copied as a file."""
    (checkpoint / "twopc/staging").rename(tmp_path / "staging")
    (checkpoint / "twopc/staging").symlink_to(tmp_path / "staging")
    (checkpoint / "state/0/0/4.delta").rename(tmp_path / "4.delta")
    (checkpoint / "state/0/0/4.delta").symlink_to(tmp_path / "4.delta")
    (tmp_path / "link").symlink_to(checkpoint)
    found = create_savepoint(tmp_path / "link", tmp_path / "kept")
    assert {"state/0/0/4.delta", "sources/0/0"} <= found.manifest.files.keys()
    assert not any(name.startswith("twopc/staging") for name in found.manifest.files)
    assert not (found.path / TREE / "state/0/0/4.delta").is_symlink()


def test_a_directory_that_this_user_may_not_read_gives_no_savepoint(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refused(path: str | Path | int) -> Any:
        if str(path) == str(checkpoint / "state/1/0"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigurationError, match=r"Permission denied.*state/1/0.*No savepoint was taken"):
        create_savepoint(checkpoint, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_the_next_savepoint_removes_only_the_copies_of_dead_processes(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with durable.whole_directory(kept / "savepoint-1") as unfinished:
        durable.write(unfinished / "file", b"x")
        create_savepoint(checkpoint, kept)
        assert (unfinished / "file").exists()
    dead = kept / ".savepoint-2.0.tmp"
    shutil.copytree(kept / "savepoint-1", dead)
    (dead / ".filling").touch()
    put(checkpoint / "commits/4", "v1\n{}")
    create_savepoint(checkpoint, kept)
    assert sorted(path.name.partition("-")[0] for path in kept.iterdir()) == ["savepoint"] * 3
    assert not [path for path in kept.rglob("*") if path.name.startswith(".")]


def test_a_directory_that_another_host_removed_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Some network file systems accept locks, but do not share them between hosts."""

    def fill() -> None:
        with durable.whole_directory(tmp_path / "savepoint-1") as unfinished:
            durable.write(unfinished / "early", b"x")
            shutil.rmtree(unfinished)
            durable.write(unfinished / "late", b"x")

    with pytest.raises(FileNotFoundError):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_altered_while_it_is_restored_is_noticed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = create_savepoint(checkpoint, tmp_path / "kept")

    def copy(source: Path, target: Path) -> durable.Copied:
        source.write_bytes(b"altered")
        return durable.copy(source, target)

    monkeypatch.setattr(restore_module, "copy", copy)
    with pytest.raises(ConfigurationError, match="was altered or is torn"):
        restore_savepoint(taken.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_savepoint_is_restored_elsewhere_as_a_separate_query(checkpoint: Path, tmp_path: Path) -> None:
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    shutil.rmtree(checkpoint)
    moved = tmp_path / "elsewhere" / "s"
    moved.parent.mkdir()
    taken.path.rename(moved)
    done = restore_savepoint(moved, tmp_path / "new")
    assert json.loads((tmp_path / "new/metadata").read_text()) == {"id": done.query_id}
    assert done.query_id != "old"
    assert done.settings == f"override=[AdoptQuery({done.query_id!r}), EndQuery('old')]"
    assert (tmp_path / "new/commits/3").read_text() == "v1\n{}"
    assert [path.name for path in (tmp_path / "new/twopc").iterdir()] == ["restored.json"]
    assert not (tmp_path / "new/offsets/4").exists()


def test_an_existing_checkpoint_is_not_overwritten(checkpoint: Path, tmp_path: Path) -> None:
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="is not empty"):
        restore_savepoint(taken.path, checkpoint)


@pytest.mark.parametrize("harm", ["altered", "gone", "torn manifest", "altered manifest", "newer"])
def test_a_damaged_savepoint_is_reported_and_the_previous_one_is_used(
    checkpoint: Path, tmp_path: Path, harm: str
) -> None:
    kept = tmp_path / "kept"
    good = create_savepoint(checkpoint, kept)
    put(checkpoint / "commits/4", "v1\n{}")
    newer = create_savepoint(checkpoint, kept)
    file = newer.path / "checkpoint/state/0/0/4.delta"
    if harm == "altered":
        file.write_text("delta x")
    elif harm == "gone":
        file.unlink()
    elif harm == "torn manifest":
        (newer.path / "manifest.json").write_bytes((newer.path / "manifest.json").read_bytes()[:-1])
    elif harm == "altered manifest":
        text = (newer.path / "manifest.json").read_text()
        (newer.path / "manifest.json").write_text(text.replace('"batch_id":4', '"batch_id":5'))
    else:
        (newer.path / "manifest.json").write_text("twopc-savepoint/2 x\n")
    with pytest.raises(ConfigurationError):
        restore_savepoint(newer.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert newest_good(kept).path == good.path
    assert restore_savepoint(kept, tmp_path / "new").savepoint.path == good.path
    listed = command("savepoint", "list", str(kept), "--thorough", "--json")
    assert (listed.status, [one["batch_id"] for one in listed.facts["savepoints"]]) == (1, [3])
    assert str(newer.path) in listed.facts["problems"][0]


@pytest.mark.parametrize(
    "name", ["../../../evil", "/evil", "offsets/../../evil", "./evil", "offsets//evil", "", "..\\evil", "e\0"]
)
def test_a_forged_savepoint_writes_nothing_outside_the_new_checkpoint(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    """Whoever can write the directory can also compute the checksums."""
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    copied = next(iter(taken.manifest.files.values()))
    forged = structs.replace(taken.manifest, files={**taken.manifest.files, name: copied})
    (taken.path / "manifest.json").write_bytes(seal(forged))
    before = sorted(tmp_path.rglob("*"))
    for act in (lambda: restore_savepoint(taken.path, tmp_path / "a/b/new"), lambda: open_savepoint(taken.path)):
        with pytest.raises(ConfigurationError, match=r"which is not in the savepoint.*Nothing was read or written"):
            act()
    assert sorted(tmp_path.rglob("*")) == before
    assert command("savepoint", "list", str(tmp_path / "kept"), "--json").facts["savepoints"] == []


#: A program that takes or restores a savepoint, is killed at each step, and starts over.
_KILLED = """
import sys
from pathlib import Path
from twopc.integration.operate import create_savepoint, restore_savepoint
from tests.killed_steps import kill_at_each_step

act = {"create": create_savepoint, "restore": restore_savepoint}[sys.argv[1]]
source, root = Path(sys.argv[2]), Path(sys.argv[3])
root.mkdir()
for step in kill_at_each_step(("fsync", "mkdir", "rename"), lambda name: act(source, root / name)):
    act(source, root / (f"at-{step}" if act is create_savepoint else f"again-{step}"))
    print(step, flush=True)
"""


@pytest.mark.parametrize("act", ["create", "restore"])
def test_a_process_killed_at_any_step_leaves_a_complete_savepoint_or_none(
    checkpoint: Path, tmp_path: Path, act: str
) -> None:
    source = checkpoint if act == "create" else create_savepoint(checkpoint, tmp_path / "kept").path
    root = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, act, source, root], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = len(done.stdout.split())
    assert steps > 20
    for step in range(1, steps + 1):
        target = root / f"at-{step}"
        is_last = step == steps  # only the last step makes the new name durable
        if act == "create":  # another savepoint was taken afterwards
            found, problems = savepoints_in(target)
            assert (len(found), problems) == (1 + is_last, [])
            for one in found:
                check(one)
            # Only a directory without any file may stay, or the complete copy of a process that died just before the rename.
            if step != steps - 1:
                assert not [path for path in target.glob(".*.tmp/*") if path.name != ".filling.new"]
        else:
            assert target.exists() == is_last
            assert (root / f"again-{step}/twopc/restored.json").exists()


def test_a_query_takes_savepoints_between_its_batches(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    written = []

    def function(_: Any, batch: int) -> None:
        written.append(batch)
        put(checkpoint / "commits" / str(batch), "v1\n{}")

    each = saving(function, checkpoint, directory=str(kept), every=2, num_retained=None)
    for batch in range(4, 9):
        add_batch(checkpoint, batch, is_finished=False)
        each(batch)
    assert written == [4, 5, 6, 7, 8]
    assert [one.manifest.batch_id for one in savepoints_in(kept)[0]] == [7, 5]


def test_a_query_stops_with_a_savepoint_when_asked_to(checkpoint: Path, tmp_path: Path) -> None:
    written = []
    each = saving(lambda _, batch: written.append(batch), checkpoint)
    put(checkpoint / "commits/4", "v1\n{}")

    def go_on() -> bool:
        """Act as the query while the command waits."""
        each(4)  # the first batch of a run may be a replay: no request is served before it
        assert not (tmp_path / "kept").exists()
        with pytest.raises(StoppedWithSavepointError, match="stopped with savepoint"):
            each(5)
        return True

    found = request_savepoint(checkpoint, tmp_path / "kept", stop=True, timeout_s=10, is_over=go_on)
    assert found is not None and found.manifest.batch_id == 4
    assert written == [4]
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))


def test_a_savepoint_request_without_a_response_is_withdrawn(checkpoint: Path, tmp_path: Path) -> None:
    done = command("savepoint", "stop-with-savepoint", str(checkpoint), str(tmp_path / "kept"), "--wait", "0")
    assert done.status == 2 and "did not respond" in done.error
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))


def test_a_request_withdrawn_while_it_is_served_does_not_stop_the_query_and_leaves_no_files_behind(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    each = saving(lambda _, batch: written.append(batch), checkpoint)
    put(checkpoint / "commits/4", "v1\n{}")
    take = _Run._take

    def take_for_long(query: _Run, directory: Path) -> Savepoint:
        (request,) = (checkpoint / "twopc").glob("savepoint-request-*")
        request.unlink()  # the command gives up
        return take(query, directory)

    def go_on() -> bool:
        """Act as the query while the command waits."""
        each(4)
        each(5)
        return True

    monkeypatch.setattr(_Run, "_take", take_for_long)
    assert request_savepoint(checkpoint, tmp_path / "kept", stop=True, timeout_s=10, is_over=go_on) is None
    assert written == [4, 5]
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))


def test_a_requester_that_has_received_its_response_waits_for_the_querys_check(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query answers, and is slow to check whether the requester still waits. Then it must stop, as the response says."""
    each = saving(lambda *_: None, checkpoint)
    put(checkpoint / "commits/4", "v1\n{}")
    query, read, take, has_read = threading.current_thread(), LocalFiles.read, LocalFiles.take, threading.Event()

    def slowly(files: LocalFiles, name: str) -> bool:
        if threading.current_thread() is query:
            assert has_read.wait(10)
            wait((requester,), timeout=1)  # a requester that does not wait for the query has finished by then
        return take(files, name)

    def observed(files: LocalFiles, name: str) -> bytes | None:
        has_answered = bool(list((checkpoint / "twopc").glob("*answer*")))
        found = read(files, name)
        if threading.current_thread() is not query and has_answered:
            has_read.set()
        return found

    monkeypatch.setattr(LocalFiles, "take", slowly)
    monkeypatch.setattr(LocalFiles, "read", observed)
    with ThreadPoolExecutor(1) as pool:
        requester = pool.submit(request_savepoint, checkpoint, tmp_path / "kept", stop=True, timeout_s=10)
        wait_until(lambda: list((checkpoint / "twopc").glob("savepoint-request-*")) != [], 10)
        each(4)
        with pytest.raises(StoppedWithSavepointError):
            each(5)
        assert requester.result() is not None
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))


def test_the_query_stops_only_if_the_requester_has_not_given_up(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends between the query's response and the query's check. Both must draw the same conclusion."""
    each = saving(lambda *_: None, checkpoint)
    put(checkpoint / "commits/4", "v1\n{}")
    answered, put_if_absent = threading.Event(), LocalFiles.put_if_absent

    def put_and_pause(files: LocalFiles, name: str, data: bytes) -> bool:
        is_new = put_if_absent(files, name, data)
        if name.startswith("savepoint-request-answer-"):
            answered.set()
            wait((requester,), timeout=10)  # the requester gives up now
        return is_new

    monkeypatch.setattr(LocalFiles, "put_if_absent", put_and_pause)
    with ThreadPoolExecutor(1) as pool:
        requester = pool.submit(
            request_savepoint, checkpoint, tmp_path / "kept", stop=True, timeout_s=30, is_over=answered.is_set
        )
        wait_until(lambda: list((checkpoint / "twopc").glob("savepoint-request-*")) != [], 10)
        each(4)
        each(5)  # the query continues
        assert requester.result() is None
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))


def test_a_response_that_arrives_just_as_the_wait_ends_counts(checkpoint: Path, tmp_path: Path) -> None:
    """The query has stopped, so the command must not say that it continues."""
    each = saving(lambda *_: None, checkpoint)
    put(checkpoint / "commits/4", "v1\n{}")

    def go_on() -> bool:
        each(4)
        with pytest.raises(StoppedWithSavepointError):
            each(5)
        return not wait_until(lambda: time.monotonic() > deadline, 10)

    deadline = time.monotonic() + 1
    assert request_savepoint(checkpoint, tmp_path / "kept", stop=True, timeout_s=1, is_over=go_on) is not None


def test_a_savepoint_whose_last_sync_fails_does_not_count_as_existing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"

    def sync(path: Path) -> None:
        if Path(path) == kept:
            raise OSError("the disk is gone")

    monkeypatch.setattr(durable, "sync", sync)
    with pytest.raises(ConfigurationError, match=r"the disk is gone\. No partial copy is left"):
        create_savepoint(checkpoint, kept)
    assert list(kept.iterdir()) == []


def test_the_commands_take_and_restore_savepoints(checkpoint: Path, tmp_path: Path) -> None:
    taken = command("savepoint", "create", str(checkpoint), str(tmp_path / "kept"), "--json")
    assert taken.status == 0
    restored = command("savepoint", "restore", taken.facts["path"], str(tmp_path / "new"))
    assert restored.status == 0
    assert (
        "EndQuery('old')]" in restored.out and "To see which batches these are, add --bootstrap-servers" in restored.out
    )
    assert command("savepoint", "restore", str(tmp_path / "none"), str(tmp_path / "x")).status == 2
    assert command("savepoint", "create", str(tmp_path / "none"), str(tmp_path / "x")).status == 2


@pytest.mark.parametrize(
    ("log", "sinks", "checked"),
    [
        ("l", ["kafka"], None),
        ("registers", ["redis"], "batch 3 is visible in sink 'redis', because"),
        ("l", ["kafka", "redis"], "batch 3 is visible in sink 'redis', but you can skip this check if the new query"),
        ("registers", ["kafka", "redis"], "batch 3 is visible in sinks 'kafka' and 'redis', because"),
    ],
)
def test_restore_says_what_to_check_before_the_old_query_is_ended(
    checkpoint: Path, tmp_path: Path, log: str, sinks: list[str], checked: str | None
) -> None:
    """The decisions that are in the old checkpoint, or in the ledger of a sink that is left out, are lost to the new query."""
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    facts = {sink: {"ledger": "l", "cluster": "c"} if sink == "kafka" else {"table": sink} for sink in sinks}
    (taken.path / "manifest.json").write_bytes(seal(structs.replace(taken.manifest, log=log, sinks=facts)))
    shown = command("savepoint", "restore", str(taken.path), str(tmp_path / "new"))
    assert shown.status == 0, shown.error
    to_check = command("savepoint", "restore", str(taken.path), str(tmp_path / "newer"), "--json").facts["to_check"]
    if checked is None:
        assert "Before you" not in shown.out and to_check is None
        return
    assert shown.out.index(checked) < shown.out.index("EndQuery('old')")
    assert f"`twopc status {checkpoint} --sinks MODULE:NAME`" in shown.out and "decided and published" in shown.out
    assert to_check in shown.out


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_batch_that_is_only_decided_is_lost_unless_it_is_published_before_the_old_query_is_ended(
    cluster: Cluster, tmp_path: Path, *, is_checked: bool
) -> None:
    """This is why `restore` says what to check. The old query's function swallowed the error of batch 1."""
    query = cluster.start()
    query.run(0)
    die_at(cluster, query, "driver.decided", 1)
    if is_checked:
        cluster.start().run(2)
    resumed = 3 if is_checked else 2
    overrides = Overrides(adopt_query_id=OTHER, end_query_ids=frozenset({QUERY_ID}))
    new = cluster.start(settings=Settings(overrides=overrides), files=LocalFiles(tmp_path / "new"))
    new.run(resumed, query_id=OTHER)
    assert cluster.store.visible() == (all_rows(0, 1, 2, 3) if is_checked else all_rows(0, 2))


def test_a_user_without_permission_receives_a_one_line_error(checkpoint: Path, tmp_path: Path) -> None:
    put(tmp_path / "file", "")
    done = command("savepoint", "create", str(checkpoint), str(tmp_path / "file"))
    assert done.status == 2 and done.error.count("\n") == 1
    assert os.listdir(tmp_path / "checkpoint")  # noqa: PTH208 - the checkpoint still has its files


# -- batches that Spark has finished, but no sink has received ---------------------------------------------------------


def decide(cluster: Cluster, finished: int, *batches: int) -> Path:
    """Decide these batches in the registers of a checkpoint whose query has finished all batches up to ``finished``."""
    found = Path(cluster.files.location).parent
    put(found / "metadata", f'{{"id":"{QUERY_ID}"}}')
    cluster.start().run(*batches)
    for batch in range(finished + 1):
        add_batch(found, batch)
    return found


def test_a_savepoint_of_a_query_that_ignores_errors_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """The function ignored the errors of batches 3 to 5. A restored query would begin with batch 6."""
    source = decide(cluster, 5, 0, 1, 2)
    with pytest.raises(ConfigurationError, match="batches 3 to 5 are not in") as refused:
        create_savepoint(source, tmp_path / "kept")
    assert "No savepoint was taken" in str(refused.value)
    assert not list((tmp_path / "kept").glob("*"))
    cluster.start(settings=Settings(overrides=Overrides(resume_at=ResumeAt(6)))).run(6)  # the user accepts the gap
    add_batch(source, 6)
    assert create_savepoint(source, tmp_path / "kept").manifest.batch_id == 6


def test_a_savepoint_includes_a_batch_decided_and_finished_while_the_ledger_is_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def ledger(_: KafkaSink) -> tuple[str, LogView, int]:
        read.append(3 + len(read))  # a batch is decided and finished before each further look
        put(checkpoint / "commits" / str(3 + len(read)), "v1\n{}")
        return "l", LogView(begin=Begin(query_id="old", first_batch=read[-1] + 1, prior_offsets=())), 9

    monkeypatch.setattr(savepoint_module, "_ledger", ledger)
    found = create_savepoint(checkpoint, tmp_path / "kept", sinks=[_SINK])
    assert (found.manifest.batch_id, read) == (4, [3, 4])
    behind = LogView(begin=Begin(query_id="old", first_batch=4, prior_offsets=()))
    monkeypatch.setattr(savepoint_module, "_ledger", lambda _: ("l", behind, 9))
    with pytest.raises(ConfigurationError, match="batches 4 to 5 are not in l"):
        create_savepoint(checkpoint, tmp_path / "kept", sinks=[_SINK])


@pytest.mark.parametrize(("decided", "missing"), [(1, "batches 2 to 3 are"), (2, "batch 3 is")])
def test_a_restore_is_refused_if_batches_of_the_savepoint_are_missing_from_a_sink(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: int, missing: str
) -> None:
    view = LogView(begin=Begin(query_id="old", first_batch=decided + 1, prior_offsets=()))
    state = SinkState(sink="s", ledger="l", query_id="old", history=History(view, {}, {}, is_complete=True))
    monkeypatch.setattr(restore_module, "observe", lambda _: state)
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    with pytest.raises(ConfigurationError, match=f"{missing} not in") as refused:
        restore_savepoint(taken.path, tmp_path / "new", sinks=[_SINK])
    assert f"Use a savepoint of batch {decided} or earlier" in str(refused.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_restore_says_how_to_do_without_decisions_that_it_cannot_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_elsewhere: bool
) -> None:
    state = SinkState(sink="s", ledger="l", problem="the decisions are unknown", is_elsewhere=is_elsewhere)
    monkeypatch.setattr(restore_module, "observe", lambda _: state)
    taken = create_savepoint(checkpoint, tmp_path / "kept")
    with pytest.raises(ConfigurationError, match=r"the decisions are unknown.*Nothing was restored") as refused:
        restore_savepoint(taken.path, tmp_path / "new", sinks=[_SINK])
    assert ("omit --bootstrap-servers" in str(refused.value)) is is_elsewhere
    assert not (tmp_path / "new").exists()


def test_a_query_takes_no_savepoint_after_a_batch_that_it_has_not_written(checkpoint: Path, tmp_path: Path) -> None:
    """Its function ignores the toolkit's errors, so Spark moves past the batch."""

    def write(_: object, batch: int) -> None:
        if batch == 5:
            raise RetriableError("no broker responds")

    each = saving(write, checkpoint)
    each(4)
    with pytest.raises(RetriableError, match="no broker responds"):
        each(5)
    for batch in (4, 5):
        add_batch(checkpoint, batch)

    def go_on() -> bool:
        each(6)
        return True

    with pytest.raises(ConfigurationError, match="the savepoint was not taken: batch 5 is not in the output"):
        request_savepoint(checkpoint, tmp_path / "kept", stop=True, timeout_s=10, is_over=go_on)
    assert not (tmp_path / "kept").exists()
