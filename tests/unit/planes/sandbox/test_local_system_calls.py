"""The filter of a local sandbox's system calls, run as the kernel runs it, for every machine; and its first program."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

import pytest

from benchflow.planes.sandbox.idle_program import build_program
from benchflow.planes.sandbox.local.helper import seccomp, system_calls
from benchflow.planes.sandbox.local.helper.confinement import find_core_limit
from benchflow.planes.sandbox.local.helper.system_calls import MACHINES, REFUSED, RESTRICTED, Abi

ALLOW, KILL_PROCESS, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
DOCUMENT = Path(__file__).parents[4] / "docs" / "local-sandbox.md"

ABIS = [pytest.param(machine, abi, id=f"{machine}-{abi.numbers}") for machine, abis in MACHINES.items() for abi in abis]
EVERY_ABI = pytest.mark.parametrize(("machine", "abi"), ABIS)


def answer(machine: str, architecture: int, number: int, *arguments: int) -> int:
    """Run a machine's filter on one call, by the rules of bpf(4): every jump leads forward, every way to an answer."""
    order = ">" if machine == "s390x" else "<"
    call = struct.pack(f"{order}IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack(f"{order}HBBI", seccomp.make_program(machine)))
    at, loaded = 0, 0
    while True:
        operation, yes, no, value = steps[at]
        at += 1
        match operation:
            case 0x20:
                (loaded,) = struct.unpack_from(f"{order}I", call, value)
            case 0x06:
                return value
            case 0x05:
                at += value
            case _:
                holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
                at += yes if holds else no


def number(abi: Abi, call: str) -> int:
    found = abi.number(call)
    assert found is not None
    return found


@EVERY_ABI
def test_each_refused_call_is_answered_with_its_error(machine: str, abi: Abi) -> None:
    refused = [(abi.number(call), rule.error) for rule in REFUSED for call in rule.calls]
    known = [(called, error) for called, error in refused if called is not None]
    assert len(known) > 50
    assert [answer(machine, abi.architecture, called) for called, _ in known] == [ERROR | error for _, error in known]


@EVERY_ABI
def test_all_other_calls_are_allowed_up_to_the_newest(machine: str, abi: Abi) -> None:
    rules = [*(rule.calls for rule in REFUSED), *(rule.calls for rule in RESTRICTED), system_calls.SOCKET_CALLS]
    named = {abi.number(call) for calls in rules for call in calls}
    others = set(range(system_calls.NEWEST + 1)) - named
    assert {answer(machine, abi.architecture, called) for called in others} == {ALLOW}
    later = (system_calls.NEWEST + 1, 0x40000000 + number(abi, "socket"), 0xFFFFFFFF)
    assert {answer(machine, abi.architecture, called) for called in later} == {ERROR | errno.ENOSYS}


@EVERY_ABI
def test_a_call_is_judged_by_the_half_of_its_argument_that_the_kernel_reads(machine: str, abi: Abi) -> None:
    def says(call: str, *arguments: int) -> int:
        return answer(machine, abi.architecture, number(abi, call), *arguments)

    refused, high = ERROR | errno.EPERM, 1 << 32
    assert [says("ioctl", 3, command) for command in (0x5412, high | 0x5412, 0x541C, 0x5423)] == [refused] * 4
    assert [says("ioctl", 0x5412, 0x5413), says("fcntl", 1024, 1), says("fcntl", 1, high | 1024)] == [
        *(ALLOW, ALLOW, refused),
    ]
    flags = (0x10000000, 0x00020000, 0x40000000, 0x20000000 | 17, high | 0x02000000)
    at = [0] * abi.clone_flags
    assert [says("clone", *at, each) for each in flags] == [refused] * 5
    assert [says("clone", *at, 17), says("clone", *at, 0x003D0F00)] == [ALLOW] * 2
    assert [says("unshare", each) for each in (*flags, 0x80)] == [refused] * 6
    assert [says("unshare", 0x600), says("personality", 0x40000), says("personality", 0xFFFFFFFF)] == [ALLOW] * 3
    assert [says("personality", each) for each in (0x400000, 0x440000, 2)] == [refused] * 3


@EVERY_ABI
def test_a_socket_is_of_the_families_and_protocols_that_are_listed(machine: str, abi: Abi) -> None:
    def says(family: int, protocol: int) -> int:
        return answer(machine, abi.architecture, number(abi, "socket"), family, 1, protocol)

    families = {family: says(family, 0) for family in range(64)}
    assert {family for family, said in families.items() if said == ALLOW} == {1, 2, 10, 16}
    assert set(families.values()) == {ALLOW, ERROR | errno.EAFNOSUPPORT}
    assert says(1 << 32 | socket.AF_VSOCK, 0) == ERROR | errno.EAFNOSUPPORT
    assert {protocol for protocol in range(300) if says(socket.AF_INET, protocol) == ALLOW} == {0, 1, 6, 17, 58, 262}
    assert {protocol for protocol in range(64) if says(16, protocol) == ALLOW} == {0}


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_for_another_machine_are_killed(machine: str) -> None:
    known = {abi.architecture for abi in MACHINES[machine]}
    others = {abi.architecture for abis in MACHINES.values() for abi in abis} - known | {0x40000028}
    assert {answer(machine, other, 1) for other in others} == {KILL_PROCESS}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_program_is_one_segment_that_cannot_be_written(machine: str) -> None:
    content = build_program(machine)
    order = ">" if machine == "s390x" else "<"
    assert content[:7] == b"\x7fELF" + bytes([2, 2 if order == ">" else 1, 1])
    entry, table = struct.unpack_from(f"{order}QQ", content, 24)
    kind, flags, offset, address, _, size, _, align = struct.unpack_from(f"{order}IIQQQQQQ", content, table)
    assert (kind, flags, offset, size) == (1, 5, 0, len(content))
    assert address < entry < address + size and address % align == 0
    kind, flags = struct.unpack_from(f"{order}II", content, table + 56)
    assert (kind, flags) == (0x6474E551, 6)


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [(b"core\n", None), (b"/var/crash/%e", None), (b"|/usr/bin/keeper %p", 1), (b"@/run/keeper", 1)],
)
def test_cores_are_not_given_to_a_program_of_the_host(pattern: bytes, limit: int | None) -> None:
    assert find_core_limit(pattern) == limit


def test_the_document_gives_every_refusal_with_its_reason() -> None:
    text = DOCUMENT.read_text()
    rules = [*((rule.calls, rule.reason) for rule in REFUSED), *((rule.calls, rule.reason) for rule in RESTRICTED)]
    rules.append((system_calls.SOCKET_CALLS, system_calls.SOCKET_REASON))
    rows = [f"| {', '.join(f'`{call}`' for call in calls)} | {reason} |" for calls, reason in rules]
    assert [row for row in rows if row not in text] == []
