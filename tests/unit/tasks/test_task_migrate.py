"""A migrated task means the same, keeps everything, and is migrated as a whole or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.task import Task
from benchflow.errors import TaskError
from benchflow.tasks import check, digest_tree, load_task, migrate_task

Builder = Callable[..., Path]


def meaning(task: Task) -> dict[str, Any]:
    """Everything but where the parts lie."""
    data = task.model_dump(exclude={"layout", "config_file", "verifier_dir", "oracle_dir"})
    for files in data["step_files"].values():
        files["verifier_dir"] = files["oracle_dir"] = None
    return data


FULL = """\
# licence: one
schema_version = "1.3"
source = "set"
artifacts = ["/a", { source = "/b", destination = "c" }]
flavour = { sweet = true, made = 2026-01-31 }  # two

[task]
name = "org/full"
authors = ["Ada"]

[metadata]
text = "# not a comment: yes"
multi = '''
# neither
'''
since = 2026-01-31T10:00:00Z
on = "off"

[agent]
timeout_sec = 30.5
prompt_prefix = "Line one.\\nLine two: \\"quoted\\""

[verifier]
reward_range = [-1.0, 1.0]
env = { MODE = "0755", YES = "yes" }

[environment]
memory = "2G"
allow_internet = false
tpu = { type = "v6e" }
env = { PORT = 8080, DEBUG = true }
[[environment.setup_commands]]
command = "make\\tdata"
host_lock = "x"

