"""The seccomp filter of every process of a sandbox: the rules of `system_calls`, as a BPF program.

Its shape is for speed. When it is installed, the kernel runs it once for every number, and remembers the calls that
are allowed whatever their arguments (since Linux 5.11); so it is a binary search. Only calls that are decided by an
argument run it again each time.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct

from benchflow.planes.sandbox.local.helper import system_calls
from benchflow.planes.sandbox.local.helper.kernel import syscall
from benchflow.planes.sandbox.local.helper.system_calls import Abi, Restricted

_SET_MODE_FILTER = 1
_FILTER_FLAG_SPEC_ALLOW = 4

_LOAD, _JUMP, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LEAF = 4
"""Numbers up to which a part of the search is linear."""

Step = tuple[int, int, int, int]
"""A BPF instruction: operation, steps to skip if it holds, steps to skip if not, value."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def filter_system_calls() -> None:
    """Install the filter for this process and all that it starts, irrevocably.

    `kernel.forbid_new_privileges` must have been called.
    """
    machine = os.uname().machine
    steps = make_program(machine)
    number = system_calls.MACHINES[machine][0].number("seccomp")
    assert number is not None
    # SPEC_ALLOW keeps speculative execution on: the filter protects no secrets within the process's own memory.
    filled = _Program(len(steps) // 8, steps)
    syscall("seccomp", number, _SET_MODE_FILTER, _FILTER_FLAG_SPEC_ALLOW, ctypes.byref(filled))


@functools.cache
def make_program(machine: str) -> bytes:
    """Return the filter for a kind of machine, as `uname` names it.

    It has a part for each ABI that the machine runs. A program of any other ABI is killed.
    """
    steps: list[Step] = [(_LOAD, 0, 0, _ARCHITECTURE)]
    for abi in system_calls.MACHINES[machine]:
        part = _make_part(abi)
        # The offsets of a condition have only 8 bits; those of a jump have 32.
        steps += [(_IF_EQUAL, 1, 0, abi.architecture), (_JUMP, 0, 0, len(part)), *part]
    steps.append((_RETURN, 0, 0, _KILL_PROCESS))
    order = ">" if any(abi.is_big_endian for abi in system_calls.MACHINES[machine]) else "<"
    return b"".join(struct.pack(f"{order}HBBI", *step) for step in steps)


def _make_part(abi: Abi) -> list[Step]:
    """Return the steps that decide on a call of one ABI."""
    answers: dict[str, list[Step]] = {}
    for refused in system_calls.REFUSED:
        answers |= {call: [_refuse(refused.error)] for call in refused.calls}
    for restricted in system_calls.RESTRICTED:
        answers |= {call: _check_argument(abi, restricted) for call in restricted.calls}
    answers |= {call: _check_socket(abi) for call in system_calls.SOCKET_CALLS}
    numbered = [(number, steps) for call, steps in answers.items() if (number := abi.number(call)) is not None]
    return [
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, system_calls.NEWEST + 1),
        _refuse(errno.ENOSYS),
        *_find_number(sorted(numbered, key=lambda each: each[0])),
    ]


def _find_number(answers: list[tuple[int, list[Step]]]) -> list[Step]:
    """Return the steps that find the loaded number among `answers`, which are sorted, and allow all other numbers."""
    if len(answers) <= _LEAF:
        leaf: list[Step] = []
        for number, steps in answers:
            leaf += [(_IF_EQUAL, 0, len(steps), number), *steps]
        return [*leaf, (_RETURN, 0, 0, _ALLOW)]
    middle = len(answers) // 2
    lower, upper = _find_number(answers[:middle]), _find_number(answers[middle:])
    return [(_IF_AT_LEAST, 0, 1, answers[middle][0]), (_JUMP, 0, 0, len(lower)), *lower, *upper]


def _check_argument(abi: Abi, rule: Restricted) -> list[Step]:
    """Return the steps that decide on a call by one argument."""
    argument = abi.clone_flags if rule.calls == ("clone",) else rule.argument
    steps = [_load(abi, argument)]
    for value in rule.never:
        steps += [(_IF_EQUAL, 0, 1, value), _refuse(rule.error)]
    if rule.bits:
        steps += [(_IF_ANY_BIT, 0, 1, rule.bits), _refuse(rule.error)]
    for value in rule.only:
        steps += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*steps, _refuse(rule.error) if rule.only else (_RETURN, 0, 0, _ALLOW)]


def _check_socket(abi: Abi) -> list[Step]:
    """Return the steps that decide on a socket by its family and protocol."""
    steps = [_load(abi, 0)]
    for family, protocols in system_calls.SOCKETS.items():
        allow: Step = (_RETURN, 0, 0, _ALLOW)
        if protocols is None:
            known = [allow]
        else:
            known = [_load(abi, 2)]
            for protocol in protocols:
                known += [(_IF_EQUAL, 0, 1, protocol), allow]
            known.append(_refuse(errno.EPROTONOSUPPORT))
        steps += [(_IF_EQUAL, 0, len(known), family), *known]
    return [*steps, _refuse(errno.EAFNOSUPPORT)]


def _load(abi: Abi, argument: int) -> Step:
    """Return the step that loads the lower half of an argument.

    The kernel ignores the upper half, so comparing it would open a way around the filter.
    """
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * abi.is_big_endian)


def _refuse(error: int) -> Step:
    """Return the step that refuses the call with an errno."""
    return (_RETURN, 0, 0, _ERROR | error)
