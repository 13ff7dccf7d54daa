"""Reading the reward that a verifier script has written to `/logs/verifier`. The script is not run here.

A reward that cannot be read is an error, never a 0 that was not measured.
"""

from __future__ import annotations

import re
import string
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import AggregatePolicy, RewardEvent, VerifyResult
from benchflow.errors import RewardFileError, RewardMissingError
from benchflow.planes.reward.reward_json import RewardDocument
from benchflow.planes.reward.strict import (
    AGREEMENT,
    clamp_to_range,
    load_json,
    quote,
    read_tail,
    read_text,
    refuse,
    require_number,
)

REWARD_JSON = "/logs/verifier/reward.json"
REWARD_TEXT = "/logs/verifier/reward.txt"
OUTPUT = "test-stdout.txt"

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TAIL_LINES = 20


def parse_rewards(
    verifier_dir: Path,
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
    exit_code: int,
    aggregate: AggregatePolicy | None = None,
    now: datetime,
    reward_key: str | None = None,
    is_split: bool = False,
    is_lenient: bool = False,
) -> VerifyResult:
    """Return the result in a copy of `/logs/verifier` on this host: `reward.json`, else `reward.txt`.

    Args:
        verifier_dir: The copy.
        reward_range: Range of rewards.
        exit_code: Exit status of the script. If it is not 0 and a reward was written, it becomes a warning.
        aggregate: Policy that makes the scalar of the metrics, if `reward.json` has none.
        now: Time of events without one.
        reward_key: Metric that is the scalar, if there is no `reward`.
        is_split: Whether several keys without a scalar are a reward.
        is_lenient: Whether other names of the reward are read, and values that are no metrics left out.

    Raises:
        RewardMissingError: Neither file exists.
        RewardFileError: A file is no valid reward, or the two contradict each other.
    """
    text = read_text(ConfinedPath(verifier_dir, "reward.txt"), REWARD_TEXT)
    document = read_text(ConfinedPath(verifier_dir, "reward.json"), REWARD_JSON)
    if text is None and document is None:
        tail = read_tail(ConfinedPath(verifier_dir, OUTPUT), 8192) or ""
        raise RewardMissingError(
            f"the verifier ended with exit status {exit_code} and wrote no reward",
            file="/logs/verifier",
            remedy="write a number to reward.txt or an object to reward.json in every case, failure included",
            log_tail="\n".join(tail.splitlines()[-_TAIL_LINES:]) or None,
        )
    plain = None if text is None else _read_reward_text(text, reward_range)
    if document is None:
        event = RewardEvent(value=cast(float, plain), source="reward.txt", ts=now)
        result = VerifyResult(reward=event.value, events=[event])
    else:
        loaded = _load_document(document)
        result = RewardDocument(
            loaded,
            REWARD_JSON,
            "reward.json",
            reward_range,
            aggregate,
            now,
            reward_key=reward_key,
            is_split=is_split,
            is_lenient=is_lenient,
        ).read_result()
        if plain is not None and result.reward is not None and abs(plain - result.reward) > AGREEMENT:
            raise RewardFileError(
                f"says {result.reward!r} while reward.txt says {plain!r}",
                file=REWARD_JSON,
                key="reward",
                remedy="write the same reward to both files, or only one of them",
            )
    if exit_code:
        note = f"the verifier ended with exit status {exit_code}; the reward it wrote counts"
        result = result.model_copy(update={"warnings": [*result.warnings, note]})
    return result


def _read_reward_text(text: str, allowed: tuple[float, float]) -> float:
    """Return the number in `reward.txt`. Raise `RewardFileError` if it is not exactly one, in the range."""
    stripped = text.strip(string.whitespace)
    if not stripped:
        refuse(REWARD_TEXT, "is empty", "write one number, for example 1.0")
    # float() would also accept "nan", "infinity" and "1_0".
    if not _NUMBER.fullmatch(stripped):
        refuse(REWARD_TEXT, f"{quote(stripped)} is not a finite number", "write one number, for example 1.0")
    value = require_number(float(stripped), file=REWARD_TEXT, key="reward")
    return clamp_to_range(value, allowed, file=REWARD_TEXT, key=None)


def _load_document(text: str) -> dict[str, Any]:
    """Parse `reward.json`. Raise `RewardFileError` if it is no JSON object."""
    if not text.strip():
        refuse(REWARD_JSON, "is empty", 'write an object, for example {"reward": 1.0}')
    document = load_json(text, REWARD_JSON)
    if not isinstance(document, dict):
        refuse(REWARD_JSON, f"{quote(document)} is not an object", 'write {"reward": <number>}')
    return document
