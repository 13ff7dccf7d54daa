"""What of a repository has git show another history, or overlook changes: replaced objects, grafts, flags in its index.

A verifier that compares files with what was committed would be told what the agent wants. While it runs, git follows
neither replacements nor grafts; flags are taken out of the index.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError, VerifierError
from benchflow.planes.reward.hardening.git_index import flagged_paths, without_flags
from benchflow.planes.reward.hardening.survey import Survey

ITEM = "repository_state"

VARIABLES = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": "/run/benchflow/no-grafts"}
"""Have git show what was committed. Of a file with grafts that is there, git says that it is out of fashion."""

_MOST = 20
"""Repositories that are looked into."""

# Of each repository with a history that git would replace, a line.
_REPLACED = """
for r; do
  if [ -s "$r/info/grafts" ]; then printf '%s\\n' "$r/info/grafts"; fi
  if [ -s "$r/shallow" ]; then printf '%s\\n' "$r/shallow"; fi
  if ls "$r"/refs/replace/* >/dev/null 2>&1; then printf '%s\\n' "$r/refs/replace"; continue; fi
  if grep -qs 'refs/replace/' "$r/packed-refs"; then printf '%s\\n' "$r/packed-refs"; fi
done
"""


def repositories_of(survey: Survey) -> list[str]:
    """Return the directories of repositories."""
    return [posixpath.dirname(path) for path in survey.git if posixpath.basename(path) == "config"][:_MOST]


async def overlooked_paths(sandbox: Sandbox, repositories: Sequence[str]) -> dict[str, list[str]]:
    """Return, by repository, the paths that git is told to overlook."""
    found = {}
    for repository in repositories:
        index = await _index_of(sandbox, repository)
        if index is not None and (paths := flagged_paths(index)):
            found[repository] = paths
    return found


async def replaced_histories(sandbox: Sandbox, repositories: Sequence[str]) -> list[str]:
    """Return the paths of repositories that have git show another history than what was committed, or a part of it."""
    if not repositories:
        return []
    return (await sandbox.control(_REPLACED, *repositories)).stdout.splitlines()


async def make_git_look(
    sandbox: Sandbox, repositories: Sequence[str], before: Mapping[str, Sequence[str]], replaced: Collection[str]
) -> list[HardeningFinding]:
    """Take new flags out of the indexes, and return what was found.

    Args:
        sandbox: Where.
        repositories: Their directories.
        before: By repository, the paths that were overlooked already.
        replaced: What `replaced_histories` returned before.
    """
    if not repositories:
        return []
    found = []
    for repository in repositories:
        index, known = await _index_of(sandbox, repository), before.get(repository, ())
        paths = [path for path in flagged_paths(index) or () if path not in known] if index is not None else []
        if index is None or not paths:
            continue
        file = f"{repository}/index"
        await sandbox.write_file(f"{file}.benchflow", without_flags(index, known))
        # The owner stays.
        done = await sandbox.control('cat "$1.benchflow" >"$1" && rm -f "$1.benchflow"', file)
        if done.return_code:
            raise VerifierError("cannot be put right", file=file, log_tail=done.stderr[-2000:])
        detail = f"had git overlook {len(paths)} paths, {paths[0]} first"
        found.append(_finding("restored", file, detail))
    for path in await replaced_histories(sandbox, repositories):
        if path in replaced:
            continue
        if posixpath.basename(path) == "shallow":
            # Whoever fetches a part of a history leaves that, too.
            found.append(
                HardeningFinding(item=ITEM, action="found", path=path, detail="cuts off a part of the history")
            )
        else:
            found.append(_finding("found", path, "replaces what was committed, and is not followed"))
    return found


def _finding(action: str, path: str, detail: str) -> HardeningFinding:
    content = {"item": ITEM, "action": action, "path": path, "detail": detail, "weight": "tampering"}
    return HardeningFinding.model_validate(content)


async def _index_of(sandbox: Sandbox, repository: str) -> bytes | None:
    try:
        return await sandbox.read_bytes(f"{repository}/index")
    except (FileNotFoundError, SandboxError) as error:
        if isinstance(error, SandboxError) and error.retryable:
            raise
        return None
