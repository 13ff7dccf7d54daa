"""Read and check `verifier/verifier.md`, which declares the strategies of a native verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchflow.contracts.base import Model
from benchflow.contracts.verifier import VerifierDocument, VerifierOutputs, VerifierStrategy
from benchflow.tasks.layout import is_dir, is_file
from benchflow.tasks.sections import read_prompts
from benchflow.tasks.text import read_document
from benchflow.user_files.problems import Kind, ProblemError, Problems, format_path, suggest_known
from benchflow.user_files.user_document import read_text
from benchflow.user_files.user_model import KeyFault, make_model


class _Verifier(Model):
    name: str | None = None
    default_strategy: str | None = None
    strategies: dict[str, VerifierStrategy]
    outputs: VerifierOutputs = VerifierOutputs()
    rubric: dict[str, Any] = {}


class _Frontmatter(Model):
    document_version: str | None = None
    verifier: _Verifier


_REQUIRED: dict[str, tuple[str, ...]] = {
    "script": ("command",),
    "llm-judge": ("rubric",),
    "reward-kit": ("root",),
    "agent-judge": ("role", "isolation", "inputs"),
    "ors-episode": ("inputs",),
}
"""Required fields of a strategy, by its type."""


def read_verifier_document(path: Path, problems: Problems) -> VerifierDocument | None:
    """Return the verifier document at `path`; None if it can't be used, with the reasons added to `problems`."""
    try:
        raw, body = read_document(path)
    except ProblemError as error:
        problems.extend([error.problem])
        return None
    _normalise(raw)
    prompts = read_prompts(body, path, problems)
    found = _validate(raw, path, problems)
    if found is None:
        return None
    verifier = found.verifier
    if not verifier.strategies:
        problems.error("value", path, "declares no strategy", key="verifier.strategies")
        return None
    default = verifier.default_strategy or next(iter(verifier.strategies))
    if default not in verifier.strategies:
        problems.error(
            "value",
            path,
            f"there is no strategy {default!r}",
            key="verifier.default_strategy",
            suggestion=suggest_known(default, verifier.strategies),
        )
        return None
    for name, strategy in verifier.strategies.items():
        _check_strategy(strategy, f"verifier.strategies.{name}", prompts.roles, path, problems)
    return VerifierDocument(
        document_version=found.document_version,
        name=verifier.name,
        default_strategy=default,
        strategies={
            name: _append_context(strategy, f"verifier.strategies.{name}.context_file", path, problems)
            for name, strategy in verifier.strategies.items()
        },
        outputs=verifier.outputs,
        rubric=verifier.rubric,
        role_prompts=prompts.roles,
    )


def _normalise(raw: dict[str, Any]) -> None:
    """Bring spellings of published documents to those of the contracts, in place.

    They write `metrics` for `weights` and `fallback` for `method`, `outputs` at the root, and one input as a text.
    """
    verifier = raw.get("verifier")
    if not isinstance(verifier, dict):
        return
    if "outputs" in raw and "outputs" not in verifier:
        verifier["outputs"] = raw.pop("outputs")
    outputs = verifier.get("outputs")
    policy = outputs.get("aggregate_policy") if isinstance(outputs, dict) else None
    if isinstance(policy, dict):
        for alias, name in (("metrics", "weights"), ("fallback", "method")):
            if alias in policy and name not in policy:
                policy[name] = policy.pop(alias)
        if policy.get("field") == "reward":
            del policy["field"]
    strategies = verifier.get("strategies")
    for strategy in strategies.values() if isinstance(strategies, dict) else []:
        if isinstance(strategy, dict) and isinstance(strategy.get("inputs"), str):
            strategy["inputs"] = [strategy["inputs"]]


def _validate(raw: dict[str, Any], path: Path, problems: Problems) -> _Frontmatter | None:
    """Return the frontmatter as its model; None if that adds an error to `problems`."""
    before = problems.first_error

    def report(fault: KeyFault, kind: Kind = "value") -> None:
        problems.error(kind, path, fault.message, key=format_path(fault.at), suggestion=fault.remedy)

    found = make_model(_Frontmatter, raw, report, unknown=lambda fault, _: report(fault, "unknown-key"))
    return found if problems.first_error is before else None


def _check_strategy(
    strategy: VerifierStrategy, key: str, roles: dict[str, str], path: Path, problems: Problems
) -> None:
    def error(kind: Kind, field: str, message: str, suggestion: str | None = None) -> None:
        problems.error(kind, path, message, key=f"{key}.{field}", suggestion=suggestion)

    for field in _REQUIRED[strategy.type]:
        if not getattr(strategy, field):
            error("value", field, f"is required by strategy type `{strategy.type}`")
    if strategy.type == "agent-judge":
        if strategy.role and strategy.role not in roles:
            error("value", "role", f"there is no section `## role:{strategy.role}`", "add the section")
        if strategy.isolation and strategy.isolation != "verifier-only":
            error("value", "isolation", f"must be `verifier-only`, not {strategy.isolation!r}")
    for word in (strategy.command or "").split()[:2]:
        if word.startswith("./") and not is_file(path.parent / word):
            error("not-found", "command", f"there is no {word[2:]!r} in {path.parent.name}/")
    for field in ("rubric", "context_file", "root", "criteria"):
        relative = getattr(strategy, field)
        places = [base / (relative or "") for base in (path.parent, path.parent.parent)]
        if relative and not any(is_file(place) or is_dir(place) for place in places):
            error("not-found", field, f"there is no {relative!r} in {path.parent.name}/")


def _append_context(strategy: VerifierStrategy, key: str, path: Path, problems: Problems) -> VerifierStrategy:
    """Return the strategy with the text of its `context_file`, if it names one, appended to its context."""
    named = strategy.context_file
    files = [base / named for base in (path.parent, path.parent.parent) if is_file(base / named)] if named else []
    if not files:
        return strategy
    root = path.parent.parent.resolve()
    if not files[0].resolve().is_relative_to(root):
        problems.error("value", path, f"{named!r} is outside the task", key=key, suggestion="move it into the task")
        return strategy
    try:
        text = read_text(files[0]).strip()
    except ProblemError as error:
        problems.extend([error.problem])
        return strategy
    return strategy.model_copy(update={"context": f"{strategy.context}\n\n{text}" if strategy.context else text})
