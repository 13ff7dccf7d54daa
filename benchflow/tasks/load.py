"""Read a task's directory into a `Task` and a list of problems.

Reading doesn't stop at the first problem, because an author wants the whole list. `load_task`, for callers that run
the task, raises the first error instead.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from benchflow.contracts.base import Model
from benchflow.contracts.task import SceneSpec, StepConfig, Task, UserSpec
from benchflow.contracts.verifier import VerifierDocument
from benchflow.errors import TaskError
from benchflow.tasks.compose import ComposeReading, read_compose
from benchflow.tasks.environments import find_named_manifest, find_package_manifest
from benchflow.tasks.ignored import find_ignored_files
from benchflow.tasks.layout import Parts, check_scripts, find_parts, is_dir, read_steps
from benchflow.tasks.pack import list_entries
from benchflow.tasks.published import find_published_key
from benchflow.tasks.reward_table import embed_rubrics, normalise_reward
from benchflow.tasks.rubric_file import read_task_rubrics
from benchflow.tasks.scenes import check_extension, complete_scenes, complete_user, normalise_scenes
from benchflow.tasks.schema import DocumentTables, TaskTables
from benchflow.tasks.sections import Prompts, read_prompts
from benchflow.tasks.task_spellings import Spelling, normalise_tables
from benchflow.tasks.text import read_document, read_toml
from benchflow.tasks.value_rules import check_values
from benchflow.tasks.verifier_document import read_verifier_document
from benchflow.user_files.problems import Kind, Problem, ProblemError, Problems, format_path
from benchflow.user_files.user_document import read_text
from benchflow.user_files.user_model import KeyFault, make_model

Tables = TypeVar("Tables", bound=TaskTables)


class TaskReading(Model):
    """Result of reading a task's directory."""

    task: Task | None
    """The task; None if one of the problems is an error."""

    problems: list[Problem]
    """Everything that is wrong with it, in the order in which it was found."""


def load_task(
    path: Path, *, context_root: Path | None = None, name: str | None = None, has_manifest: bool = False
) -> Task:
    """Return the task in the directory `path`. The arguments are those of `read_task`.

    Raises:
        TaskError: The first of the task's errors.
    """
    reading = read_task(path, context_root=context_root, name=name, has_manifest=has_manifest)
    for problem in reading.problems:
        if problem.severity == "error":
            raise problem.as_error()
    assert reading.task is not None
    return reading.task


def read_task(
    path: Path, *, context_root: Path | None = None, name: str | None = None, has_manifest: bool = False
) -> TaskReading:
    """Return the task in the directory `path`, with all of its problems.

    Args:
        path: The task's directory.
        context_root: Build context, in place of the one that the task names.
        name: Name of the task, if it isn't that of the directory.
        has_manifest: Whether the user gives an environment manifest, which may bring the image. One that the task or
            its package has is found here.
    """
    problems = Problems()
    task: Task | None = None
    try:
        _expect_directory(path)
        _expect_own_files(path)
        task = _read(path, problems, context_root, name or path.resolve().name, has_manifest)
    except ProblemError as error:
        problems.extend([error.problem])
    return TaskReading(task=task if problems.first_error is None else None, problems=list(problems))


def _expect_directory(path: Path) -> None:
    if path.is_dir():
        return
    message = "is a file, not a task directory" if path.exists() else "does not exist"
    hint = "give the directory that the file is in" if path.exists() else None
    raise ProblemError(Problem(severity="error", kind="not-found", file=str(path), message=message, suggestion=hint))


def _expect_own_files(path: Path) -> None:
    """Raise `ProblemError` for entries that can't be packed, such as links to host files, before any file is read."""
    try:
        for _ in list_entries(path, exclude=find_ignored_files(path)):
            pass
    except TaskError as error:
        kind: Kind = "parse" if isinstance(error.__cause__, OSError) else "value"
        problem = Problem(severity="error", kind=kind, file=error.file, message=error.message, suggestion=error.remedy)
        raise ProblemError(problem) from error


