"""A process whose kernel refuses hard links, like a share without them. It uses seccomp, which a process can only tighten."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import platform
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

#: The numbers of ``link`` and ``linkat`` (asm/unistd.h).
_SYSCALLS: Final = {"x86_64": (86, 265), "aarch64": (37,)}
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000  # SECCOMP_RET_*


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_links(number: int) -> None:
    """Make ``link`` fail with this errno from now on, in this process and its children."""
    refused = _SYSCALLS[platform.machine()]
    code = struct.pack("HBBI", _LOAD, 0, 0, 0)
    for index, call in enumerate(refused):
        code += struct.pack("HBBI", _JUMP_IF_EQUAL, len(refused) - index, 0, call)
    code += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW) + struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | number)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def run_without_links(number: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``work`` in a separate process that cannot make hard links; skip without seccomp."""
    if platform.machine() not in _SYSCALLS:
        pytest.skip(f"the system call numbers of {platform.machine()} are not known")
    with multiprocessing.get_context("spawn").Pool(1, _begin, (number,)) as pool:
        is_refused = pool.apply(_is_refused)
        if not is_refused:
            pytest.skip("this kernel does not accept a seccomp filter")
        return pool.apply(work, arguments)


_refused = False


def _begin(number: int) -> None:
    global _refused  # noqa: PLW0603 - set in each process, which has no other way to find out
    try:
        refuse_links(number)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EPERM}:
            raise
    else:
        _refused = True


def _is_refused() -> bool:
    return _refused
