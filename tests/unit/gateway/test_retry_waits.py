"""How long is waited before a call is made again."""

from __future__ import annotations

import time
from email.utils import formatdate

from benchflow.contracts.gateway import RetryPolicy
from benchflow.gateway.upstream_retries import next_wait, parse_retry_after


def test_waits_grow_to_a_limit_in_number_and_time() -> None:
    policy = RetryPolicy(max_retries=4, first_wait_sec=1, max_wait_sec=5, total_sec=100)
    assert [next_wait(policy, retries, 0) for retries in range(6)] == [1, 2, 4, 5, None, None]
    assert next_wait(policy, 0, 99.5) is None
    assert next_wait(policy, 0, 0, retry_after=3600) == 5
    assert next_wait(policy, 3, 0, retry_after=0) == 0


def test_a_wait_is_given_in_seconds_milliseconds_or_as_a_date() -> None:
    assert parse_retry_after({"retry-after": "2.5"}) == 2.5
    assert parse_retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert 80 < (parse_retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)}) or 0) <= 100
    assert parse_retry_after({"retry-after": "soon"}) is None
    assert parse_retry_after({}) is None


def test_a_date_is_one_of_the_endpoints_clock() -> None:
    headers = {"date": formatdate(1e9, usegmt=True), "retry-after": formatdate(1e9 + 7, usegmt=True)}
    assert parse_retry_after(headers) == 7
