"""Files of rollouts that were scored again: one record a rollout beside its first results, and one of the job."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from benchflow.contracts.rescoring import Change, MeanChange, OutcomeCounts, RescoredRollout, Rescoring
from benchflow.contracts.rollout import RewardKind
from benchflow.paths import RESCORED, JobPaths, RolloutPaths
from benchflow.results.stored_rollouts import StoredRollout, read_children
from benchflow.results.write import write_json
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored, require_directory

DELIVERED = "delivered"
"""Directory of a result that another host has made, with the new scores to be moved to the stored rollout."""


def changes(before: dict[str, float] | None, after: dict[str, float] | None) -> dict[str, Change]:
    """Return the metrics that differ."""
    old, new = before or {}, after or {}
    names = dict.fromkeys([*old, *new])
    return {name: Change(before=old.get(name), after=new.get(name)) for name in names if old.get(name) != new.get(name)}


def row(record: RescoredRollout) -> dict[str, Any]:
    """Return a rollout as the JSON object of the job lists it."""
    told = record.model_dump(mode="json")
    return told | {"reward": record.reward, "verifier": record.verifier}


def mean_changes(records: Sequence[RescoredRollout]) -> list[MeanChange]:
    """Return the means of each agent, in the order in which the agents appear."""
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


def count(records: list[RescoredRollout]) -> OutcomeCounts:
    """Count records by their outcome."""
    return OutcomeCounts.model_validate(Counter(record.outcome for record in records))


# --- files ---------------------------------------------------------------------------------------------


def place_of(rollout: RolloutPaths, name: str) -> RolloutPaths:
    """Return the directory of a rollout's new score, laid out as the rollout itself is."""
    return RolloutPaths(rollout.root / RESCORED / name)


def check_place(rollout: RolloutPaths | JobPaths, place: RolloutPaths | JobPaths) -> None:
    """Raise `ResultFileError` where the way from a stored rollout or job to its new scores leads through a link."""
    require_directory(rollout.root, place.root.relative_to(rollout.root).as_posix())


def summary_of(job: JobPaths, name: str) -> Path:
    """Return the file of a scoring's summary."""
    return job.root / RESCORED / f"{name}.json"


def read_record(place: RolloutPaths) -> RescoredRollout | None:
    """Read a rollout's new score; None where it has none, or one that another version wrote."""
    try:
        return RescoredRollout.model_validate_json(read_stored(place.result))
    except (FileNotFoundError, ValidationError):
        return None


def write_record(place: RolloutPaths, record: RescoredRollout) -> None:
    """Write a rollout's new score: last, since its file says that all else is there."""
    write_atomic(place.result, record.model_dump_json(indent=2).encode() + b"\n")


def deliver(rollout: StoredRollout, name: str, delivered: Path) -> None:
    """Copy a rollout's new score to where `lay_out_delivered` takes it from."""
    source, target = place_of(rollout.paths, name).root, delivered / _delivered_name(rollout)
    # A link stays one: it may be a verifier's, and lead to a file of this host.
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def lay_out_delivered(delivered: Path, rollout: StoredRollout, name: str) -> None:
    """Move the new scores of a tree from where another host delivered them to their stored rollouts.

    They are looked for by the stored rollouts' own names: a verifier or an agent may have left files of any name.
    """
    if not delivered.is_dir():
        return
    tree = [rollout]
    for one in tree:
        tree += read_children(one)
    for one in tree:
        source, place = RolloutPaths(delivered / _delivered_name(one)), place_of(one.paths, name)
        record = read_record(source)
        # After a rollback it is the score of an undone run.
        if record is None or not record.is_of(one.result):
            continue
        shutil.rmtree(place.root, ignore_errors=True)
        place.root.parent.mkdir(parents=True, exist_ok=True)
        source.root.rename(place.root)
    shutil.rmtree(delivered, ignore_errors=True)


def _delivered_name(rollout: StoredRollout) -> str:
    # Branch paths have no underscore. Side by side, none moves together with another.
    return rollout.spec.chain.replace("/", "_") or "root"


def read_rescoring(job: JobPaths, name: str) -> Rescoring | None:
    """Read the summary of a scoring; None if there is none."""
    try:
        return Rescoring.model_validate_json(read_stored(summary_of(job, name)))
    except (FileNotFoundError, ValidationError):
        return None


def write_rescoring(job: JobPaths, rescoring: Rescoring) -> None:
    """Write the summary of a scoring."""
    write_json(summary_of(job, rescoring.name), rescoring.model_dump(mode="json"))
