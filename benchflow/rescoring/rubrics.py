"""Rubrics that replace the tasks' verifiers in a rescoring: a file, or `module:object`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchflow.contracts.ids import short_hash
from benchflow.contracts.rescoring import GivenRubric
from benchflow.errors import ConfigError
from benchflow.hosting.rubric_code import load_scorer
from benchflow.store import compute_file_digest
from benchflow.tasks.rubric_file import load_rubric

_OPTION = "--rubric"


def load_given_rubric(given: str | Path | None) -> GivenRubric | None:
    """Return the rubric that a request names; None if it names none.

    Args:
        given: Rubric file, or `module:object`; any other type is refused.

    Raises:
        TaskError: The file is no rubric.
        ConfigError: It does not exist, cannot be imported, or is an object of this process.
    """
    if given is None:
        return None
    if not isinstance(given, str | Path):
        raise ConfigError(
            f"{type(given).__name__} is an object of this process, and a worker scores",
            key=_OPTION,
            remedy="bind it to a name in a module and give 'module:name', or use Rubric.score(rollout_dir=…)",
        )
    path = Path(given).expanduser()
    module, colon, attribute = str(given).partition(":")
    if colon and isinstance(given, str) and not path.exists():
        load_scorer(given, str(Path.cwd()))
        root = _find_root(module)
        label, digest = attribute.rpartition(".")[2], _compute_module_digest(module, attribute)
        return GivenRubric(name=given, label=label, digest=digest, code=given, code_root=root)
    if not path.is_file():
        raise ConfigError(
            "there is no such rubric", key=_OPTION, file=str(given), remedy="give a file, or module:object"
        )
    rubric = load_rubric(path)
    digest = short_hash(rubric.model_dump_json(), 32)
    return GivenRubric(name=str(given), label=path.stem, digest=digest, judge=rubric)


def _find_root(module: str) -> str:
    """Return the directory of the import path in which a module was found; workers import it from there."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return str(Path.cwd())
    depth = len(module.split(".")) - (Path(file).name != "__init__.py")
    return str(Path(file).resolve().parents[depth])


def _compute_module_digest(module: str, attribute: str) -> str:
    """Return a digest of a module's name, attribute and file, which may change between scorings; not of its imports."""
    file = getattr(sys.modules[module], "__file__", None)
    content = compute_file_digest(Path(file)) if file and Path(file).is_file() else ""
    return short_hash(f"{module}:{attribute} {content}", 32)
