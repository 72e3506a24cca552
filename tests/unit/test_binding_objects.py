"""The binding on a store that cannot create a file only if it is absent, overwrites, and lists late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.objects import Objects
from tests.unit.test_binding import BOUND, WITH_REDIS
from twopc.binding import Binding
from twopc.errors import RefusedStartError
from twopc.override import Overrides
from twopc.sealed import seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.bound import Bound

OTHER_LOG = msgspec.structs.replace(BOUND, log="other ledger", log_identity="id-2", sinks={"j": {"cluster": "c1"}})


@pytest.fixture
def files() -> Objects:
    return Objects()


def bind(files: Objects, bound: Bound, log_epoch: int, decided: int = 0) -> int:
    """Bind the checkpoint as a driver would. Return the binding's number, which the driver's decisions contain."""
    binding = Binding(files)
    binding.check(bound, Overrides(added_sinks={"r"}), decided=decided)
    binding.bind(bound, log_epoch)
    return binding.number


def in_put(files: Objects, number: int, then: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Call ``then`` in the store's next put (if ``number`` is 1), before the file appears, and then ``after``."""
    really, left = files.close, number

    def close(name: str, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            files.close = really  # type: ignore[method-assign]
            then()
            really(name, data)
            after()
        else:
            really(name, data)

    files.close = close  # type: ignore[method-assign]


def die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("log_epoch", [0, 41])
def test_the_next_run_finds_the_binding_although_the_store_lists_no_files(log_epoch: int, files: Objects) -> None:
    bind(files, BOUND, log_epoch)
    assert Binding(files).log == "ledger"
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(k\) again"):
        Binding(files).check(OTHER_LOG, Overrides())


def test_the_last_decision_leads_to_the_newest_binding_although_the_store_lists_no_files(files: Objects) -> None:
    """Fails if ``_load`` reads only listed files: the added sink would look new at each start."""
    first = bind(files, BOUND, 3)
    second = bind(files, WITH_REDIS, 7, decided=first)
    Binding(files).check(WITH_REDIS, Overrides(), decided=second)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(r\) again"):
        Binding(files).check(BOUND, Overrides(), decided=second)


@pytest.mark.parametrize(("is_listed", "has_decided"), [(False, True), (True, False), (True, True)])
def test_a_fenced_driver_that_wakes_while_it_writes_a_binding_changes_nothing(
    is_listed: bool,  # noqa: FBT001
    has_decided: bool,  # noqa: FBT001
    files: Objects,
) -> None:
    """Fails if two drivers write the same name, or if a lower epoch can win."""
    paused = Binding(files)  # of a driver with epoch 5, which has found no binding
    number = bind(files, WITH_REDIS, 9)
    paused.bind(BOUND, 5)
    if is_listed:
        files.show()
    Binding(files).check(WITH_REDIS, Overrides(), decided=number if has_decided else 0)


def test_a_driver_that_loses_writes_nothing_under_the_fixed_name(
    files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before it takes its own file back. The other driver has not stored the fixed name yet, but will."""
    in_put(files, 1, lambda: None, after=die)
    with pytest.raises(KeyboardInterrupt):
        bind(files, BOUND, 4)
    second = Binding(files)
    files.show()
    monkeypatch.setattr(files, "remove", lambda _: die())
    with pytest.raises(KeyboardInterrupt):
        second.bind(OTHER_LOG, 9)
    assert "binding-000001.json" not in files.content


@pytest.mark.parametrize("put", [1, 2])
def test_drivers_of_two_logs_with_the_same_epoch_do_not_write_the_same_file(put: int, files: Objects) -> None:
    """The driver that lost has replaced the file, and died. Two new ledgers often give their first drivers the same epoch."""
    first, second = Binding(files), Binding(files)
    in_put(files, put, lambda: first.bind(BOUND, 4), after=die)
    with pytest.raises(KeyboardInterrupt):
        second.bind(OTHER_LOG, 4)
    files.show()
    bind(files, WITH_REDIS, 5, decided=first.number)


def test_when_two_drivers_with_different_logs_bind_at_once_at_most_one_succeeds(files: Objects) -> None:
    """Their logs do not fence each other. Fails if ``bind`` does not look again, or leaves its file behind."""
    first, second = Binding(files), Binding(files)
    first.bind(BOUND, 4)
    files.show()
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)
    files.show()
    Binding(files).check(BOUND, Overrides())  # also before its first decision


@pytest.mark.parametrize("put", [1, 2])
def test_a_driver_that_dies_while_it_binds_does_not_stop_the_next_one(put: int, files: Objects) -> None:
    """Fails if a driver that finds a numbered file does not write the fixed name: a store may list that file late."""
    in_put(files, put, lambda: None, after=die)
    with pytest.raises(KeyboardInterrupt):
        bind(files, BOUND, 4)
    files.show()
    bind(files, BOUND, 5)
    files.listed.clear()
    assert Binding(files).log == "ledger"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_driver_that_dies_before_it_puts_the_other_binding_back_does_not_stop_the_other_query(
    is_removed: bool,  # noqa: FBT001
    files: Objects,
) -> None:
    """Its binding, or nothing, is under the fixed name. The other query has decided, so its next driver stores its own."""
    first, second = Binding(files), Binding(files)
    really = files.remove

    def remove_and_die(name: str) -> None:
        is_fixed = name == "binding-000001.json"
        if is_removed or not is_fixed:
            really(name)
        if is_fixed:
            raise KeyboardInterrupt

    def bind_first() -> None:
        first.bind(BOUND, 4)
        files.show()
        files.remove = remove_and_die  # type: ignore[method-assign]

    in_put(files, 2, bind_first)
    with pytest.raises(KeyboardInterrupt):
        second.bind(OTHER_LOG, 9)
    files.remove = really  # type: ignore[method-assign]
    assert Binding(files).log == ("ledger" if is_removed else "other ledger")
    files.show()
    assert bind(files, BOUND, 5, decided=first.number) == first.number
    files.listed.clear()
    assert Binding(files).log == "ledger"
    files.show()
    bind(files, WITH_REDIS, 6, decided=first.number)


def test_the_file_of_a_driver_that_lost_and_died_does_not_count(
    files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between its look at the fixed name and the removal of its own file."""
    second = Binding(files)
    first = bind(files, BOUND, 4)
    with monkeypatch.context() as dying:
        dying.setattr(files, "remove", lambda _: die())
        with pytest.raises(KeyboardInterrupt):
            second.bind(OTHER_LOG, 9)
    files.show()
    assert Binding(files).log == "ledger"
    bind(files, BOUND, 5)
    bind(files, WITH_REDIS, 6, decided=first)
    with pytest.raises(RefusedStartError, match=r"Pass each missing sink \(k\) again"):
        bind(files, OTHER_LOG, 10)


def test_a_driver_that_finds_an_undecided_binding_looks_again_for_other_drivers(files: Objects) -> None:
    """A driver had died before it stored the fixed name. Meanwhile, the store listed its file late to another driver."""
    in_put(files, 1, lambda: None, after=die)
    with pytest.raises(KeyboardInterrupt):
        bind(files, OTHER_LOG, 4)
    files.show()
    second = Binding(files)
    files.listed.clear()
    bind(files, BOUND, 4)
    assert second.log == "other ledger"
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)


def test_a_decision_never_names_the_fixed_name(files: Objects) -> None:
    """Another driver, which paused in its put, may still overwrite it."""
    bind(files, BOUND, 4)
    number = bind(files, BOUND, 5)  # finds only the fixed name
    bind(files, WITH_REDIS, 6, decided=number)
    assert min(files.content) == "binding-000001.json"
    assert number > 1


def test_a_driver_that_is_refused_leaves_the_other_drivers_binding_under_the_fixed_name(files: Objects) -> None:
    """Fails if ``bind`` overwrites the fixed name without looking."""
    first, second = Binding(files), Binding(files)
    first.bind(BOUND, 4)
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)
    assert Binding(files).log == "ledger"


