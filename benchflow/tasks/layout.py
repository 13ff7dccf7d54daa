"""Find the parts of a task's directory: verifier, oracle, environment, steps. Each is chosen on its own.

Native names come first. A native directory wins even when it is empty: falling back to the other one would score by
files that the author replaced.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.contracts.base import Model
from benchflow.contracts.task import StepConfig, StepFiles, Task
from benchflow.user_files.problems import ProblemError, Problems
from benchflow.user_files.user_document import read_text

DEFINITIONS = ("task.md", "task.toml")
VERIFIER_DIRS = ("verifier", "tests")
ORACLE_DIRS = ("oracle", "solution")
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_STEP_NAME = 200
"""Maximum length of a step's name, in bytes: with a prefix, it becomes a file name, which has at most 255."""


def is_step_name(name: str) -> bool:
    """Return whether `name` may be a step's: printable text that is safe as one part of a path."""
    is_text = bool(name.strip()) and name.isprintable() and len(name.encode()) <= MAX_STEP_NAME
    return is_text and not name.startswith(".") and not {"/", "\\"} & {*name}


def is_dir(path: Path) -> bool:
    """Return `path.is_dir()`; False for a path that no file can have. For names that a task's author chose."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Return `path.is_file()`; False for a path that no file can have. For names that a task's author chose."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


class Parts(Model):
    """Parts of a task, as paths relative to its directory; None where absent."""

    verifier_dir: str | None = None
    verifier_build: str | None = None
    """Compose file or Dockerfile in the verifier's directory."""

    oracle_dir: str | None = None
    environment_dir: str | None = None
    dockerfile: str | None = None
    """The environment's Dockerfile."""

    compose_file: str | None = None
    """The environment's compose file."""


def find_parts(
    root: Path,
    problems: Problems,
    *,
    file: Path,
    verifier: str | None = None,
    oracle: str | None = None,
    needs_environment: bool = True,
) -> Parts:
    """Return the parts of the task in `root`.

    Args:
        root: The task's directory.
        problems: Receives missing, unused and oversized parts.
        file: The task's definition, for problems of the directories that it names.
        verifier: Directory that the definition names for the verifier, in place of the usual ones.
        oracle: Directory that it names for the oracle.
        needs_environment: Report a missing `environment/`, because nothing else can bring the image.
    """
    environment = root / "environment"
    has_environment = environment.is_dir()
    if needs_environment and not has_environment:
        problems.error(
            "not-found",
            environment,
            "there is no environment/ directory, so this is not a task",
            suggestion="add environment/Dockerfile, or an empty environment/ and a docker_image",
        )
    compose = next((name for name in COMPOSE_FILES if (environment / name).is_file()), None)
    for name in ("Dockerfile", compose):
        if name and (environment / name).is_file() and (environment / name).stat().st_size > MAX_TEXT:
            problems.error("value", environment / name, f"is larger than {MAX_TEXT} bytes")
    verifier_dir = _find_named(root, verifier, "verifier", file, problems) or _find_first(root, VERIFIER_DIRS, problems)
    return Parts(
        verifier_dir=verifier_dir,
        verifier_build=_find_build_file(root, verifier_dir),
        oracle_dir=_find_named(root, oracle, "oracle", file, problems) or _find_first(root, ORACLE_DIRS, problems),
        environment_dir="environment" if has_environment else None,
        dockerfile="environment/Dockerfile" if (environment / "Dockerfile").is_file() else None,
        compose_file=f"environment/{compose}" if compose else None,
    )


def _find_build_file(root: Path, directory: str | None) -> str | None:
    """Return the compose file, or else the Dockerfile, in a verifier's directory; None if there is none."""
    files = (f"{directory}/{name}" for name in (*COMPOSE_FILES, "Dockerfile")) if directory else ()
    return next((file for file in files if is_file(root / file)), None)


def _find_first(root: Path, names: tuple[str, ...], problems: Problems) -> str | None:
    """Return the first of `names` that is a directory in `root`, and warn of the others that are there."""
    found = [name for name in names if is_dir(root / name)]
    for other in found[1:]:
        problems.warn(
            "value",
            root / other,
            f"is not used, because there is a {found[0]}/",
            suggestion=f"remove {other}/, or {found[0]}/",
        )
    return found[0] if found else None


def _find_named(root: Path, name: str | None, key: str, file: Path, problems: Problems) -> str | None:
    """Return the directory that the definition names, None if it names none, or one that is reported as unusable."""
    if name is None:
        return None
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) == ".":
        problems.error("value", file, f"must be a directory inside the task, not {name!r}", key=key)
        return None
    if not is_dir(root / path):
        problems.error("not-found", file, f"there is no directory {name!r} in the task", key=key)
        return None
    return str(path)


