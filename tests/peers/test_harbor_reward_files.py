"""Reward files drawn at random, read by Harbor's verifier and by ours, without a sandbox."""

from __future__ import annotations

import json
import random
import subprocess
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from support.embedded import chance_of_this_run
from support.harbor_peer import PROGRAMS, peer

from benchflow.errors import VerifierError
from benchflow.planes.reward.script_reward import parse_rewards

pytestmark = pytest.mark.peers

COUNT = 2000

TEXTS = ("1", "0", "0.25", "1.0\n", "  .5\t\n", "2.5e-1", "+1", "-0", "1e-400", "1.5", "-0.1", "nan", "inf", "1e400")
TEXTS += ("", "\n", "pass", "1 2", "0,5", "1_0", "٠", "0x1", "1.0.0", "true", "{}", "1\n1")
NUMBERS = ("0", "1", "0.5", "0.125", "1.0", "-0.0", "1e-3", "1e-400")
ODD_VALUES = ("2", "-1", "1e300", "NaN", "Infinity", "1e400", "true", "null", '"1"', '"text"', "[]", "[1]")
ODD_VALUES += ('[{"a": 1}]', "{}", '{"a": 1}', '{"a": "b"}', "10000000000000000000000")
KEYS = ("reward", "accuracy", "pass@1", "two words", "ünï", "score")
OURS = ("metrics", "items", "events", "space", "granularity", "metadata")
"""Keys with a meaning of ours: a document that has one is no longer Harbor's format."""
STRUCTURED = ("details", "details_path", "rubric", "reason", "reasons", "evidence", "artifacts", "errors", "aggregate")
STRUCTURED += ("regressions", "participants", "winner", "raw", "debug")
"""Keys that we keep as metadata: a number there is a reward for Harbor, and anything else a fault of the file."""


def test_reward_files_are_read_as_harbor_reads_them(tmp_path: Path) -> None:
    chance = chance_of_this_run()
    drawn = {f"{number:05}": draw(chance) for number in range(COUNT)}
    for name, files in drawn.items():
        (tmp_path / name / "verifier").mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / name / "verifier" / file).write_text(text)
    subprocess.run([peer("harbor"), PROGRAMS / "read_files.py", tmp_path], check=True)
    readings = json.loads((tmp_path / "readings.json").read_text())
    ours = {name: read(tmp_path / name / "verifier") for name in drawn}
    wrong = [
        f"{files}: Harbor reads {readings[name]}, we {ours[name]}: {told}"
        for name, files in drawn.items()
        if (told := difference(files, readings[name], ours[name]))
    ]
    assert not wrong, f"{len(wrong)} of {COUNT}\n" + "\n".join(wrong[:40])
    both = [name for name in drawn if readings[name] and isinstance(ours[name], dict)]
    assert len(both) > COUNT // 10


def draw(chance: random.Random) -> dict[str, str]:
    """Return the reward files of a verifier: mostly what a program would write."""
    files = {}
    if chance.random() < 0.3:
        files["reward.txt"] = chance.choice(TEXTS)
    if not files or chance.random() < 0.3:
        members = [(chance.choice(KEYS), number_or_odd(chance, 0.15)) for _ in range(chance.choice((0, 1, 1, 2, 3, 4)))]
        if chance.random() < 0.2:
            members.append((chance.choice(OURS + STRUCTURED), number_or_odd(chance, 0.8)))
        chance.shuffle(members)
        text = "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members) + "}"
        files["reward.json"] = text if chance.random() < 0.93 else chance.choice(("", "{", "[0.5]", "0.5", f"{text}x"))
    return files


def number_or_odd(chance: random.Random, odd: float) -> str:
    return chance.choice(ODD_VALUES if chance.random() < odd else NUMBERS)


def read(verifier: Path) -> dict[str, float] | str:
    """Return our rewards, or how we refuse the files."""
    try:
        return parse_rewards(verifier, exit_code=0, now=datetime.now(UTC), is_split=True).rewards
    except VerifierError as error:
        return f"{type(error).__name__}: {error.message}"


def difference(files: dict[str, str], theirs: dict[str, float] | None, ours: dict[str, float] | str) -> str | None:
    """Return how the readings differ where they must not; None where they agree, or have a reason to differ."""
    members = members_of(files)
    structured = {key for key, _ in members if key in OURS + STRUCTURED}
    if structured:
        numbers = {key: value for key, value in members if key not in structured and is_number(value)}
        theirs = numbers if len(numbers) == len(members) - len(structured) else None
    if isinstance(ours, str):
        return None if theirs is None or reason_to_refuse(files, theirs) else "we refuse what has no fault"
    if theirs is None:
        return "we read what Harbor refuses"
    scalar = {"reward": next(iter(theirs.values()))} if len(theirs) == 1 else {}
    if len(theirs) > 1 and "reward" not in theirs and "reward.txt" in files:
        # Of several keys the scalar is what reward.txt says, which Harbor does not look at (docs/rewards.md).
        scalar = {"reward": float(files["reward.txt"])}
    if ours.keys() not in (theirs.keys(), theirs.keys() | scalar.keys()) and not {*OURS} & {*dict(members_of(files))}:
        return "other keys"
    wanted = scalar | theirs
    return next((f"{key} differs" for key in wanted.keys() & ours.keys() if abs(wanted[key] - ours[key]) > 1e-9), None)


def reason_to_refuse(files: dict[str, str], theirs: dict[str, float]) -> str | None:
    """Return which of our documented rules a file breaks that Harbor reads; None for none."""
    members = members_of(files)
    names = [key for key, _ in members]
    text = files.get("reward.txt", "")
    if not theirs:
        return "a file without a number is no measurement"
    if any(isinstance(value, float) and not isfinite(value) for _, value in members):
        return "NaN and infinity are nowhere in JSON, nor is what overflows to them"
    if not 0 <= theirs.get("reward", 0) <= 1:
        return "a reward lies in the verifier's range"
    if len(theirs) == 1 and not 0 <= next(iter(theirs.values())) <= 1:
        return "the only key is the reward, which lies in the verifier's range"
    if len({*names}) < len(names):
        return "a key that is there twice has two values"
    if any(isinstance(value, bool) for _, value in members):
        return "a boolean is no measurement"
    if any(key in OURS for key in names):
        return "the key has another meaning with us"
    if "reward.json" in files and "reward.txt" in files:
        return "both files have to be rewards, and to agree"
    if not text.strip().isascii() or "_" in text:
        return "a number is written in ASCII, without underscores"
    return None


def members_of(files: dict[str, str]) -> list[tuple[str, Any]]:
    """Return the members of `reward.json` in their order, also those that are there twice; none if it is no object."""
    try:
        found = json.loads(files.get("reward.json", ""), object_pairs_hook=Pairs)
    except ValueError:
        return []
    return list(found) if isinstance(found, Pairs) else []


class Pairs(list[tuple[str, Any]]):
    """An object's members."""


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
