"""The binding on a store that cannot create a file only if it is absent, overwrites, and lists late."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.objects import Objects
from tests.unit.test_binding import BOUND, WITH_REDIS
from twopc.binding import Binding, Bound
from twopc.errors import RefusedStartError
from twopc.override import Overrides
from twopc.sealed import seal

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


def test_when_two_drivers_with_different_logs_bind_at_once_at_most_one_succeeds(files: Objects) -> None:
    """Their logs do not fence each other. Fails if ``bind`` does not look again, or leaves its file behind."""
    first, second = Binding(files), Binding(files)
    first.bind(BOUND, 4)
    files.show()
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)
    files.show()
    Binding(files).check(BOUND, Overrides())  # also before its first decision


def test_a_driver_that_dies_while_it_binds_leaves_a_binding_that_every_reader_finds(files: Objects) -> None:
    """Fails if the numbered file is written first: a driver that finds it would not write the fixed name."""
    really = files.put_if_absent

    def put_and_die(name: str, data: bytes) -> bool:
        really(name, data)
        raise KeyboardInterrupt

    files.put_if_absent = put_and_die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bind(files, BOUND, 4)
    files.put_if_absent = really  # type: ignore[method-assign]
    files.show()
    bind(files, BOUND, 5)
    files.listed.clear()
    assert Binding(files).log == "ledger"


def test_a_driver_that_is_refused_leaves_the_other_drivers_binding_under_the_fixed_name(files: Objects) -> None:
    """Fails if ``bind`` overwrites the fixed name without looking."""
    first, second = Binding(files), Binding(files)
    first.bind(BOUND, 4)
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)
    assert Binding(files).log == "ledger"


def test_a_refused_driver_that_has_overwritten_the_fixed_name_puts_the_other_binding_back(files: Objects) -> None:
    """It paused between its look at the fixed name and its put. Seen: the other driver could never add a sink again."""
    first, second = Binding(files), Binding(files)
    really = files.put_if_absent

    def pause_and_put(name: str, data: bytes) -> bool:
        files.put_if_absent = really  # type: ignore[method-assign]
        first.bind(BOUND, 4)
        files.show()
        return really(name, data)

    files.put_if_absent = pause_and_put  # type: ignore[method-assign]
    with pytest.raises(RefusedStartError, match="just bound this checkpoint to other sinks"):
        second.bind(OTHER_LOG, 9)
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