def read_steps(root: Path, steps: list[StepConfig], file: Path, problems: Problems) -> dict[str, StepFiles]:
    """Return the files in `steps/<name>/` of each declared step, by its name.

    Args:
        root: The task's directory.
        steps: The declared steps. One with an unusable or duplicate name is reported and left out.
        file: The task's definition, for problems.
        problems: Receives what is wrong, and a warning for each directory in `steps/` that belongs to no step.
    """
    files: dict[str, StepFiles] = {}
    for index, step in enumerate(steps):
        key = f"steps[{index}].name"
        if not is_step_name(step.name):
            problems.error(
                "value",
                file,
                f"{step.name!r} can't be a directory's name",
                key=key,
                suggestion=f"use at most {MAX_STEP_NAME} bytes of text without '/', '\\\\' and control characters, not "
                "beginning with a dot",
            )
        elif step.name in files:
            problems.error("value", file, f"two steps are called {step.name!r}", key=key)
        else:
            files[step.name] = _read_step_files(root, step.name, problems)
    for directory in sorted((root / "steps").iterdir()) if steps and (root / "steps").is_dir() else []:
        if directory.is_dir() and directory.name not in files:
            problems.warn(
                "value",
                directory,
                "belongs to no declared step and is not used",
                suggestion=f"declare a step named {directory.name!r}",
            )
    return files


def _read_step_files(root: Path, name: str, problems: Problems) -> StepFiles:
    base = f"steps/{name}"
    path = root / base / "instruction.md"
    instruction = ""
    if not is_file(path):
        problems.error("not-found", path, "is missing", suggestion=f"write what step {name!r} asks for into it")
    else:
        try:
            instruction = read_text(path).strip()
        except ProblemError as error:
            problems.extend([error.problem])
        else:
            if not instruction:
                problems.error("value", path, "is empty", suggestion=f"write what step {name!r} asks for")
    setup = root / base / "workdir" / "setup.sh"
    if is_file(setup):
        check_shebang(setup, problems)
    verifier = _find_first(root / base, VERIFIER_DIRS, problems)
    oracle = _find_first(root / base, ORACLE_DIRS, problems)
    verifier_dir = f"{base}/{verifier}" if verifier else None
    return StepFiles(
        instruction=instruction,
        verifier_dir=verifier_dir,
        verifier_build=_find_build_file(root, verifier_dir),
        oracle_dir=f"{base}/{oracle}" if oracle else None,
        workdir_dir=f"{base}/workdir" if is_dir(root / base / "workdir") else None,
    )


def check_scripts(task: Task, root: Path, problems: Problems) -> None:
    """Report a task or step without a test.sh, and a test.sh with an unusable shebang.

    Only for tasks that are verified by test.sh on Linux, without a verifier.md.
    """
    if task.verifier_document is not None or task.sandbox.os != "linux":
        return
    base = [task.verifier_dir] if task.verifier_dir else []
    if not task.steps and task.verifier.type == "test-script":
        _expect_script(root, base, "the task", problems)
    for step in task.steps:
        if step.verifier.type != "test-script":
            continue
        own = task.step_files[step.name].verifier_dir if step.name in task.step_files else None
        _expect_script(root, [*([own] if own else []), *base], f"step {step.name!r}", problems)


def _expect_script(root: Path, directories: list[str], whose: str, problems: Problems) -> None:
    scripts = [root / directory / "test.sh" for directory in directories]
    script = next((path for path in scripts if is_file(path)), None)
    if script is None:
        where = scripts[0] if scripts else root / "verifier" / "test.sh"
        problems.error(
            "not-found",
            where,
            f"{whose} has no verifier: there is no test.sh",
            suggestion="add a test.sh that writes /logs/verifier/reward.txt",
        )
        return
    check_shebang(script, problems)


def check_shebang(script: Path, problems: Problems) -> None:
    """Report a script whose shebang ends in a carriage return, so that it can't be run; warn of one without shebang."""
    try:
        first = read_regular(script, 256, is_cut=True).split(b"\n", 1)[0]
    except OSError as error:
        problems.error("parse", script, f"cannot be read: {error.strerror or error}")
        return
    if not first.startswith(b"#!"):
        problems.warn(
            "value",
            script,
            "has no shebang line and is run by /bin/sh",
            suggestion="begin it with `#!/bin/bash`",
        )
    elif first.endswith(b"\r"):
        problems.error(
            "value",
            script,
            "has Windows line ends, so its shebang names a program that doesn't exist",
            suggestion="save it with Unix line ends (dos2unix)",
        )
