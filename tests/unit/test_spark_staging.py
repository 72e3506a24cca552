"""The place where staged rows are kept, and for how long."""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import fs

from twopc.errors import ConfigurationError, FatalError, UnavailableError
from twopc.integration.spark import staging as staging_module
from twopc.integration.spark.options import Options
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.integration.spark.staging_location import below, open_location
from twopc.integration.spark.views import View

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = pa.record_batch({"0": [1]})
VIEWS = {"s": View(columns=(("value", 0),))}


def staged(location: str, driver_epoch: int, batch_id: int) -> str:
    writer = StagedFileWriter(location, driver_epoch, batch_id, VIEWS)
    writer.write(ROWS)
    name = writer.close()
    assert name is not None
    return name


def test_release_deletes_proven_staged_files_and_keeps_those_of_a_newer_driver(tmp_path: Path) -> None:
    written = {(i, b): staged(str(tmp_path), i, b) for i in (3, 4, 5) for b in (6, 7, 8)}
    staging = Staging(str(tmp_path))
    assert all(staging.has(name) for name in written.values())
    staging.release(4, 7)
    left = {place for place, name in written.items() if staging.has(name)}
    assert left == {(4, 8), (5, 6), (5, 7), (5, 8)}


def test_before_an_attempt_only_decided_staged_files_and_those_of_a_newer_driver_are_kept(tmp_path: Path) -> None:
    written = {(i, b, n): staged(str(tmp_path), i, b) for i in (2, 3, 4, 5) for b in (6, 7) for n in (0, 1)}
    decided = {written[3, 6, 0], written[4, 7, 1]}
    staging = Staging(str(tmp_path))
    staging.discard(4, decided)
    newer = {name for place, name in written.items() if place[0] == 5}
    assert {name for name in written.values() if staging.has(name)} == decided | newer
    assert {path.name for path in tmp_path.iterdir()} == {"3", "4", "5"}
    staging.discard(4, ())
    assert {name for name in written.values() if staging.has(name)} == newer


def test_files_of_other_programs_in_the_staging_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "readme.txt").touch()
    staged(str(tmp_path), 0, 0)
    Staging(str(tmp_path)).discard(1, ())
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "readme.txt"}


def test_staged_files_that_cannot_be_deleted_before_an_attempt_do_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    staging = Staging(str(tmp_path))

    class ReadOnly:
        def get_file_info(self, _: object) -> list[fs.FileInfo]:
            raise OSError("read-only file system")

    monkeypatch.setattr(staging, "_filesystem", ReadOnly())
    staging.discard(4, ())
    assert f"staged rows of failed attempts in {tmp_path} could not be deleted" in caplog.text