@pytest.mark.parametrize("log_epoch", [4, 9])
@pytest.mark.parametrize("put", [1, 2])
def test_a_refused_driver_that_paused_in_a_put_leaves_the_other_drivers_binding(
    put: int, log_epoch: int, files: Objects
) -> None:
    """The store looks for the file first, and publishes it later. Seen: the other driver could never add a sink again."""
    first, second = Binding(files), Binding(files)

    def bind_first() -> None:
        first.bind(BOUND, 4)
        files.show()

    in_put(files, put, bind_first)
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, log_epoch)
    assert first.number
    files.listed.clear()
    assert Binding(files).log == "ledger"
    files.show()
    bind(files, BOUND, 5, decided=first.number)
    assert bind(files, WITH_REDIS, 6, decided=first.number) > first.number


def test_binding_again_writes_nothing(files: Objects) -> None:
    number = bind(files, BOUND, 3)
    content = dict(files.content)
    assert bind(files, BOUND, 8, decided=number) == number
    assert files.content == content


def test_a_binding_without_a_later_decision_does_not_count(files: Objects) -> None:
    """The driver of epoch 7 added a sink and died before its first decision."""
    first = bind(files, BOUND, 3)
    bind(files, WITH_REDIS, 7, decided=first)
    files.show()
    Binding(files).check(BOUND, Overrides(), decided=first)


def test_a_checkpoint_copied_from_a_file_system_keeps_its_bindings(files: Objects) -> None:
    """The old bindings are numbered consecutively. The first driver epoch on the store is higher than all of these numbers."""
    files.content = {f"binding-{number:06d}.json": seal(bound) for number, bound in ((1, BOUND), (2, WITH_REDIS))}
    files.show()
    Binding(files).check(WITH_REDIS, Overrides())
    Binding(files).check(WITH_REDIS, Overrides(), decided=2)