class _Definition(NamedTuple):
    """Checked content of the files that define a task, without its other parts."""

    layout: Literal["native", "split"]
    file: Path
    tables: TaskTables
    prompts: Prompts
    scenes: list[SceneSpec]
    user: UserSpec | None
    extension: dict[str, Any]
    compat_extra: dict[str, Any]
    verifier: str | None
    oracle: str | None


def _read(root: Path, problems: Problems, context_root: Path | None, name: str, has_manifest: bool) -> Task | None:
    definition = _read_definition(root, problems)
    if definition is None:
        return None
    tables, file = definition.tables, definition.file
    has_manifest = (
        has_manifest or find_named_manifest(definition.extension) is not None or find_package_manifest(root) is not None
    )
    parts = find_parts(
        root,
        problems,
        file=file,
        verifier=definition.verifier,
        oracle=definition.oracle,
        needs_environment=not has_manifest,
    )
    steps = [_inherit(tables, step) for step in tables.steps]
    compose = ComposeReading(tables.sandbox)
    if parts.compose_file is not None:
        verifiers = [tables.verifier, *(step.verifier for step in steps)]
        has_dockerfile = parts.dockerfile is not None
        compose = read_compose(root / parts.compose_file, tables.sandbox, verifiers, has_dockerfile=has_dockerfile)
    task = Task(
        name=name,
        layout=definition.layout,
        config_file=file.name,
        schema_version=tables.schema_version,
        info=tables.task,
        metadata=tables.metadata,
        source=tables.source,
        agent=tables.agent,
        verifier=tables.verifier,
        sandbox=compose.sandbox,
        compose_refused=compose.refused,
        oracle=tables.oracle,
        artifacts=tables.artifacts,
        steps=steps,
        multi_step_reward_strategy=tables.multi_step_reward_strategy,
        reward=tables.reward,
        verifier_document=_read_verifier(root, parts, problems),
        instruction=definition.prompts.base,
        step_files=read_steps(root, steps, file, problems),
        context_root=_find_context_root(root, tables.context_root, context_root, file, problems),
        roles=tables.agents.roles if isinstance(tables, DocumentTables) else {},
        role_prompts=definition.prompts.roles,
        scenes=definition.scenes,
        scene_prompts=definition.prompts.scenes,
        user=definition.user,
        extension=definition.extension,
        compat_extra=definition.compat_extra,
        **parts.model_dump(),
    )
    if not has_manifest:
        _check_image(task, root, file, problems)
    check_scripts(task, root, problems)
    rubrics, reward = read_task_rubrics(task, root, problems), embed_rubrics(task, root, problems)
    return task.model_copy(update={"rubrics": rubrics, "reward": reward})


def _read_definition(root: Path, problems: Problems) -> _Definition | None:
    if (root / "task.md").is_file():
        for other in ("task.toml", "instruction.md"):
            if (root / other).exists():
                problems.warn("value", root / other, "is not used, because there is a task.md", suggestion="remove it")
        return _read_native(root, problems)
    if not (root / "task.toml").is_file():
        problems.error(
            "not-found",
            root,
            "has neither a task.md nor a task.toml, so this is not a task",
            suggestion="`bench tasks init` makes a new task",
        )
        return None
    return _read_split(root, problems)


def _read_split(root: Path, problems: Problems) -> _Definition | None:
    file = root / "task.toml"
    spelling = Spelling(file, problems)
    try:
        raw: dict[str, Any] | None = read_toml(file)
    except ProblemError as error:
        problems.extend([error.problem])
        raw = None
    has_steps = raw is not None and bool(raw.get("steps"))
    base = _read_instruction(root / "instruction.md", problems, required=not has_steps)
    if raw is None:
        return None
    normalise_tables(raw, spelling, native=False)
    normalise_reward(raw, spelling)
    extra: dict[str, Any] = {}
    tables = _validate(TaskTables, raw, spelling, extra, strict=False)
    if tables is None:
        return None
    return _Definition("split", file, tables, Prompts(base=base), [], None, {}, extra, None, None)


