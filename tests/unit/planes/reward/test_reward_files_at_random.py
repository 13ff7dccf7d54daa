"""Files that may state a reward, most of them spoilt: no crash, and no number that is not in them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import AggregatePolicy, VerifyResult
from benchflow.errors import VerifierError
from benchflow.planes.reward import parse_rewards
from benchflow.planes.reward.ors import read_episode

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 40))]
FILES = 250
"""Of one seed; as many of them are of each of the kinds."""

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_ODD = [
    *("NaN", "-Infinity", "1e999", "true", "null", '"1.0"', "-0.0", "1e-320", "1" + "0" * 400, "01", "1_0", "0x1"),
    *("[]", "{}", "2", "-1", "1.0000000001", "0.5", "1e0", "٣", ".5", "+1", "1,5", '{"reward": 1}', '"\\ud800"'),
]
_JUNK = [
    '"',
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\\",
    "\n",
    " ",
    "0",
    "1",
    "e",
    "-",
    "\0",
    "é",
    '"reward": 1,',
    '"reward": 0}',
]


def _share(dice: random.Random) -> float:
    return dice.choice([0, 1, 0.5, round(dice.random(), 3), dice.random()])


def _event(dice: random.Random) -> dict[str, Any]:
    kind: dict[str, Any] = dice.choice([{"type": "process"}, {"granularity": "step"}, {"type": "terminal"}, {}])
    return {"value": _share(dice), **kind, "step_index": dice.randrange(4), "meta": {"n": dice.random()}}


def _metrics(dice: random.Random) -> dict[str, float]:
    return {f"m{number}": round(dice.uniform(0, 1), 4) for number in range(dice.randrange(4))}


def reward_json(dice: random.Random) -> str:
    document: dict[str, Any] = {"metrics": _metrics(dice), "events": [_event(dice) for _ in range(dice.randrange(3))]}
    if dice.random() < 0.6:
        document["reward"] = _share(dice)
    return json.dumps(document, indent=dice.choice([None, 1]))


def reward_text(dice: random.Random) -> str:
    return dice.choice([f"{_share(dice)}\n", f" {_share(dice):.3f}", "1e-3", ".5"])


def episode(dice: random.Random) -> str:
    last = _share(dice)

    def output(reward: Any, finished: bool) -> dict[str, Any]:
        return {"ok": True, "output": {"blocks": [], "metadata": None, "reward": reward, "finished": finished}}

    end: dict[str, Any] = dice.choice(
        [
            output(last, True),
            {"reward": last, "is_valid": True, "metadata": {"items": _metrics(dice), "events": [], "error": None}},
            {"ts": "2026-01-01T00:00:00Z", "type": "terminal", "source": "x", "value": last, "space": "output"},
        ]
    )
    steps = [output(dice.choice([None, _share(dice)]), False) for _ in range(dice.randrange(4))]
    records = [*steps, *([{"ok": False, "error": "x"}] if dice.random() < 0.2 else []), end]
    return json.dumps(records) if dice.random() < 0.3 else "\n".join(map(json.dumps, records))


Make = Callable[[random.Random], str]
KINDS: list[tuple[Make, str]] = [(reward_json, "reward.json"), (reward_text, "reward.txt"), (episode, "episode")]


def spoil(text: str, dice: random.Random) -> bytes:
    """The text, a few times changed at random; sometimes something else altogether."""
    if dice.random() < 0.05:
        return dice.randbytes(dice.randrange(200))
    for _ in range(dice.choice([0, 0, 1, 1, 2, 4])):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        numbers = list(re.finditer(_NUMBER, text))
        match dice.randrange(6):
            case 0 if numbers:
                found = dice.choice(numbers)
                text = text[: found.start()] + dice.choice(_ODD) + text[found.end() :]
            case 1:
                text = text[:at] + text[min(end, at + 9) :]
            case 2:
                text = text[:end] + text[at:end] + text[end:]
            case 3:
                text = text[:at]
            case 4:
                text = text[:at] + dice.choice(_ODD) + text[at:]
            case _:
                text = text[:at] + dice.choice(_JUNK) + text[at:]
    raw = bytearray(text.encode())
    if raw and dice.random() < 0.1:
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return bytes(raw)


def stated(raw: bytes, name: str) -> list[float]:
    """The numbers that stand behind a name, as anybody would read them."""
    text = raw.decode("utf-8", "replace")
    return [float(found) for found in re.findall(rf'"{re.escape(name)}"\s*:\s*({_NUMBER})', text)]


def is_among(value: float, numbers: list[float]) -> bool:
    return any(abs(value - number) <= 1.001e-9 for number in numbers)


def read(make: Make, file: Path, dice: random.Random) -> VerifyResult | None:
    """The result, None for an error that says what is wrong. Any other exception is a crash."""
    try:
        if make is episode:
            form: Any = dice.choice(["json", "jsonl", "auto"])
            return read_episode(
                {"episode": ConfinedPath(file.parent, file.name)}, form, reward_range=(0.0, 1.0), now=NOW
            )
        policy = dice.choice([None, AggregatePolicy(method="mean")])
        return parse_rewards(file.parent, exit_code=0, aggregate=policy, now=NOW)
    except VerifierError as error:
        assert error.remedy and error.file, error
        return None


def expect_nothing_made_up(make: Make, result: VerifyResult, raw: bytes) -> None:
    if make is episode:
        rewards = stated(raw, "reward") + stated(raw, "value")
    elif make is reward_text:
        rewards = [float(raw)]
    else:
        # Where none is stated, the metrics make it.
        mean = sum(result.items.values()) / max(len(result.items), 1)
        rewards = [json.loads(raw).get("reward", mean)]
    assert result.reward is not None and is_among(result.reward, rewards), (result, raw)
    for name, value in result.items.items():
        assert is_among(value, stated(raw, name)), (result, raw)
    for event in result.events:
        assert is_among(event.value, [*rewards, *stated(raw, "value")]), (result, raw)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_file_crashes_the_reader_and_every_number_is_one_that_it_states(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    measured = 0
    for index in range(FILES):
        make, name = KINDS[index % len(KINDS)]
        raw = spoil(make(dice), dice)
        file = tmp_path / name
        file.write_bytes(raw)
        result = read(make, file, dice)
        if result is not None:
            measured += 1
            expect_nothing_made_up(make, result, raw)
        file.unlink()
    # Neither are all of them spoilt beyond use, nor is any spoilt one taken for whole.
    assert FILES * 0.2 < measured < FILES * 0.8
