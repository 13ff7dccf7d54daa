"""Devices of a sandbox that are other ones after an agent has acted."""

from __future__ import annotations

from benchflow.planes.reward.hardening.devices import find_replaced_devices

BEFORE = ["1:3 null", "1:9 urandom", "0:0 'fd' -> '/proc/self/fd'"]


def paths(now: list[str]) -> list[str]:
    return [finding.path for finding in find_replaced_devices(BEFORE, now, "verify_tools") if finding.is_tampering]


def test_devices_as_they_were_are_no_finding() -> None:
    assert paths(BEFORE) == []


def test_a_device_that_is_gone_is_one_of_them() -> None:
    found = find_replaced_devices(BEFORE, [BEFORE[0], BEFORE[2]], "verify_tools")
    assert [(finding.path, finding.detail, finding.weight) for finding in found] == [
        ("/dev/urandom", "is gone", "tampering")
    ]


def test_a_link_to_another_device_a_file_and_another_link_are_findings() -> None:
    now = ["1:3 null", "0:0 'urandom' -> 'zero'", "0:0 'fd' -> '/proc/1/fd'"]
    assert paths(now) == ["/dev/urandom", "/dev/fd"]
    assert paths(["0:0 null", *BEFORE[1:]]) == ["/dev/null"]


def test_a_device_that_was_not_there_is_none_of_them() -> None:
    assert paths([*BEFORE, "5:0 tty"]) == []
