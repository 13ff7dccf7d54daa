"""Files of rescored rollouts: a record per rollout beside its first results, and a summary per job."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from benchflow.contracts.rescoring import Change, MeanChange, OutcomeCounts, RescoredRollout, Rescoring
from benchflow.contracts.rollout_records import RewardKind
from benchflow.host_files import write_atomic
from benchflow.paths import RESCORED, JobPaths, RolloutPaths
from benchflow.results.stored_rollouts import StoredRollout, read_children
from benchflow.results.write import write_json
from benchflow.stored_files import read_stored, require_directory

DELIVERED = "delivered"
"""Directory in a result made on another host: holds new scores, which are then moved to the stored rollout."""


def compare_metrics(before: dict[str, float] | None, after: dict[str, float] | None) -> dict[str, Change]:
    """Return the metrics whose values differ, each with its value before and after (None where it is missing)."""
    old, new = before or {}, after or {}
    names = dict.fromkeys([*old, *new])
    return {name: Change(before=old.get(name), after=new.get(name)) for name in names if old.get(name) != new.get(name)}


def make_record_row(record: RescoredRollout) -> dict[str, Any]:
    """Return a record as the job's JSON lists it: its fields, with its `reward` and `verifier`."""
    told = record.model_dump(mode="json")
    return told | {"reward": record.reward, "verifier": record.verifier}


def compute_mean_changes(records: Sequence[RescoredRollout]) -> list[MeanChange]:
    """Return the mean reward of each agent before and after, in the order in which the agents first appear.

    Only rollouts with a reward before and after count. An agent with measured rewards and V(s) has an entry for each.
    """
    pairs: dict[tuple[str, RewardKind], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        if record.reward_before is not None and record.reward is not None:
            kind: RewardKind = "value" if record.value is not None else "measured"
            pairs[record.agent_label, kind].append((record.reward_before, record.reward))
    return [
        MeanChange(
            agent=agent,
            reward_kind=kind,
            before=fmean(before for before, _ in each),
            after=fmean(after for _, after in each),
            n=len(each),
        )
        for (agent, kind), each in pairs.items()
    ]


def count_outcomes(records: list[RescoredRollout]) -> OutcomeCounts:
    """Return the number of records by outcome."""
    return OutcomeCounts.model_validate(Counter(record.outcome for record in records))


# --- files ---------------------------------------------------------------------------------------------


def get_rescored_paths(rollout: RolloutPaths, name: str) -> RolloutPaths:
    """Return the paths of a rollout's new score, which is laid out as a rollout is.

    Args:
        rollout: The stored rollout.
        name: Name of the scoring.
    """
    return RolloutPaths(rollout.root / RESCORED / name)


def check_rescored_paths(rollout: RolloutPaths | JobPaths, place: RolloutPaths | JobPaths) -> None:
    """Raise `ResultFileError` if the path from a stored rollout or job to its new scores leads through a link."""
    require_directory(rollout.root, place.root.relative_to(rollout.root).as_posix())


def get_summary_path(job: JobPaths, name: str) -> Path:
    """Return the path of a scoring's summary file."""
    return job.root / RESCORED / f"{name}.json"


def read_record(place: RolloutPaths) -> RescoredRollout | None:
    """Return a rollout's new score; None if there is none, or if another version wrote it in another format."""
    try:
        return RescoredRollout.model_validate_json(read_stored(place.result))
    except (FileNotFoundError, ValidationError):
        return None


def write_record(place: RolloutPaths, record: RescoredRollout) -> None:
    """Write a rollout's new score. Call it last: the file says that all other files of the score are there."""
    write_atomic(place.result, record.model_dump_json(indent=2).encode() + b"\n")


def deliver(rollout: StoredRollout, name: str, delivered: Path) -> None:
    """Copy a rollout's new score to the directory from which `lay_out_delivered` takes it.

    Args:
        rollout: The stored rollout.
        name: Name of the scoring.
        delivered: Directory for the scores of the rollout's whole tree.
    """
    source, target = get_rescored_paths(rollout.paths, name).root, delivered / _make_delivered_name(rollout)
    # Links are copied as links: one may be a verifier's, and lead to a file of this host.
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def lay_out_delivered(delivered: Path, rollout: StoredRollout, name: str) -> None:
    """Move the delivered scores of a rollout and its children to the stored rollouts that they belong to.

    Scores are looked up by the names of the stored rollouts: a verifier or an agent may have left files of any name.

    Args:
        delivered: Directory that `deliver` has filled; removed afterwards. Nothing happens if it is missing.
        rollout: The stored root of the tree.
        name: Name of the scoring.
    """
    if not delivered.is_dir():
        return
    tree = [rollout]
    for one in tree:
        tree += read_children(one)
    for one in tree:
        source, place = RolloutPaths(delivered / _make_delivered_name(one)), get_rescored_paths(one.paths, name)
        record = read_record(source)
        # After a rollback it is the score of a reverted run.
        if record is None or not record.is_of(one.result):
            continue
        shutil.rmtree(place.root, ignore_errors=True)
        place.root.parent.mkdir(parents=True, exist_ok=True)
        source.root.rename(place.root)
    shutil.rmtree(delivered, ignore_errors=True)


def _make_delivered_name(rollout: StoredRollout) -> str:
    # Branch paths have no underscore. The directories are not nested, so that each can be moved alone.
    return rollout.spec.chain.replace("/", "_") or "root"


def read_rescoring(job: JobPaths, name: str) -> Rescoring | None:
    """Return the summary of a scoring; None if there is none, or if another version wrote it in another format."""
    try:
        return Rescoring.model_validate_json(read_stored(get_summary_path(job, name)))
    except (FileNotFoundError, ValidationError):
        return None


def write_rescoring(job: JobPaths, rescoring: Rescoring) -> None:
    """Write the summary of a scoring."""
    write_json(get_summary_path(job, rescoring.name), rescoring.model_dump(mode="json"))
