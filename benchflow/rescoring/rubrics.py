"""What is given to score by instead of the tasks' own verifiers: a rubric file, or a `benchflow.Rubric`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow.contracts.ids import short_hash
from benchflow.contracts.reward import JudgeRubric, RolloutNode, VerifyResult
from benchflow.errors import ConfigError
from benchflow.store import file_digest
from benchflow.tasks.rubric_file import load_rubric

_OPTION = "--rubric"


@runtime_checkable
class Scorer(Protocol):
    """What a `benchflow.Rubric` is to a rescoring."""

    async def score(self, node: RolloutNode) -> VerifyResult: ...


@dataclass(frozen=True)
class GivenRubric:
    """name: as it was given. label: short, for names of directories. digest: of all that is known of what it says."""

    name: str
    label: str
    digest: str
    rubric: JudgeRubric | Scorer


def given_rubric(given: str | Path | Scorer | None) -> GivenRubric | None:
    """The rubric that somebody names or hands over. Raises `TaskError` for a file that is none, `ConfigError`."""
    if given is None:
        return None
    if not isinstance(given, str | Path):
        kind = type(given)
        return GivenRubric(kind.__qualname__, kind.__name__, short_hash(repr(given), 32), given)
    path = Path(given).expanduser()
    module, colon, attribute = str(given).partition(":")
    if colon and isinstance(given, str) and not path.exists():
        found = _imported(module, attribute)
        return GivenRubric(given, attribute.rpartition(".")[2], _digest_of_module(module, attribute), found)
    if not path.is_file():
        raise ConfigError(
            "there is no such rubric", key=_OPTION, file=str(given), remedy="give a file, or module:object"
        )
    rubric = load_rubric(path)
    return GivenRubric(str(given), path.stem, short_hash(rubric.model_dump_json(), 32), rubric)


def _imported(module: str, attribute: str) -> Scorer:
    # Whoever names module:object may mean one that lies here. Last, so that a file of this directory takes the place of
    # no installed module, and not for longer than this import: what tasks name is not looked for here.
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigError(
            f"{module}:{attribute} cannot be imported: {type(error).__name__}: {error}",
            key=_OPTION,
            remedy="write package.module:object, of a module that is installed or lies in this directory",
        ) from error
    finally:
        sys.path.remove(here)
    if isinstance(found, type) or not isinstance(found, Scorer):
        raise ConfigError(
            f"{module}:{attribute} is no rubric: it has no `score`",
            key=_OPTION,
            remedy="name an object, as in: quality = benchflow.Rubric(…)",
        )
    return found


def _digest_of_module(module: str, attribute: str) -> str:
    """What a module says may have changed since it scored last; what it imports is not looked at."""
    file = getattr(sys.modules[module], "__file__", None)
    content = file_digest(Path(file)) if file and Path(file).is_file() else ""
    return short_hash(f"{module}:{attribute} {content}", 32)