@pytest.mark.parametrize("tidy", [lambda staging: staging.release(4, 7), lambda staging: staging.discard(4, ())])
@pytest.mark.parametrize("refused", ["0", "1", "2"])
def test_a_directory_that_cannot_be_deleted_keeps_no_other(
    refused: str,
    tidy: Callable[[Staging], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may belong to another user, who has run the query before. Then each later batch would stay, too."""
    for epoch in range(3):
        staged(str(tmp_path), epoch, 7)
    staging = Staging(str(tmp_path))
    delete = staging._delete

    def refuse(directory: str, *kept: Any) -> None:
        if directory == refused:
            raise PermissionError(f"{directory} belongs to another user")
        delete(directory, *kept)

    monkeypatch.setattr(staging, "_delete", refuse)
    tidy(staging)
    assert [path.name for path in tmp_path.iterdir()] == [refused]
    [record] = caplog.records
    assert "could not be deleted" in record.getMessage() and "belongs to another user" in record.getMessage()


def test_a_proven_batch_leaves_no_directory_of_an_older_driver(tmp_path: Path) -> None:
    """Otherwise, each restart would add a directory, and each batch would list all of them."""
    for epoch in range(4):
        staged(str(tmp_path), epoch, 7)
    Staging(str(tmp_path)).release(3, 7)
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_staged_file_is_durable_together_with_every_directory_created_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    name = staged(str(tmp_path / "staging"), 3, 7)
    staged_file = tmp_path / "staging" / name
    assert synced == [staged_file, *list(staged_file.parents)[:4]]
    assert synced[-1] == tmp_path


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_staging_works_where_a_directory_cannot_be_synced(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_syncs(monkeypatch, number, Path.is_dir)
    assert Staging(str(tmp_path)).has(staged(str(tmp_path), 3, 7))


@pytest.mark.parametrize(
    ("number", "refused"), [(errno.EINVAL, Path.is_file), (errno.EIO, Path.is_file), (errno.EIO, Path.is_dir)]
)
def test_a_staged_file_that_is_not_durable_fails_the_attempt(
    number: int, refused: Callable[[Path], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_syncs(monkeypatch, number, refused)
    with pytest.raises(
        UnavailableError, match=rf"^staging: .*{tmp_path}/3/7/.*could not be written.*{os.strerror(number)}"
    ):
        staged(str(tmp_path), 3, 7)


def refuse_syncs(monkeypatch: pytest.MonkeyPatch, number: int, refused: Callable[[Path], bool]) -> None:
    def fsync(descriptor: int) -> None:
        if refused(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_file_system_that_refuses_staged_rows_causes_a_retriable_error_with_their_path(tmp_path: Path) -> None:
    (tmp_path / "staging").touch()  # in place of the directory
    with pytest.raises(UnavailableError, match=rf"^staging: .*{tmp_path}/staging/3/7/.*could not be written"):
        staged(str(tmp_path / "staging"), 3, 7)


@pytest.mark.parametrize(
    "ask",
    [
        lambda staging: staging.has("3/6/x.arrow"),
        lambda staging: list(staging.read("3/6/x.arrow", "s")),
        lambda staging: staging.require_visible(["3/6/x.arrow"]),
    ],
)
def test_a_file_system_that_does_not_respond_causes_a_retriable_error_with_the_path(
    ask: Callable[[Staging], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def get_file_info(self, _: object) -> list[fs.FileInfo]:
            raise OSError("no route to host")

        def open_input_file(self, _: str) -> pa.NativeFile:
            raise OSError("no route to host")

    staging = Staging(str(tmp_path))
    monkeypatch.setattr(staging, "_filesystem", Silent())
    with pytest.raises(UnavailableError, match=rf"^staging: .*{tmp_path}.*could not be read.*no route to host"):
        ask(staging)


def test_a_release_of_a_location_without_staged_files_does_nothing(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "absent"))
    staging.release(0, 0)
    assert not staging.has("0/0/x.arrow")


def test_the_error_for_a_deleted_staged_file_says_what_may_have_deleted_it(tmp_path: Path) -> None:
    """A newer driver may do so while a driver that has found the staged file is paused."""
    name = staged(str(tmp_path), 3, 6)
    staging = Staging(str(tmp_path))
    assert staging.has(name)
    Staging(str(tmp_path)).release(4, 6)
    with pytest.raises(FatalError, match=f"{name} are missing.*a newer driver has proven the batch.*restart the query"):
        next(staging.read(name, "s"))


def test_a_staged_file_deleted_during_the_search_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(str(tmp_path))
    info = fs.FileInfo(f"{tmp_path}/3/6/x.arrow", fs.FileType.File)
    monkeypatch.setattr(staging, "_filesystem", Deleted(info))
    assert not staging.has("3/6/x.arrow")


class Deleted:
    """A file system whose only file is deleted once a reader has found it."""

    def __init__(self, info: fs.FileInfo) -> None:
        self._info = info

    def get_file_info(self, path: str) -> fs.FileInfo:
        assert path == self._info.path
        return self._info

    def open_input_file(self, path: str) -> None:
        raise FileNotFoundError(path)


def test_slices_invisible_to_the_driver_cause_an_error_that_identifies_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers write to a separate directory."""
    monkeypatch.setattr(staging_module, "_STALE_S", 0)
    own, other = tmp_path / "driver", tmp_path / "worker"
    seen = staged(str(own), 0, 0)
    Staging(str(own)).require_visible([seen])
    unseen = staged(str(other), 0, 0)
    with pytest.raises(ConfigurationError, match=rf"cannot see {own}/{unseen}.*Set staging to a path that"):
        Staging(str(own)).require_visible([seen, unseen])


def test_a_directory_that_a_shared_file_system_shows_late_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the driver has asked for a directory that does not exist yet, NFS may hide it for a while."""
    hidden, name = tmp_path / "hidden", staged(str(tmp_path / "shown"), 0, 0)
    (tmp_path / "shown").rename(hidden)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            hidden.rename(tmp_path / "shown")

    monkeypatch.setattr("time.sleep", pause)
    Staging(str(tmp_path / "shown")).require_visible([name])
    assert len(pauses) == 3


def test_the_directories_of_the_next_attempt_are_not_deleted_before_it(tmp_path: Path) -> None:
    """NFS could hide them if other hosts created them again."""
    name = staged(str(tmp_path), 4, 7)
    Staging(str(tmp_path)).discard(4, ())
    assert not (tmp_path / name).exists()
    assert (tmp_path / "4" / "7").is_dir()


def test_slices_that_the_driver_sees_require_only_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [staged(str(tmp_path), 0, 0) for _ in range(5)]
    staging = Staging(str(tmp_path))
    monkeypatch.setattr(
        staging, "has", lambda _: pytest.fail("the driver should not make one call for each staged file")
    )
    staging.require_visible(names)


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file://{}/"])
def test_a_location_may_be_written_in_any_notation(form: str, tmp_path: Path) -> None:
    name = staged(form.format(tmp_path), 0, 0)
    assert (tmp_path / name).is_file()
    (rows,) = Staging(form.format(tmp_path)).read(name, "s")
    assert rows.to_pylist() == [{"value": 1}]


@pytest.mark.parametrize(
    ("location", "root", "option"),
    [
        ("s3://bucket/twopc?region=eu-central-1", "bucket/twopc/the-id", ("region", "eu-central-1")),
        ("s3://bucket/twopc/?scheme=http&region=eu-west-3", "bucket/twopc/the-id", ("region", "eu-west-3")),
        ("s3://bucket?region=eu-central-1", "bucket/the-id", ("region", "eu-central-1")),
        ("s3://bucket/twopc?region=eu-central-1#fragment", "bucket/twopc/the-id", ("region", "eu-central-1")),
        ("gs://anonymous@bucket/twopc?project_id=prod", "bucket/twopc/the-id", ("project_id", "prod")),
        ("gs://anonymous@bucket/twopc#fragment", "bucket/twopc/the-id", ("project_id", None)),
        ("file:///shared/what?/#1", "/shared/what?/#1/the-id", ("type_name", "local")),
        ("file:/shared/what?", "/shared/what?/the-id", ("type_name", "local")),
        ("/shared/what?/#1/", "/shared/what?/#1/the-id", ("type_name", "local")),
    ],
)
def test_each_query_uses_its_own_directory_and_keeps_the_options_of_the_location(
    location: str, root: str, option: tuple[str, object]
) -> None:
    """With one root for several queries, each query would delete the others' staged files."""
    filesystem, path = open_location(below(location, "the-id"))
    assert path == root
    name, wanted = option
    assert getattr(filesystem, name) == wanted


def test_a_location_that_pyarrow_cannot_open_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="staging='gopher://x/y'"):
        open_location("gopher://x/y")


CANARY = "canary-91c4"
#: Nothing listens on this port, so each request fails.
NOWHERE = "endpoint_override=127.0.0.1:1&scheme=http&region=x&allow_bucket_creation=false"
KEYED = f"s3://AKIA:{CANARY}@bucket/twopc?{NOWHERE}"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (f"s3://AKIA:{CANARY}@bucket/p?nonsense=1", "staging='s3://…@bucket/p'"),
        (f"s3://AKIA:a/{CANARY}@bucket/p", "staging='s3://…@bucket/p'"),  # keys often contain a slash
        (f"s3://AKIA:{CANARY}@bucket/a b", "staging='s3://…@bucket/a b'"),
        (f"gopher://ann:{CANARY}@host/p", "staging='gopher://…@host/p'"),
    ],
)
def test_the_error_of_a_location_that_cannot_be_opened_shows_no_key(location: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_location(location)
    assert expected in str(refused.value)
    assert CANARY not in "".join(traceback.format_exception(refused.value))


def test_no_error_or_warning_about_staged_rows_shows_a_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging_module, "_STALE_S", 0)
    staging, writer = Staging(KEYED), StagedFileWriter(KEYED, 1, 2, VIEWS)

    for one in (staging, writer):
        monkeypatch.setattr(one, "_filesystem", _Failing(f"cannot use {KEYED}"))
    staging.release(1, 2)
    staging.discard(1, ())
    said = []
    acts: tuple[Callable[[], object], ...] = (
        lambda: staging.has("1/2/x.arrow"),
        lambda: staging.require_visible(["1/2/x.arrow"]),
        lambda: list(staging.read("1/2/x.arrow", "s")),
        lambda: writer.write(ROWS),
    )
    for act in acts:
        with pytest.raises(UnavailableError, match=r"staging: s3://…@bucket/twopc") as raised:
            act()
        said += traceback.format_exception(raised.value)
    assert "staged rows of batch 2 in s3://…@bucket/twopc could not be deleted" in caplog.text
    assert "staged rows of failed attempts in s3://…@bucket/twopc could not be deleted" in caplog.text
    assert CANARY not in "".join([*said, caplog.text, repr(Options(staging=KEYED))])


