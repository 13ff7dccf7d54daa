"""Observation of services by their answers to GET requests, and differences between two observations.

A copy of a world has its files and databases, and services that were started anew: state that they held in memory alone
is lost. No file shows that; the answers of the services do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchflow.contracts.environment import Observation
from benchflow.planes.environment.world_helper import WorldHelper

MAX_SHOWN_BYTES = 64 * 1024
"""Maximum size, in bytes, of bodies whose differences are shown."""

_TIMEOUT_SEC = 10.0
_MAX_PARTS = 3
_MAX_VALUE = 60


async def observe(helper: WorldHelper, urls: Sequence[str], *, with_bodies: bool = False) -> tuple[Observation, ...]:
    """Send a GET to each URL, one after another, from within the sandbox, and return the responses.

    Redirects are not followed. A request that fails is an observation with an error.

    Args:
        helper: Client of the helper in the sandbox.
        urls: The URLs.
        with_bodies: Include bodies of at most `MAX_SHOWN_BYTES`.
    """
    if not urls:
        return ()
    request = {"urls": list(urls), "patience": _TIMEOUT_SEC, "show": MAX_SHOWN_BYTES if with_bodies else -1}
    answer = await helper.ask("observe", request, _TIMEOUT_SEC * len(urls) + 15)
    return tuple(Observation.model_validate(each) for each in answer["observed"])


def describe_differences(before: Sequence[Observation], after: Sequence[Observation]) -> tuple[str, ...]:
    """Return a sentence for each URL whose answer differs, or could not be compared.

    `after` has an observation of each URL in `before`.
    """
    found = {each.url: each for each in after}
    told = (describe_difference(each, found[each.url]) for each in before)
    return tuple(text for text in told if text is not None)


def describe_difference(before: Observation, after: Observation, *, where: str = "in the copy") -> str | None:
    """Return a sentence about the difference of two answers of one URL; None if they are the same.

    Args:
        before: The first answer.
        after: The second one.
        where: Phrase that tells when or where the second was given.
    """
    if not before.is_comparable:
        return f"GET {before.url} could not be compared: it answers {format_answer(before)}"
    if is_same(before, after):
        return None
    if before.body is None or after.body is None or before.status != after.status:
        return f"GET {before.url} answered {format_answer(before)}, and {format_answer(after)} {where}"
    return f"GET {before.url} answers otherwise {where}: {_format_body_differences(before.body, after.body)}"


def is_same(one: Observation, other: Observation) -> bool:
    """Return whether two answers have the same status and the same digest of the body."""
    return (one.status, one.digest) == (other.status, other.digest)


def format_answer(seen: Observation) -> str:
    """Return an answer as a phrase, without its body."""
    return f"nothing ({seen.error})" if seen.status is None else f"HTTP {seen.status} with {seen.size} bytes"


def _format_body_differences(before: str, after: str) -> str:
    """Return the first places in which two bodies differ: paths within JSON, else lines."""
    try:
        one, other = json.loads(before), json.loads(after)
    except ValueError:
        one, other = before.splitlines(), after.splitlines()
    places = list(_iterate_differences(one, other, "$"))
    more = f"; and {len(places) - _MAX_PARTS} more" if len(places) > _MAX_PARTS else ""
    return "; ".join(places[:_MAX_PARTS]) + more


def _iterate_differences(before: Any, after: Any, at: str) -> Iterator[str]:
    """Yield a phrase for each difference of two JSON values; `at` is their path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in after:
                yield f"{at}.{key} is gone: {_shorten_value(before[key])}"
            elif key not in before:
                yield f"{at}.{key} is new: {_shorten_value(after[key])}"
            else:
                yield from _iterate_differences(before[key], after[key], f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _iterate_differences(one, other, f"{at}[{index}]")
    elif isinstance(before, list) and isinstance(after, list):
        yield f"{at} has {len(after)} entries, not {len(before)}: {_shorten_value(after)}, not {_shorten_value(before)}"
    elif type(before) is not type(after) or before != after:
        yield f"{at} is {_shorten_value(after)}, not {_shorten_value(before)}"


def _shorten_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