def _read_instruction(path: Path, problems: Problems, *, required: bool) -> str:
    text = ""
    if path.is_file():
        try:
            text = read_text(path).strip()
        except ProblemError as error:
            problems.extend([error.problem])
            return ""
        if not text and required:
            problems.error("value", path, "is empty", suggestion="write what the agent is to do")
    elif required:
        problems.error("not-found", path, "is missing", suggestion="write what the agent is to do into it")
    return text


def _read_native(root: Path, problems: Problems) -> _Definition | None:
    file = root / "task.md"
    spelling = Spelling(file, problems)
    raw, body = read_document(file)
    prompts = read_prompts(body, file, problems, overrides=root / "prompts")
    if not prompts.base and not raw.get("steps"):
        problems.error(
            "value",
            file,
            "has no instruction",
            suggestion="write what the agent is to do below the frontmatter",
        )
    verifier, oracle = _move_shorthands(raw, spelling)
    normalise_tables(raw, spelling, native=True)
    normalise_reward(raw, spelling)
    normalise_scenes(raw)
    extra = _pop_carried_extra(raw, spelling)
    tables = _validate(DocumentTables, raw, spelling, extra, strict=True)
    if tables is None:
        return None
    check_extension(tables.benchflow, file, problems)
    verifier = verifier or _find_extension_path(tables.benchflow, "verifier")
    oracle = oracle or _find_extension_path(tables.benchflow, "oracle")
    return _Definition(
        layout="native",
        file=file,
        tables=tables,
        prompts=prompts,
        scenes=complete_scenes(tables, prompts, file, problems),
        user=complete_user(tables, prompts, file, problems),
        extension=tables.benchflow,
        compat_extra=extra,
        verifier=verifier,
        oracle=oracle,
    )


def _pop_carried_extra(raw: dict[str, Any], spelling: Spelling) -> dict[str, Any]:
    """Remove and return the unknown keys that a migration has put into `benchflow.compat_extra`."""
    benchflow = raw.get("benchflow")
    carried = benchflow.pop("compat_extra", {}) if isinstance(benchflow, dict) else {}
    if not isinstance(carried, dict):
        spelling.error(("benchflow",), "compat_extra", f"must be a mapping, not {carried!r}")
        return {}
    return dict(carried)


def _move_shorthands(raw: dict[str, Any], spelling: Spelling) -> tuple[str | None, str | None]:
    """Move `name` and `image` to their tables. Remove and return the directories named by `verifier` and `oracle`."""
    for short, table, key in (("name", "task", "name"), ("image", "sandbox", "docker_image")):
        if short not in raw:
            continue
        value = raw.pop(short)
        place = "environment" if table == "sandbox" and "environment" in raw else table
        inner = raw.get(place)
        if inner is None:
            inner = raw[place] = {}
        if not isinstance(inner, dict) or key in inner or (short == "image" and "image" in inner):
            spelling.error((), short, f"means the same as `{place}.{key}`, which is given too", "keep one of them")
            continue
        if short == "name" and isinstance(value, str) and "/" not in value:
            value = f"benchflow/{value}"
        inner[key] = value
        spelling.record((table, key), (short,))
    named = [raw.pop(key) if isinstance(raw.get(key), str) else None for key in ("verifier", "oracle")]
    return named[0], named[1]


def _find_extension_path(extension: dict[str, Any], part: str) -> str | None:
    """Return `benchflow.<part>.path`, the long form of the shorthand `verifier: dir/` or `oracle: dir/`."""
    value = extension.get(part)
    path = value.get("path") if isinstance(value, dict) else None
    return path if isinstance(path, str) else None


