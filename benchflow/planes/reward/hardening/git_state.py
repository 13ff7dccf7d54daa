"""Reset settings of a repository by which git shows another history, or overlooks changes.

These are replaced objects, grafts, and flags in the index; a verifier that compares files with the committed ones would
be deceived. While it runs, git follows neither replacements nor grafts; new flags are cleared in the index.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, VerifierError
from benchflow.planes.reward.hardening.git_index import clear_flags, list_flagged_paths
from benchflow.planes.reward.hardening.survey import Survey

ITEM = "repository_state"

VARIABLES = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": "/run/benchflow/no-grafts"}
"""Environment variables by which git shows the history as committed. The file of grafts does not exist: about one that
exists, git prints a deprecation hint.
"""

_MAX_REPOSITORIES = 20
"""Maximum number of repositories that are checked."""

# Prints the path of each file or directory by which git would replace or cut off a history.
_REPLACED = """
for r; do
  if [ -s "$r/info/grafts" ]; then printf '%s\\n' "$r/info/grafts"; fi
  if [ -s "$r/shallow" ]; then printf '%s\\n' "$r/shallow"; fi
  if ls "$r"/refs/replace/* >/dev/null 2>&1; then printf '%s\\n' "$r/refs/replace"; continue; fi
  if grep -qs 'refs/replace/' "$r/packed-refs"; then printf '%s\\n' "$r/packed-refs"; fi
done
"""


def list_repositories(survey: Survey) -> list[str]:
    """Return the `.git` directories of the repositories in a survey, at most 20."""
    return [posixpath.dirname(path) for path in survey.git if posixpath.basename(path) == "config"][:_MAX_REPOSITORIES]


async def find_overlooked_paths(sandbox: Sandbox, repositories: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths whose changes git overlooks by flags in the index, by repository."""
    found = {}
    for repository in repositories:
        index = await _read_index(sandbox, repository)
        if index is not None and (paths := list_flagged_paths(index)):
            found[repository] = paths
    return found


async def find_replaced_histories(sandbox: Sandbox, repositories: Sequence[str]) -> list[str]:
    """Return the paths by which repositories replace committed objects, or cut off a part of the history."""
    if not repositories:
        return []
    return (await sandbox.control(_REPLACED, *repositories)).stdout.splitlines()


async def restore_git_view(
    sandbox: Sandbox, repositories: Sequence[str], before: Mapping[str, Sequence[str]], replaced: Collection[str]
) -> list[HardeningFinding]:
    """Clear new flags in the indexes, and return the findings about these and about replaced histories.

    Args:
        sandbox: Sandbox of the agent.
        repositories: `.git` directories of the repositories.
        before: Paths that were overlooked in the baseline already, by repository.
        replaced: Paths that `find_replaced_histories` returned for the baseline.

    Raises:
        VerifierError: An index can't be written.
    """
    if not repositories:
        return []
    found = []
    for repository in repositories:
        index, known = await _read_index(sandbox, repository), before.get(repository, ())
        paths = [path for path in list_flagged_paths(index) or () if path not in known] if index is not None else []
        if index is None or not paths:
            continue
        file = f"{repository}/index"
        await sandbox.write_file(f"{file}.benchflow", clear_flags(index, known))
        # Written in place, so that the file keeps its owner.
        done = await sandbox.control('cat "$1.benchflow" >"$1" && rm -f "$1.benchflow"', file)
        if done.return_code:
            raise VerifierError("cannot be put right", file=file, log_tail=done.stderr[-2000:])
        detail = f"had git overlook {len(paths)} paths, {paths[0]} first"
        found.append(_make_finding("restored", file, detail))
    for path in await find_replaced_histories(sandbox, repositories):
        if path in replaced:
            continue
        if posixpath.basename(path) == "shallow":
            # A fetch of a part of the history (`--depth`) leaves that, too.
            found.append(
                HardeningFinding(item=ITEM, action="found", path=path, detail="cuts off a part of the history")
            )
        else:
            found.append(_make_finding("found", path, "replaces what was committed, and is not followed"))
    return found


def _make_finding(action: str, path: str, detail: str) -> HardeningFinding:
    content = {"item": ITEM, "action": action, "path": path, "detail": detail, "weight": "tampering"}
    return HardeningFinding.model_validate(content)


async def _read_index(sandbox: Sandbox, repository: str) -> bytes | None:
    """Return the index of a repository; None if it can't be read. Raise a `SandboxError` that is retryable."""
    try:
        return await sandbox.read_bytes(f"{repository}/index")
    except (FileNotFoundError, SandboxError) as error:
        if isinstance(error, SandboxError) and error.retryable:
            raise
        return None
