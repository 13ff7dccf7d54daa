"""Complete and check the roles, scenes and simulated user of a task.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchflow.contracts.task import SceneSpec, TurnSpec, UserSpec
from benchflow.tasks.schema import DocumentTables, SceneTable
from benchflow.tasks.sections import Prompts
from benchflow.user_files.problems import Problems, suggest_known


def normalise_scenes(raw: dict[str, Any]) -> None:
    """Turn each turn that is given as a role's name into a table, in place. Called before validation."""
    scenes = raw.get("scenes")
    for scene in scenes if isinstance(scenes, list) else []:
        turns = scene.get("turns") if isinstance(scene, dict) else None
        if isinstance(turns, list):
            scene["turns"] = [{"role": turn} if isinstance(turn, str) else turn for turn in turns]


def complete_scenes(tables: DocumentTables, prompts: Prompts, file: Path, problems: Problems) -> list[SceneSpec]:
    """Return the scenes of a task.md with defaults for names, roles and turns.

    A name defaults to `scene-<number>`; roles to those of the turns, else to the only declared one; turns to one for
    each role.

    Args:
        tables: The validated frontmatter.
        prompts: Prompts of the body, whose roles and scenes must be declared.
        file: The task.md, for problems.
        problems: Receives undeclared roles and scenes, and scenes without a role or of the same name.
    """
    declared = list(tables.agents.roles)
    scenes = [_complete(scene, index, declared, file, problems) for index, scene in enumerate(tables.scenes)]
    names = [scene.name for scene in scenes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.error("value", file, f"two scenes are called {name!r}", key="scenes")
    _expect_declared("role", prompts.roles, declared, file, problems)
    _expect_declared("scene", prompts.scenes, names, file, problems)
    return scenes


def _complete(scene: SceneTable, index: int, declared: list[str], file: Path, problems: Problems) -> SceneSpec:
    """Return one scene with its defaults; see `complete_scenes`."""
    key = f"scenes[{index}]"
    named = list(dict.fromkeys(turn.role for turn in scene.turns))
    roles = scene.roles if scene.roles is not None else named or (declared if len(declared) == 1 else [])
    if not roles:
        problems.error("value", file, "names no role", key=key, suggestion="add `roles: [...]` or `turns: [...]`")
    for role in dict.fromkeys([*roles, *named]):
        if role not in declared:
            problems.error(
                "value",
                file,
                f"role {role!r} is not declared",
                key=f"{key}.roles",
                suggestion=_suggest_role(role, declared),
            )
        elif role not in roles:
            problems.error(
                "value",
                file,
                f"a turn names role {role!r}, which is not in the scene's roles",
                key=f"{key}.turns",
            )
    turns = scene.turns or [TurnSpec(role=role) for role in roles]
    return SceneSpec(name=scene.name or f"scene-{index + 1}", roles=roles, turns=turns, skills_dir=scene.skills_dir)


def _suggest_role(role: str, declared: Iterable[str]) -> str:
    """Return the suggestion for an undeclared role."""
    known = list(declared)
    return suggest_known(role, known) if known else f"declare it under `agents.roles.{role}`"


def _expect_declared(kind: str, named: Iterable[str], declared: list[str], file: Path, problems: Problems) -> None:
    for name in named:
        if name not in declared:
            hint = _suggest_role(name, declared) if kind == "role" or declared else "declare it under `scenes`"
            problems.error(
                "value",
                file,
                f"there is a prompt for {kind} {name!r}, which is not declared",
                suggestion=hint,
            )


def complete_user(tables: DocumentTables, prompts: Prompts, file: Path, problems: Problems) -> UserSpec | None:
    """Return the simulated user: the declared one, with the persona of the body. None if neither is given.

    Args:
        tables: The validated frontmatter.
        prompts: Prompts of the body.
        file: The task.md, for problems.
        problems: Receives a stop rule without a number of rounds, and a persona that is given twice.
    """
    user = tables.user
    if user is None:
        return UserSpec(persona=prompts.persona) if prompts.persona else None
    if user.stop_rule is not None and re.search(r"-[1-9]\d*-rounds$", user.stop_rule) is None:
        problems.error(
            "value",
            file,
            f"must end in the number of rounds, not {user.stop_rule!r}",
            key="user.stop_rule",
            suggestion="write, for instance, `satisfied-or-5-rounds`",
        )
    if user.persona is not None and prompts.persona is not None:
        problems.error(
            "value",
            file,
            "the persona is given in the frontmatter and as `## user-persona`",
            key="user.persona",
            suggestion="keep the section",
        )
    return user if prompts.persona is None else user.model_copy(update={"persona": prompts.persona})


_EXTENSION_KEYS = (
    "prompt",
    "nudges",
    "environment",
    "verifier",
    "oracle",
    "agent_policy",
    "runtime_policy",
    "teams",
    "compat_extra",
)


def check_extension(extension: dict[str, Any], file: Path, problems: Problems) -> None:
    """Check the known keys of a task's `benchflow` table, and warn of the others, which are kept unused."""
    prompt = extension.get("prompt")
    if prompt is not None:
        _check_mapping(prompt, "benchflow.prompt", ("composition", "order"), file, problems)
    if isinstance(prompt, dict):
        composition = prompt.get("composition", "replace")
        if composition not in ("append", "replace"):
            problems.error(
                "value",
                file,
                f"must be `append` or `replace`, not {composition!r}",
                key="benchflow.prompt.composition",
            )
        order = prompt.get("order", [])
        if not isinstance(order, list) or not all(isinstance(item, str) for item in order):
            problems.error("value", file, "must be a list of names", key="benchflow.prompt.order")
    nudges = extension.get("nudges")
    if nudges is not None:
        known = ("mode", "nudge_budget", "branchable", "confirmation_policy")
        _check_mapping(nudges, "benchflow.nudges", known, file, problems)
    environment = extension.get("environment")
    if environment is not None:
        _check_mapping(environment, "benchflow.environment", ("manifest",), file, problems)
    if isinstance(environment, dict) and not isinstance(environment.get("manifest", ""), str):
        problems.error("value", file, "must be a path", key="benchflow.environment.manifest")
    for key in extension:
        if key not in _EXTENSION_KEYS:
            problems.warn("unknown-key", file, "is kept, and nothing here uses it", key=f"benchflow.{key}")


def _check_mapping(value: Any, key: str, known: tuple[str, ...], file: Path, problems: Problems) -> None:
    if not isinstance(value, dict):
        problems.error("value", file, f"must be a mapping, not {value!r}", key=key)
        return
    for name in value:
        if name not in known:
            hint = suggest_known(name, known)
            problems.error("unknown-key", file, "is not a known key", key=f"{key}.{name}", suggestion=hint)