[solution]
TOKEN = "${TOKEN}"
"""


def test_a_migrated_task_means_the_same(split: Builder) -> None:
    root = split(FULL, {"solution/solve.sh": "#!/bin/sh\ncp /solution/x /app\n"})
    before = load_task(root)
    report = migrate_task(root)
    after = load_task(root)
    assert (after.layout, after.verifier_dir, after.oracle_dir) == ("native", "verifier", "oracle")
    assert meaning(after) == meaning(before)
    assert after.compat_extra == {
        "flavour": {"sweet": True, "made": "2026-01-31"},
        "sandbox.tpu": {"type": "v6e"},
        "sandbox.setup_commands[0].host_lock": "x",
    }
    assert report.kept == ["flavour", "sandbox.tpu", "sandbox.setup_commands[0].host_lock"]
    assert report.moved == [
        ("task.toml", "task.md"),
        ("instruction.md", "task.md"),
        ("tests", "verifier"),
        ("solution", "oracle"),
    ]
    starts, names = report.warnings
    assert starts.startswith("neither the task nor its Dockerfile names a workspace")
    assert names == "oracle/solve.sh names /solution; in a native task the oracle is at /oracle"


@pytest.mark.parametrize(
    ("user", "config", "said"),
    [
        ("three", "", ["the Dockerfile's USER three ran"]),
        ("three", '[verifier]\nuser = "root"\n', []),
        ("root", "", []),
        ("root", "[agent]\nuser = 1\n", ["agent.user ran"]),
        ("root", '[[steps]]\nname = "a"\n[steps.agent]\nuser = "x"\n', ["agent.user ran"]),
    ],
)
def test_who_ran_the_scripts_is_told(split: Builder, user: str, config: str, said: list[str]) -> None:
    files = {"environment/Dockerfile": f"FROM scratch\nWORKDIR /app\nUSER one:two\nUSER {user}\n"}
    if "steps" in config:
        files["steps/a/instruction.md"] = "Do it."
    told = migrate_task(split(config, files)).warnings
    assert len(told) == len(said) and all(map(str.startswith, told, said)), told


def test_comments_are_kept(split: Builder) -> None:
    root = split(FULL)
    migrate_task(root)
    lines = (root / "task.md").read_text().splitlines()
    assert lines[:3] == ["---", "# licence: one", "# two"]


def test_the_old_files_are_gone_and_the_check_is_clean(split: Builder) -> None:
    root = split('[agent]\ntimeout_sec = 5\n[environment]\nmemory = "1G"\n')
    migrate_task(root)
    assert sorted(path.name for path in root.iterdir()) == ["environment", "oracle", "task.md", "verifier"]
    assert check(root, strict=True) == []


def test_steps_are_migrated_with_their_directories(split: Builder) -> None:
    root = split(
        "[[steps]]\nname = 'one'\nmin_reward = 1\n[steps.agent]\ntimeout_sec = 5\n",
        {
            "instruction.md": None,
            "steps/one/instruction.md": "Go.",
            "steps/one/tests/test.sh": "#!/bin/sh\n",
            "steps/one/solution/solve.sh": "#!/bin/sh\n",
            "steps/one/workdir/data": "x",
        },
    )
    before = load_task(root)
    report = migrate_task(root)
    after = load_task(root)
    assert meaning(after) == meaning(before)
    assert after.step_files["one"].verifier_dir == "steps/one/verifier"
    assert after.step_files["one"].oracle_dir == "steps/one/oracle"
    assert ("steps/one/tests", "steps/one/verifier") in report.moved


def test_a_judges_rubric_moves_with_its_directory(split: Builder) -> None:
    rubric = "[[criterion]]\ndescription = 'It is clear.'\n"
    root = split("[verifier]\ntype = 'llm-judge'", {"tests/test.sh": None, "tests/rubric.toml": rubric})
    before = load_task(root).rubrics["tests/rubric.toml"]
    migrate_task(root)
    task = load_task(root)
    assert task.verifier.judge is not None
    assert task.rubrics == {task.verifier.judge.rubric_path: before}


@pytest.mark.parametrize(
    "files",
    [
        {"verifier/test.sh": "#!/bin/sh\n"},
        {"oracle/solve.sh": "#!/bin/sh\n"},
        {"prompts/role.a.md": "x"},
        {"tests/verifier.md": "x"},
        {"instruction.md": "Do it.\n\n## prompt\n\nThis.\n"},
    ],
)
def test_a_task_that_would_change_its_meaning_is_left_alone(split: Builder, files: dict[str, str]) -> None:
    root = split(files=files)
    before = digest_tree(root)
    with pytest.raises(TaskError) as caught:
        migrate_task(root)
    assert caught.value.remedy
    assert digest_tree(root) == before


def test_a_broken_task_is_left_alone(split: Builder) -> None:
    root = split("[agent]\ntimeout_sec = 0")
    before = digest_tree(root)
    with pytest.raises(TaskError):
        migrate_task(root)
    assert digest_tree(root) == before


def test_a_native_task_is_not_migrated(native: Builder) -> None:
    with pytest.raises(TaskError, match="native task already"):
        migrate_task(native())


TEXTS = [
    "",
    "yes",
    "1.0",
    "0755",
    "null",
    "~",
    "a: b",
    "# no",
    "- x",
    "'",
    '"',
    "\\",
    "é…",
    "a\nb\n",
    "  x ",
    "2026-01-31",
]


@pytest.mark.parametrize("seed", range(20))
def test_any_text_survives_a_migration(split: Builder, seed: int) -> None:
    pick = random.Random(seed)
    quoted = {text: '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for text in TEXTS}

    def value() -> str:
        kind = pick.randrange(4)
        if kind == 0:
            return str(pick.choice([0, -1, 2.5, 1e30, 10**18]))
        if kind == 1:
            return pick.choice(["true", "false", "1979-05-27T07:32:00Z", "07:32:00"])
        if kind == 2:
            return "[" + ", ".join(pick.choices(list(quoted.values()), k=3)) + "]"
        return pick.choice(list(quoted.values()))

    lines = [f"{pick.choice(['a', 'on', 'x y', '1', '~'])!r} = {value()}" for _ in range(1)]
    lines += [f"k{index} = {value()}" for index in range(6)]
    env = [f"V{index} = {quoted[pick.choice(TEXTS)]}" for index in range(3)]
    toml = "[metadata]\n" + "\n".join(lines) + "\n[environment.env]\n" + "\n".join(env) + "\n[odd]\n" + "\n".join(lines)
    root = split(toml, {"instruction.md": f"Text.\n---\n{pick.choice(TEXTS)}\n"})
    before = load_task(root)
    migrate_task(root)
    assert meaning(load_task(root)) == meaning(before)


@pytest.mark.parametrize(
    ("toml", "dockerfile", "warns"),
    [
        ("", "FROM debian\n", True),
        ("", "FROM debian\nRUN echo\n  workdir /app\n", False),
        ('[environment]\nworkdir = "/srv"\n', "FROM debian\n", False),
        ('[environment]\ndocker_image = "debian"\n', None, True),
    ],
)
def test_it_is_told_where_scripts_may_start_elsewhere_now(
    split: Builder, toml: str, dockerfile: str | None, warns: bool
) -> None:
    report = migrate_task(split(toml, {"environment/": "", "environment/Dockerfile": dockerfile}))
    assert [note for note in report.warnings if "test.sh and solve.sh" in note] == report.warnings[: int(warns)]
    assert bool(report.warnings) == warns


def test_a_dockerfile_in_another_encoding_is_read_for_the_warnings(split: Builder) -> None:
    root = split("", {"environment/": "", "environment/Dockerfile": "FROM debian\n"})
    (root / "environment/Dockerfile").write_bytes("FROM debian\n# Größe\nUSER ada\nWORKDIR /app\n".encode("latin-1"))
    report = migrate_task(root)
    assert [note for note in report.warnings if "USER ada" in note] == report.warnings
    assert not (root / "task.toml").exists()