def _validate(
    model: type[Tables], raw: dict[str, Any], spelling: Spelling, extra: dict[str, Any], *, strict: bool
) -> Tables | None:
    """Return a normalised mapping as its model; None if that adds an error.

    strict: an unknown key is an error; otherwise it is a warning, and kept in `extra`, like published keys.
    """
    problems, file = spelling.problems, spelling.file
    before = problems.first_error

    def report(fault: KeyFault) -> None:
        problems.error("value", file, fault.message, key=spelling.key(fault.at), suggestion=fault.remedy)

    def unknown(fault: KeyFault, value: Any) -> None:
        path = format_path(fault.at)
        written = spelling.key(fault.at)
        carried = find_published_key(path, value)
        if carried is not None:
            extra[path] = value
            if not carried.changes:
                problems.warn("unknown-key", file, f"is not used: {carried.what}", key=written)
            return
        if strict:
            problems.error("unknown-key", file, fault.message, key=written, suggestion=fault.remedy)
        else:
            extra[path] = copy.deepcopy(value)
            message = f"{fault.message}; it is kept and not used"
            problems.warn("unknown-key", file, message, key=written, suggestion=fault.remedy)

    tables = make_model(model, raw, report, unknown=unknown)
    if tables is None:
        return None
    check_values(tables, spelling, native=strict)
    return tables if problems.first_error is before else None


def _inherit(tables: TaskTables, step: StepConfig) -> StepConfig:
    """Return a step whose agent and verifier inherit unset values from the task's tables.

    The verifier's variables and `collect` commands are added to those of the task.
    """
    agent = tables.agent.model_copy(update={key: getattr(step.agent, key) for key in step.agent.model_fields_set})
    own = {key: getattr(step.verifier, key) for key in step.verifier.model_fields_set}
    if own.get("sandbox_mode") in ("auto", "shared"):
        # A step that verifies in the agent's sandbox must not inherit the sandbox of the task's verifier.
        own.setdefault("sandbox", None)
    own["env"] = tables.verifier.env | step.verifier.env
    own["collect"] = tables.verifier.collect + step.verifier.collect
    verifier = tables.verifier.model_copy(update=own)
    return step.model_copy(update={"agent": agent, "verifier": verifier})


def _read_verifier(root: Path, parts: Parts, problems: Problems) -> VerifierDocument | None:
    if parts.verifier_dir is None or parts.verifier_dir == "tests":
        return None
    path = root / parts.verifier_dir / "verifier.md"
    return read_verifier_document(path, problems) if path.is_file() else None


def _find_context_root(root: Path, named: str | None, given: Path | None, file: Path, problems: Problems) -> str | None:
    """Return the absolute build context: `given`, else the one that the task names. None if neither is usable."""
    if given is None and named is None:
        return None
    path = given if given is not None else root / str(named)
    if is_dir(path) and (given is not None or _is_of_task_set(path.resolve(), root.resolve())):
        return str(path.resolve())
    if is_dir(path):
        problems.error(
            "value",
            file,
            f"{named!r} is a directory that the task may not choose: it is not the task's own, nor its task set's",
            key="context_root",
            suggestion=f"if you want its files to be in sandboxes, say so yourself: --context-root {path}",
        )
        return None
    problems.error(
        "not-found",
        path if given is not None else file,
        "the build context is not a directory" if given is not None else f"there is no directory {named!r}",
        key="context_root",
        suggestion="give a directory; in a task, relative to the task's own",
    )
    return None


def _is_of_task_set(context: Path, root: Path) -> bool:
    """Return whether a build context holds the task, or lies beside it, and doesn't hold the user's home."""
    is_near = root.is_relative_to(context) or context.is_relative_to(root.parent)
    return is_near and not any(home.is_relative_to(context) for home in (Path.home(), Path.home().resolve()))


def _check_image(task: Task, root: Path, file: Path, problems: Problems) -> None:
    if task.environment_dir is None or task.sandbox.docker_image or task.dockerfile or task.compose_file:
        return
    problems.error(
        "not-found",
        root / "environment" / "Dockerfile",
        "there is no image to run in",
        suggestion=f"add environment/Dockerfile, or name a docker_image in {file.name}",
    )