@pytest.mark.parametrize("content", [None, b"torn"])
def test_no_error_about_a_lost_or_torn_staged_file_shows_a_key(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging_module, "_STALE_S", 0)
    staging = Staging(KEYED)
    monkeypatch.setattr(staging, "_filesystem", fs.LocalFileSystem())
    monkeypatch.setattr(staging, "_root", str(tmp_path))
    if content is not None:
        (tmp_path / "x.arrow").write_bytes(content)
    assert not staging.has("x.arrow")
    with pytest.raises(FatalError, match=r"s3://…@bucket/twopc/x\.arrow") as raised:
        list(staging.read("x.arrow", "s"))
    with pytest.raises(ConfigurationError, match=r"s3://…@bucket/twopc/x\.arrow") as unseen:
        staging.require_visible(["x.arrow"])
    assert CANARY not in "".join([*traceback.format_exception(raised.value), str(unseen.value), caplog.text])


def test_a_name_that_leads_out_of_the_staging_location_is_not_opened(tmp_path: Path) -> None:
    location = tmp_path / "location"
    name = staged(str(location), 1, 2)
    staging = Staging(str(location / "1"))
    assert staging.has(name.removeprefix("1/"))
    assert not staging.has(f"../{name}")


class _Failing:
    """A file system that quotes its URI in each error."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, _: str) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise OSError(self._text)

        return fail
