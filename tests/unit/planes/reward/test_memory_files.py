"""What changed in a memory, and what was to change in it."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.memory_cases import HOME, capture, file, node

from benchflow.contracts.reward import RewardFuncSpec, RewardTable
from benchflow.contracts.task import StepConfig, Task
from benchflow.contracts.verifier import MemoryConfig, VerifierConfig
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.memory import MemoryCapture, MemoryFiles, diff_memory, list_directories, make_memory_rows
from benchflow.planes.reward.memory.memory_difference import MAX_DIFF, MAX_LINES
from benchflow.planes.reward.memory.path_patterns import make_absolute, matches

# --- differences


def random_tree(chance: random.Random) -> dict[str, str]:
    names = [f"{directory}/{name}" for directory in ("a", "a/b", "c") for name in "xyz"]
    lines = [chance.choice(["one", "two", "+three", "-four", "", "@@ -1 +1 @@"]) for _ in range(6)]
    return {name: "\n".join(chance.sample(lines, 3)) for name in chance.sample(names, chance.randint(0, 9))}


@pytest.mark.parametrize("seed", range(20))
def test_what_was_added_removed_and_changed_leads_from_one_tree_to_the_other(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        before, after = capture(random_tree(chance)), capture(random_tree(chance))
        changes = diff_memory(before, after)
        files = dict(before.files)
        for change in changes:
            assert (change.path in before.files) == (change.kind != "added")
            assert (change.path in after.files) == (change.kind != "removed")
            if change.kind == "removed":
                del files[change.path]
            else:
                files[change.path] = after.files[change.path]
            assert patched(before, change.path, change.diff) == lines_of(after, change.path)
        assert files == after.files
        assert [change.path for change in changes] == sorted(change.path for change in changes)
        assert {change.path for change in diff_memory(after, before)} == {change.path for change in changes}
        assert diff_memory(before, before) == []


UNENDED = "\0"


def lines_of(told: MemoryCapture, path: str) -> list[str]:
    text = (told.files[path].text or "") if path in told.files else ""
    *lines, last = text.split("\n")
    return [*lines, f"{last}{UNENDED}"] if last else lines


def patched(before: MemoryCapture, path: str, diff: str | None) -> list[str]:
    """The lines that a unified difference makes of the old ones."""
    assert diff is not None
    old, new, at = lines_of(before, path), list[str](), 0
    for line in diff.replace("\n\\ No newline at end of file", UNENDED).split("\n")[2:]:
        if hunk := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\S+ @@", line):
            begin = int(hunk[1]) - (hunk[2] != "0")
            new += old[at:begin]
            at = begin
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [] if line.startswith("-") else [line[1:]]
            at += 1
    return new + old[at:]


def test_a_file_that_became_a_link_has_changed() -> None:
    link = file("", sha256="0" * 64, size=1, text=None, link="x")
    (change,) = diff_memory(capture({"m": "x"}), capture({"m": link}))
    assert change.kind == "changed" and change.diff is None


def test_long_texts_and_long_differences_are_cut_and_take_no_time() -> None:
    chance = random.Random(1)
    old, new = ("\n".join(str(chance.randint(0, 100)) for _ in range(MAX_LINES)) for _ in range(2))
    began = time.process_time()
    (change,) = diff_memory(capture({"m": old}), capture({"m": new}))
    assert time.process_time() - began < 60
    assert change.diff is not None and change.diff.endswith("more characters]") and len(change.diff) < MAX_DIFF + 50
    (change,) = diff_memory(capture({"m": old}), capture({"m": "\n" * (MAX_LINES + 1)}))
    assert change.kind == "changed" and change.diff is None


# --- places


@pytest.mark.parametrize(
    ("glob", "fits", "fits_not"),
    [
        ("/m/*.md", ["/m/a.md", "/m/.md"], ["/m/a/b.md", "/m/a.mdx", "/m"]),
        ("/m/**/*.md", ["/m/a.md", "/m/a/b/c.md"], ["/n/a.md", "/m/a.txt"]),
        ("/m/**", ["/m", "/m/a", "/m/a/b\nc"], ["/mm", "/mm/a"]),
        ("/m/a?", ["/m/ab"], ["/m/a", "/m/a/"]),
        ("/m/[ab].(x)", ["/m/a.(x)"], ["/m/c.(x)", "/m/[ab].(x)"]),
        ("/**/a/**/b", ["/a/b", "/x/a/y/z/b", "/a/a/b/b"], ["/b/a", "/x/ab/b"]),
    ],
)
def test_globs_fit_within_names_and_across_directories(glob: str, fits: list[str], fits_not: list[str]) -> None:
    assert [path for path in fits + fits_not if matches(path, glob)] == fits


def test_a_glob_that_was_made_to_take_long_does_not() -> None:
    began = time.process_time()
    assert not matches("/a" * 500 + "/" + "a" * 255, "/**/a" * 100 + "/" + "*a" * 100 + "b")
    assert time.process_time() - began < 60


def test_places_are_the_homes_the_workspaces_or_absolute() -> None:
    places = {
        "~/m/": f"{HOME}/m",
        "~": HOME,
        "{home}/m": f"{HOME}/m",
        "m/../n": "/app/n",
        "//x//y": "/x/y",
        "~a": "/app/~a",
    }
    assert {place: make_absolute(place, home=HOME, workspace="/app") for place in places} == places


# --- the function


BEFORE = capture({"m/log.md": "one\n", "m/keep.md": "keep", "m/old.md": "old"})
AFTER = capture({"m/log.md": "one\nlearned\n", "m/keep.md": "keep", "m/new/a.md": "new"})


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"changed": ["~/m/log.md"]}, 1),
        ({"changed": ["~/m/new/*"]}, 1),
        ({"changed": ["~/m/old.md"]}, 0),
        ({"changed": ["~/m/keep.md", "~/m/log.md"]}, 0.5),
        ({"unchanged": ["~/m/keep.md"]}, 1),
        ({"unchanged": ["~/m/**"]}, 0),
        ({"unchanged": ["~/m/old.md"]}, 0),
        ({"contains": {"~/m/log.md": ["learned", "one"]}}, 1),
        ({"contains": {"~/m/log.md": ["learned", "forgot"]}}, 0.5),
        ({"contains": {"~/m/old.md": ["old"]}}, 0),
        ({"absent": ["~/m/old.md"]}, 1),
        ({"absent": ["~/m/**/*.md"]}, 0),
        ({"changed": ["~/m/log.md"], "unchanged": ["~/m/keep.md"], "absent": ["~/m/log.md"]}, 2 / 3),
    ],
)
async def test_the_share_of_claims_that_hold_is_the_value(
    tmp_path: Path, options: dict[str, Any], value: float
) -> None:
    result = await MemoryFiles(**options).score(node(tmp_path, BEFORE, AFTER))
    assert result.reward == pytest.approx(value)
    (event,) = result.events
    assert (event.space, event.granularity, event.value) == ("memory", "terminal", result.reward)
    assert set(result.items) == set(options)
    assert sum(claim["holds"] for claim in event.meta["claims"]) == pytest.approx(value * len(event.meta["claims"]))


async def test_the_evidence_shows_what_has_changed(tmp_path: Path) -> None:
    result = await MemoryFiles(changed=("~/m/log.md",)).score(node(tmp_path, BEFORE, AFTER))
    (claim,) = result.events[0].meta["claims"]
    assert claim["changes"][0]["path"] == f"{HOME}/m/log.md" and "+learned" in claim["changes"][0]["diff"]


LINKED = {"m": file("", text=None, link="/data")}


@pytest.mark.parametrize(
    ("before", "after", "options", "said"),
    [
        (capture({}, ["/skills"]), AFTER, {"changed": ["~/m/*"]}, "was not captured"),
        (BEFORE, capture({}, is_complete=False), {"absent": ["~/m/*"]}, "more files than are captured"),
        (BEFORE, capture(LINKED), {"contains": {"~/m/log.md": ["x"]}}, "symbolic link"),
        (capture(LINKED), AFTER, {"unchanged": ["~/m/*"]}, "symbolic link"),
        (BEFORE, capture({"m/log.md": file("", text=None)}), {"contains": {"~/m/log.md": ["x"]}}, "not known"),
        (BEFORE, AFTER, {"unchanged": ["/etc/*.conf"], "directories": ["~/m"]}, "/etc was not captured"),
    ],
)
async def test_what_cannot_be_told_is_an_error_and_no_number(
    tmp_path: Path, before: MemoryCapture, after: MemoryCapture, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RewardFuncError, match=said) as raised:
        await MemoryFiles(**options).score(node(tmp_path, before, after))
    assert raised.value.remedy


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"contains": {"~/a": []}}, {"changed": ["/**"]}, {"changed": ["~/**"]}, {"changed": [""]}),
        *({"absent": "~/x"}, {"changed": ["~/m"], "directories": ["/"]}, {"changed": ["~/m"], "wrong": 1}),
        {"contains": {"~/m": [""]}},
    ],
)
def test_options_that_ask_nothing_or_everything_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MemoryFiles(**options)


# --- what a task declares


def task(*rows: RewardFuncSpec, expected: list[str] | None = None) -> Task:
    memory = MemoryConfig(expected_skills=expected) if expected is not None else None
    table = RewardTable(funcs=list(rows)) if rows else None
    verifier = VerifierConfig(memory=memory)
    return Task(
        name="t", layout="native", config_file="task.md", instruction="", reward=table, verifier=verifier,
        steps=[StepConfig(name="one"), StepConfig(name="two", verifier=verifier)] if expected == ["steps"] else [],
    )  # fmt: skip


def test_only_what_reward_functions_read_is_captured() -> None:
    files = RewardFuncSpec(type="memory-files", name="m", options={"changed": ["~/m/*.md", "notes.md"]})
    skills = RewardFuncSpec(type="skills", name="s", options={"expected": ["a"]})
    named = RewardFuncSpec(type="skills", name="n", options={"expected": ["a"], "directories": ["/skills", "~/m"]})
    other = RewardFuncSpec(type="string-match", name="o", options={"expected": "x"})
    assert list_directories(task(), ["~/.claude/skills"]) == ()
    assert list_directories(task(files), ["~/.claude/skills"]) == ("~/m", "notes.md")
    assert list_directories(task(other, files, skills, named), ["~/k"]) == ("~/m", "notes.md", "~/k", "/skills")
    assert list_directories(task(expected=["a"]), ["~/k"]) == ("~/k",)
    assert list_directories(task(expected=[]), ["~/k"]) == ()


def test_the_published_key_stands_for_a_row() -> None:
    assert make_memory_rows(task()) == make_memory_rows(task(expected=[])) == []
    row = RewardFuncSpec(type="skills", name="skills", options={"expected": ["a"]})
    assert make_memory_rows(task(expected=["a"])) == [row]
    assert make_memory_rows(task(row, expected=["a"])) == [row.model_copy(update={"name": "expected-skills"})]
    assert make_memory_rows(task(expected=["steps"]), "one") == []
    assert make_memory_rows(task(expected=["steps"]), "two")[0].options == {"expected": ["steps"]}


@pytest.mark.parametrize(
    ("directory", "complaint"),
    [
        ("/", "too wide"),
        ("//", "too wide"),
        ("/**/notes.md", "too wide"),
        ("/*", "too wide"),
        ("/proc", "too wide"),
        ("/proc/1/root", "too wide"),
        ("..", "must not contain"),
        ("../..", "must not contain"),
        ("~/..", "must not contain"),
        ("notes/../../etc", "must not contain"),
    ],
)
def test_directories_that_would_be_captured_too_widely_are_refused(directory: str, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        MemoryFiles(absent=("x",), directories=(directory,))


@pytest.mark.parametrize("directory", ["notes", ".", "~/notes", "/srv/notes/**", "/procedures", "{workspace}/..notes"])
def test_directories_of_every_other_form_are_taken(directory: str) -> None:
    assert MemoryFiles(absent=("x",), directories=(directory,)).directories == (directory,)
