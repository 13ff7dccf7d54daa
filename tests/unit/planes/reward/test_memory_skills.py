"""Which skills were used, updated and left alone, read off what agents report and what lay in their directories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.memory_cases import HOME, SKILLS, capture, file, node

from benchflow.contracts.reward import VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.memory import MemoryCapture, Skills
from benchflow.planes.reward.memory.skills import find_skills


def skill(name: str | None, directory: str, body: str = "Do it.") -> dict[str, str]:
    front = f"---\nname: {name}\ndescription: x\n---\n" if name else ""
    return {f"{SKILLS}/{directory}/SKILL.md": f"{front}{body}\n"}


THREE = {**skill("pdf-forms", "pdf"), **skill(None, "charts"), **skill("mail", "mail")}
THREE[f"{SKILLS}/pdf/scripts/fill.py"] = "print()\n"
INSTALLED = capture(THREE, [SKILLS])


def read(path: str, **other: Any) -> dict[str, Any]:
    meta = {"claudeCode": {"toolName": "Read"}}
    call = {"tool_call_id": path, "kind": "read", "title": f"Read {path}", "status": "completed", "content": []}
    return {"type": "tool_call", "raw_input": {"file_path": path}, "meta": meta} | call | other


def run(command: str) -> dict[str, Any]:
    call = {"tool_call_id": command, "kind": "execute", "title": command, "status": "completed", "content": []}
    return {"type": "tool_call", "name": "bash", "raw_input": {"command": command}} | call


def invoke(tool: str, given: dict[str, Any]) -> dict[str, Any]:
    call = {"tool_call_id": f"{tool}{given}", "kind": "other", "title": tool, "status": "completed", "content": []}
    return {"type": "tool_call", "name": tool, "raw_input": given} | call


async def scored(directory: Path, events: list[dict[str, Any]], **options: Any) -> VerifyResult:
    return await Skills(**options).score(node(directory, INSTALLED, INSTALLED, events))


# --- used


@pytest.mark.parametrize(
    ("event", "used"),
    [
        (read(f"{SKILLS}/pdf/SKILL.md"), ["pdf-forms"]),
        (read(f"{SKILLS}/charts/SKILL.md"), ["charts"]),
        (run("cat ~/.claude/skills/pdf/SKILL.md | head -n 5"), ["pdf-forms"]),
        (run('cat "$HOME/.claude/skills/mail/SKILL.md"'), ["mail"]),
        (run("cd ~/.claude/skills/pdf && python3 scripts/fill.py a.pdf"), ["pdf-forms"]),
        (run(f"cat {SKILLS}/*/SKILL.md"), ["charts", "mail", "pdf-forms"]),
        (run(f"cat {SKILLS}/m[a]il/SKILL.md {SKILLS}/charts/SKILL.md"), ["charts", "mail"]),
        (invoke("Skill", {"skill": "pdf-forms", "args": "a.pdf"}), ["pdf-forms"]),
        (invoke("Skill", {"skill": "pdf"}), ["pdf-forms"]),
        (invoke("Skill", {"command": "/office:mail now"}), ["mail"]),
        (invoke("activate_skill", {"name": "charts"}), ["charts"]),
        (invoke("use_skill", {"skill_name": "built-in"}), ["built-in"]),
        (run(f"ls {SKILLS} {SKILLS}/pdf"), []),
        (run(f"echo more >>{SKILLS}/pdf/SKILL.md"), []),
        (read(f"{SKILLS}/pdf-other/SKILL.md"), []),
        (read(f"{SKILLS}/pdf/SKILL.md", status="failed"), []),
        (read("/app/skills/pdf/SKILL.md"), []),
        (invoke("create_skill", {"name": "charts"}), []),
        (invoke("Skill", {}), []),
        ({"type": "agent_message", "text": f"I used {SKILLS}/pdf/SKILL.md"}, []),
    ],
)
async def test_a_skill_is_used_by_who_reads_it_or_calls_it(
    tmp_path: Path, event: dict[str, Any], used: list[str]
) -> None:
    result = await scored(tmp_path, [event], expected=["mail"])
    assert sorted(result.events[0].meta["used"]) == used
    assert all(seqs == [0] for seqs in result.events[0].meta["used"].values())


PDF, MAIL, CHARTS = (read(f"{SKILLS}/{name}/SKILL.md") for name in ("pdf", "mail", "charts"))


@pytest.mark.parametrize(
    ("expected", "events", "items"),
    [
        (["pdf"], [PDF], {"recall": 1, "precision": 1, "f1": 1}),
        (["pdf-forms", "mail"], [PDF], {"recall": 0.5, "precision": 1, "f1": 2 / 3}),
        (["pdf"], [PDF, MAIL], {"recall": 1, "precision": 0.5, "f1": 2 / 3}),
        (["pdf", "mail"], [CHARTS], {"recall": 0, "precision": 0, "f1": 0}),
        (["pdf"], [], {"recall": 0, "f1": 0}),
        ([], [], {"f1": 1}),
        ([], [PDF], {"precision": 0, "f1": 0}),
    ],
)
async def test_recall_and_precision_are_told_as_far_as_there_are_any(
    tmp_path: Path, expected: list[str], events: list[dict[str, Any]], items: dict[str, float]
) -> None:
    result = await scored(tmp_path, events, expected=expected)
    assert result.items == pytest.approx(items) and result.reward == pytest.approx(items["f1"])
    assert result.space == "memory" and result.events[0].value == result.reward and not result.warnings


async def test_an_expected_skill_that_was_never_there_is_a_warning(tmp_path: Path) -> None:
    result = await scored(tmp_path, [PDF], expected=["pdf", "absent"])
    assert result.items["recall"] == 0.5 and "'absent' is in none of" in result.warnings[0]


async def test_a_skill_that_the_agent_made_can_be_used(tmp_path: Path) -> None:
    after = capture(THREE | skill("new", "new"), [SKILLS])
    events = [read(f"{SKILLS}/new/SKILL.md")]
    result = await Skills(expected=("new",)).score(node(tmp_path, INSTALLED, after, events))
    assert result.reward == 1


# --- changed


CHANGED = capture(
    {**skill("pdf-forms", "pdf", "Better."), **skill(None, "charts"), **skill("new", "new")}
    | {f"{SKILLS}/pdf/scripts/fill.py": "print()\n", f"{SKILLS}/notes.md": "of no skill"},
    [SKILLS],
)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"updated": ["pdf"]}, 1),
        ({"updated": ["new"]}, 1),
        ({"updated": ["charts"]}, 0),
        ({"updated": ["mail"]}, 0),
        ({"updated": ["nothing"]}, 0),
        ({"updated": ["pdf-forms", "charts"]}, 0.5),
        ({"unchanged": ["charts"]}, 1),
        ({"unchanged": ["mail", "charts"]}, 0.5),
        ({"unchanged": ["pdf", "new"]}, 0),
        ({"updated": ["pdf"], "unchanged": ["mail"]}, 0.5),
        ({"updated": ["pdf"], "unchanged": ["charts"], "expected": ["mail"]}, 2 / 3),
    ],
)
async def test_skills_are_updated_or_left_alone(tmp_path: Path, options: dict[str, Any], value: float) -> None:
    result = await Skills(**options).score(node(tmp_path, INSTALLED, CHANGED))
    assert result.reward == pytest.approx(value)
    changed = {change["path"].removeprefix(f"{SKILLS}/") for change in result.events[0].meta["changes"]}
    assert changed == {"pdf/SKILL.md", "mail/SKILL.md", "new/SKILL.md"}


# --- names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\nname: \n---\n",
        "---\nname: [a]\n---\n",
        "---\n{: \n---\n",
        "---\nname: a",
        "--- \n" + "[" * 9999 + "\n---\n",
    ],
)
def test_a_skill_without_a_name_is_called_as_its_directory(text: str) -> None:
    found = find_skills(capture({f"{SKILLS}/deep/er/SKILL.md": text}, [SKILLS]), [SKILLS])
    assert [(one.directory, one.name) for one in found.values()] == [(f"{SKILLS}/deep/er", "er")]


@pytest.mark.parametrize(("line", "name"), [("name: a b # c", "a b"), ("name: 'x: y'", "x: y"), ("name:   z", "z")])
def test_a_skill_is_called_as_it_says(line: str, name: str) -> None:
    text = f"---\ndescription: >\n  long\n{line}\nallowed: [x]\n---\nname: no\n"
    found = find_skills(capture({f"{SKILLS}/d/SKILL.md": text}, [SKILLS]), [SKILLS])
    assert found[f"{SKILLS}/d"].name == name and found[f"{SKILLS}/d"].names == {name, "d"}


def test_only_files_called_so_below_the_directories_make_skills() -> None:
    files = {f"{HOME}/x/SKILL.md": "", f"{SKILLS}/a/skill.md": "", f"{SKILLS}/l/SKILL.md": file("", link="/x")}
    assert find_skills(capture(files), [SKILLS]) == {}


# --- what cannot be told


@pytest.mark.parametrize(
    ("before", "options", "said"),
    [
        (capture({}, []), {"expected": ["a"]}, "not known where this agent looks"),
        (capture(THREE, [SKILLS], is_complete=False), {"updated": ["pdf"]}, "more files than are captured"),
        (INSTALLED, {"unchanged": ["nothing"]}, "in none of the captured"),
        (INSTALLED, {"expected": ["pdf"], "directories": ["/opt/skills"]}, "was not captured"),
        (capture({SKILLS: file("", text=None, link="/opt")}, [SKILLS]), {"expected": ["pdf"]}, "symbolic link"),
    ],
)
async def test_what_cannot_be_told_is_an_error_and_no_number(
    tmp_path: Path, before: MemoryCapture, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RewardFuncError, match=said) as raised:
        await Skills(**options).score(node(tmp_path, before, before))
    assert raised.value.remedy


async def test_what_the_oracle_used_is_not_known_and_what_it_changed_is(tmp_path: Path) -> None:
    events = [{"type": "oracle", "command": "solve.sh", "return_code": 0, "stdout": ""}]
    rollout = node(tmp_path, INSTALLED, CHANGED, events)
    assert (await Skills(updated=("pdf",)).score(rollout)).reward == 1
    with pytest.raises(RewardFuncError, match="oracle"):
        await Skills(expected=("pdf",)).score(rollout)


@pytest.mark.parametrize("options", [{}, {"expected": "pdf"}, {"updated": ["a"], "unchanged": ["a"]}, {"wrong": 1}])
def test_options_that_ask_nothing_or_what_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Skills(**options)


async def test_a_trajectory_that_was_made_to_take_long_does_not(tmp_path: Path) -> None:
    many = capture(THREE | {f"{SKILLS}/pdf/{i}/{'a' * 200}": "x" for i in range(1000)}, [SKILLS])
    events = [run(f"cat {SKILLS}/**/{'*a' * 60}{i}") for i in range(20)]
    began = time.process_time()
    await Skills(expected=("pdf",)).score(node(tmp_path, many, many, events))
    assert time.process_time() - began < 60
