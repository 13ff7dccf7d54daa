"""Score a stored rollout and its children again on this host, and write the new scores beside the stored results.

No agent is run. A step is scored by its task as it is now, or by a rubric that the request names instead. A rollout
that can't be scored gets a record with an error and no reward; only retryable errors are raised.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow.branching.custom import load_aggregate
from benchflow.contracts.activities import RolloutPlan
from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.rescoring import AgentlessScore, RescoredRollout, StepScore
from benchflow.contracts.rollout_records import Node
from benchflow.errors import (
    JobNotFoundError,
    ResultFileError,
    TaskError,
)
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.rescored_rollout import UNFINISHED, RescoredRolloutWork, apply_score, find_aggregate
from benchflow.hosting.scoring_basis import ScoringBasis
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.needs import compute_scoring_timeout
from benchflow.planes.reward.placement import PUT_SEC
from benchflow.results.rescored import (
    DELIVERED,
    check_rescored_paths,
    deliver,
    get_rescored_paths,
    read_record,
    write_record,
)
from benchflow.results.stored_rollouts import StoredRollout, apply_job_spec, read_children, read_rollout
from benchflow.results.write import begin_run
from benchflow.trajectories.growth import compute_state_values, get_branch_path, get_start_node
from benchflow.trajectories.stored import load_tree

_UNMEASURED: dict[str, Any] = {
    "value": None,
    "n": 0,
    "variance": None,
    "stderr": None,
    "failed": {},
    "pending": (),
    "returns": None,
}


class StoredScoring:
    """The scoring of one stored rollout and its children, for one run of its workflow.

    Args:
        basis: Tasks and rubric to score by.
    """

    def __init__(self, basis: ScoringBasis) -> None:
        """Make it."""
        self._basis = basis
        self._spec = basis.spec

    async def plan(self) -> RolloutPlan:
        """Return a plan with the timeout of scoring rollout and children, and the strategy of combining rewards.

        A task or a stored rollout that can't be read gives an empty plan: `rescore` records the error.
        """
        try:
            rollout, n_steps = (
                await self._basis.load_rollout(),
                await asyncio.to_thread(_count_steps, await self._read_stored()),
            )
        except (TaskError, ResultFileError, JobNotFoundError):
            # Raised again, and recorded, by `rescore`.
            return RolloutPlan(steps=[])
        task, start_sec = rollout.task, self._spec.run.sandbox_setup_timeout
        step_sec = 0.0
        names: list[str | None] = [step.name for step in task.steps]
        for name in names or [None]:
            config = find_config(task, name)
            ready_sec = rollout.blueprint.adapt_to_verifier(name, config, None).compute_ready_sec(start_sec)
            step_sec = max(
                step_sec, compute_scoring_timeout(task, config) + ready_sec + 4 * PUT_SEC + rollout.host.slots.wait_sec
            )
        # Twice: the verifier of the first scoring is run, too, if the task has changed.
        limit_sec = 2 * n_steps * step_sec
        return RolloutPlan(steps=[], strategy=task.multi_step_reward_strategy, scoring_timeout_sec=limit_sec)

    async def rescore(self) -> AgentlessScore:
        """Score the rollout and its children, and return the new score; complete records of this scoring are reused.

        Raises:
            ResultFileError: A stored file can't be read, or the rollout was rolled back meanwhile.
            BenchFlowError: It is retryable.
        """
        stored, scored = await self._read_stored(), list[_Scored]()
        paths = await asyncio.to_thread(Hosted(self._basis.host, self._spec).make_results_directory)
        identity = {"run_id": self._basis.owner.run, "generation": 0} | self._spec.model_dump(mode="json")
        await asyncio.to_thread(begin_run, paths, identity)
        record = await self._score(stored, [], scored)
        by_index = {one.index: one for one in record.steps}
        steps = [
            apply_score(outcome, one)
            for outcome in stored.result.steps
            if (one := by_index.get(outcome.step.index)) is not None
        ]
        outcomes = await asyncio.to_thread(_make_outcomes, scored)
        if not self._basis.host.is_origin(self._spec.origin):
            await asyncio.to_thread(self._deliver, scored)
        aggregate = find_aggregate(stored)
        return AgentlessScore(
            steps=steps,
            outcomes=outcomes,
            values=_drop_lost_values(scored, compute_state_values(outcomes, aggregate, own=load_aggregate(aggregate))),
            value=record.value,
            outcome=record.outcome,
            rewards=record.rewards,
            error=record.error,
            warnings=record.warnings,
        )

    async def _read_stored(self) -> StoredRollout:
        """Read the stored rollout, from the host where it lies or from the store."""
        ref = self._spec.stored
        assert ref is not None
        directory = Path(ref.directory)
        if not self._basis.host.is_origin(self._spec.origin):
            assert ref.pack is not None
            directory = await self._basis.host.fetch_directory(ref.pack)
        return apply_job_spec(await asyncio.to_thread(read_rollout, directory), self._spec)

    def _deliver(self, scored: list[_Scored]) -> None:
        """Copy the new scores into the results that go to the store, for the host of the stored rollout."""
        target = Hosted(self._basis.host, self._spec).make_results_directory().root / DELIVERED
        shutil.rmtree(target, ignore_errors=True)
        for one in scored:
            deliver(one.stored, self._basis.scoring.name, target)

    async def _score(self, stored: StoredRollout, before: list[StepScore], scored: list[_Scored]) -> RescoredRollout:
        """Score a rollout of the tree, then its children, write a record of each, and return the rollout's.

        Args:
            stored: The rollout.
            before: New scores of the parent's steps, for a child.
            scored: List to which the rollout and all below it are added, parents first.
        """
        place = get_rescored_paths(stored.paths, self._basis.scoring.name)
        await asyncio.to_thread(check_rescored_paths, stored.paths, place)
        children = await asyncio.to_thread(read_children, stored)
        known = await asyncio.to_thread(read_record, place)
        if known is not None and (
            known.scoring != self._basis.scoring.digest or not known.is_complete or not known.is_of(stored.result)
        ):
            known = None
        mine = _Scored(stored, known)
        scored.append(mine)
        one = RescoredRolloutWork(self._basis, stored, place, before)
        steps = known.steps if known is not None else await one.score_steps()
        outcomes, below = [], []
        for child in children:
            record = await self._score(child, steps, scored)
            below.append(record)
            outcomes.append(_make_outcome(child, record))
        if known is None:
            mine.record = known = one.record(outcomes, below)
            await asyncio.to_thread(_require_same, stored)
            await asyncio.to_thread(write_record, place, known)
            await asyncio.to_thread(shutil.rmtree, place.root / UNFINISHED, ignore_errors=True)
        return known


# --- the tree -------------------------------------------------------------------------------------------------


@dataclass
class _Scored:
    """A rollout of the tree, and its record; None until it is scored."""

    stored: StoredRollout
    record: RescoredRollout | None


def _make_outcome(stored: StoredRollout, record: RescoredRollout, nodes: Iterable[Node] = ()) -> ChildOutcome:
    """Return the new outcome of a child, with the nodes of its branch path."""
    chain, own = stored.spec.chain, list(nodes)
    return ChildOutcome(
        chain=chain,
        number=int(chain.rpartition(".")[2]),
        reward=record.reward,
        value=record.value,
        failure=record.error,
        leaf=own[-1].id if own else None,
        nodes=own,
    )


def _make_outcomes(scored: list[_Scored]) -> list[ChildOutcome]:
    """Return the new outcomes of all rollouts below the first, each with the nodes of its own branch path."""
    root, *below = scored
    if not below:
        return []
    stored = load_tree(root.stored.paths.root).tree
    records = {one.stored.spec.chain: one.record for one in scored}
    own: dict[str, list[Node]] = {}
    for node in stored.nodes:
        chain = get_branch_path(node.id)
        own.setdefault(chain, []).append(
            node.model_copy(update={**_UNMEASURED, **_find_rewards(node, records.get(chain))})
        )
    outcomes = []
    for one in below:
        assert one.record is not None
        outcomes.append(_make_outcome(one.stored, one.record, own.get(one.stored.spec.chain, [])))
    known = {outcome.chain for outcome in outcomes}
    # Children without a result failed at first, and count as failed now.
    for chain, failure in ((chain, failure) for node in stored.nodes for chain, failure in node.failed.items()):
        if chain not in known:
            number = int(chain.rpartition(".")[2])
            outcomes.append(ChildOutcome(chain=chain, number=number, failure=failure, nodes=own.get(chain, [])))
    return outcomes


def _drop_lost_values(scored: list[_Scored], values: list[StateValue]) -> list[StateValue]:
    """Return V(s) of all nodes, without a value if a child has lost its return: the others' V(s) is not comparable."""
    lost = {
        get_start_node(one.stored.spec.chain) for one in scored if one.record is not None and one.record.has_lost_return
    }
    none = {"value": None, "variance": None, "stderr": None}
    return [value.model_copy(update=none) if value.node in lost else value for value in values]


def _find_rewards(node: Node, record: RescoredRollout | None) -> Mapping[str, object]:
    steps = {step.index: step.verify for step in record.steps} if record is not None else {}
    result = steps.get(node.step) if node.step is not None else None
    return {"rewards": result.rewards if result is not None else None}


def _require_same(stored: StoredRollout) -> None:
    """Raise `ResultFileError` if a rollout was rolled back since it was read: the scored work is reverted."""
    with suppress(JobNotFoundError):
        if read_rollout(stored.paths.root).result.finished_at == stored.result.finished_at:
            return
    raise ResultFileError(
        "the rollout was rolled back while it was scored",
        file=str(stored.paths.root),
        remedy="score it again once it has ended",
    )


def _count_steps(stored: StoredRollout) -> int:
    """Return the number of steps that a rollout and all rollouts below it have run."""
    own = len(stored.result.steps) - stored.spec.begins_at[1]
    return own + sum(_count_steps(child) for child in read_children(stored))
