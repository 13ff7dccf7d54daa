"""Equal errors of rollouts, after a number of which a job stops."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.rollout_records import Failure, RolloutOutcome


def outcomes(messages: Sequence[str]) -> list[RolloutOutcome]:
    """Return rollouts that ended with errors of these messages."""
    failures = [Failure(type="SandboxSetupError", category="setup", message=message) for message in messages]
    return [
        RolloutOutcome(id=f"r{index}", index=index, attempt=1, status="errored", error=failure, seconds=1)
        for index, failure in enumerate(failures)
    ]


def is_reached(messages: Sequence[str]) -> bool:
    """Tell whether the last of these errors reaches a limit of as many equal ones."""
    limit = ErrorLimit(errors=len(messages))
    ended = outcomes(messages)
    for outcome in ended:
        limit = limit.plus(outcome)
    return limit.reached_by(ended[-1]) is not None


# Their groups begin with letters and with digits, and have letters alone.
UUIDS = [
    "3f2a9c1b-7e0d-4c1a-9b2f-aabbccddeeff",
    "deadbeef-abcd-4bad-a00b-112233445566",
    "0a1b2c3d-0000-4fff-8abc-0123456789ab",
    "F00DCAFE-12AB-4CD5-B6E7-ABCDEFABCDEF",
    str(uuid.UUID(int=0)),
]


@pytest.mark.parametrize(
    "messages",
    [
        [f"no container {each} on this host" for each in UUIDS],
        [f"request req_{each} failed" for each in UUIDS],
        ["request req_011CSHoEeqs5C35K2UUqR7Fy failed", "request req_9aBcDeFgHij0KLmnOPqrSTuv failed"],
        ["layer 3f2a9c1b7e failed", "layer deadbeefca failed", "layer 0123456789 failed"],
        ["port 9001 refuses", "port 12 refuses"],
    ],
)
def test_messages_that_differ_by_ids_and_numbers_are_equal(messages: list[str]) -> None:
    assert is_reached(messages)


@pytest.mark.parametrize(
    "messages",
    [
        ["no space left on device", "no network left on device"],
        ["cannot find container-runtime", "cannot find container-network"],
        ["layer2 failed", "image2 failed"],
        ["there is no image worker-a1:v1", "there is no image runner-b2:v2"],
    ],
)
def test_messages_that_differ_by_words_are_not(messages: list[str]) -> None:
    assert not is_reached(messages)
