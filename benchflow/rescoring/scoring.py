"""One stored rollout scored again: each of its steps by what the task says, or by the rubric that was given instead.

What goes wrong is data: the record of a rollout that could not be scored has an error, and no number.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from benchflow.branching.custom import load_aggregate
from benchflow.confined import ConfinedDirectory
from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.failures import failure_of
from benchflow.contracts.reward import (
    Judge,
    JudgeRubric,
    JudgeSettings,
    RolloutNode,
    VerifyResult,
    Workbench,
)
from benchflow.contracts.rewards import combine_steps, is_measured, reaches
from benchflow.contracts.rollout import Failure, StepOutcome
from benchflow.contracts.task import Task
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.judge.by_key import JudgeByKey
from benchflow.planes.reward.needs import table_of
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify
from benchflow.planes.reward.verify import config_of
from benchflow.rescoring.judging import CountingJudge, judge_stored, together
from benchflow.rescoring.place import Place
from benchflow.rescoring.record import Outcome, RescoredRollout, StepScore, changes, check_place, place_of, write_record
from benchflow.rescoring.rubrics import GivenRubric
from benchflow.rescoring.stored import StoredRollout, read_children
from benchflow.rescoring.tasks import FoundTask, Tasks
from benchflow.rescoring.workbench import opened
from benchflow.results.write import without_events, write_rewards
from benchflow.secrets import Redactor, Secrets
from benchflow.store import storage_errors
from benchflow.trajectories.nodes import load_rollout
from benchflow.trajectories.tree import node_id
from benchflow.trajectories.values import state_value

_ANSWER = re.compile(r"(steps/[^/]+/)?judge/[^/]+")
"""The files of a rollout's new score that later attempts need."""


@dataclass(frozen=True)
class Scoring:
    """All that scores, the same for every rollout of a job. digest: of it; name: of the directories for the scores.

    tasks: to score by; recorded: those of the first scoring. judge: fields of `JudgeSettings`, over the job's own. See
    `Request` for the rest.
    """

    name: str
    digest: str
    tasks: Tasks
    recorded: Tasks
    secrets: Secrets
    state: StatePaths
    rubric: GivenRubric | None = None
    sandbox: str | None = None
    judge: Mapping[str, Any] = field(default_factory=dict)
    ask_again: bool = False
    trust_workspace: bool = False
    allow_code: Sequence[str] = ()


async def score_rollout(rollout: StoredRollout, scoring: Scoring, before: Sequence[StepScore] = ()) -> RescoredRollout:
    """Score it, and write what came of it beside its first score. before: of a child, what its parent's steps have now.

    Of one that branched, each child is scored, and its V(s) made anew. Raises `ResultFileError` where the way to the
    new scores leads through a link.
    """
    place = place_of(rollout.paths, scoring.name)
    await asyncio.to_thread(check_place, rollout.paths, place)
    work = _Rescored(rollout, scoring, place, before)
    record = await work.record()
    await asyncio.to_thread(write_record, work.paths, record)
    return record


class _Rescored:
    """A rollout on its way to its new score. paths: where that is written."""

    def __init__(
        self, rollout: StoredRollout, scoring: Scoring, paths: RolloutPaths, before: Sequence[StepScore]
    ) -> None:
        self._rollout, self._scoring, self.paths = rollout, scoring, paths
        settings = rollout.spec.run.judge.model_dump() | dict(scoring.judge)
        self._settings = JudgeSettings.model_validate(settings)
        self._judge = CountingJudge()
        self._records: list[RescoredRollout] = []
        self._found: FoundTask | None = None
        self._steps: list[StepScore] = list(before)
        self._warnings: list[str] = []

    async def record(self) -> RescoredRollout:
        if self._was_never_measured():
            return self._record("unmeasured")
        try:
            self._found = await self._scoring.tasks.find(self._rollout.spec.task)
            await asyncio.to_thread(_clear, self._rollout.paths, self.paths)
            for outcome in self._own_steps:
                if not await self._score_step(outcome, self._found):
                    return self._summed_up(self._found.task)
            if self._rollout.result.reward_kind == "value":
                return self._valued(await self._children())
        except Exception as error:
            return self._record("failed", error=failure_of(error, "verify"))
        return self._summed_up(self._found.task)

    async def _children(self) -> list[ChildOutcome]:
        """What the children earn now, one after another: a rollout of several is one place in the window."""
        outcomes = []
        for child in await asyncio.to_thread(read_children, self._rollout):
            record = await score_rollout(child, self._scoring, self._steps)
            self._records.append(record)
            number = int(child.spec.chain.rpartition(".")[2])
            outcomes.append(
                ChildOutcome(chain=child.spec.chain, number=number, reward=record.reward, failure=record.error)
            )
        return outcomes

    def _valued(self, children: list[ChildOutcome]) -> RescoredRollout:
        """V(s) of what the children have now. A child that had no return has none, and one that had needs one."""
        had = [record for record in self._records if record.reward_before is not None]
        lost = next((record for record in had if record.outcome == "failed"), None)
        if lost is not None:
            return self._record("failed", error=lost.error)
        config = self._rollout.spec.run.branch
        aggregate = config.aggregate if config is not None else "mean"
        own = load_aggregate(aggregate)
        value = state_value(self._rollout.branched_at, aggregate, children, own=own)
        if value.value is None:
            return self._record("unmeasured")
        rewards = {"reward": value.value}
        is_same = rewards == self._rollout.result.rewards
        return self._record("unchanged" if is_same else "changed", rewards=rewards, value=value)

    @property
    def _own_steps(self) -> list[StepOutcome]:
        """Those that it has run itself; of a child, the ones before are its parent's."""
        return self._rollout.result.steps[self._rollout.spec.begins_at[1] :]

    def _was_never_measured(self) -> bool:
        """Whether it has no reward because of how it ended, whatever a verifier would say."""
        error, steps = self._rollout.result.error, self._own_steps
        cut_short = not is_measured(error)
        if self._rollout.result.reward_kind == "value":
            return self._rollout.result.reward is None
        return cut_short or not any(step.verify or step.verifier_error for step in steps)

    async def _score_step(self, outcome: StepOutcome, found: FoundTask) -> bool:
        """Score a step, and say whether the next one counts: as when it was run, a step may have to be good enough."""
        if outcome.verify is None and outcome.verifier_error is None:
            return False
        logs = self.paths.verifier_of(outcome.step.name)
        place = Place(
            rollout=self._rollout,
            outcome=outcome,
            task=lambda: self._scoring.tasks.find(self._rollout.spec.task),
            recorded=lambda: self._scoring.recorded.find(self._rollout.spec.task),
            logs=logs,
            secrets=self._scoring.secrets,
            state=self._scoring.state,
            sandbox=self._scoring.sandbox,
            is_trusted=self._scoring.trust_workspace,
        )
        mark = {"index": outcome.step.index, "name": outcome.step.name}
        redact = place.redactor(found.task)
        try:
            async with opened(place) as workbench:
                judge = self._judge_of(outcome, found.task, redact)
                result = redact.result(await self._said(outcome, found, judge, workbench))
                if self._rollout.spec.run.branch is not None:
                    require_scalar(result, "a rollout that branches")
                if isinstance(_min_reward(outcome, found.task), int | float):
                    require_scalar(result, "min_reward", of_only_key=False)
        except Exception as error:
            failure = _redacted(failure_of(error, "verify"), redact)
            self._steps.append(StepScore(**mark, verifier=place.ran, error=failure))
            return False
        finally:
            for note in place.warnings:
                self._warn(note)
        await asyncio.to_thread(write_rewards, self.paths, outcome.step.index, result.events)
        self._steps.append(StepScore(**mark, verifier=place.ran, verify=without_events(result)))
        if place.ran == "ran" and self._rollout.spec.task.environment is not None:
            self._warn(
                "the services of its world did not run for the verifier, which was shown their state as it was kept"
            )
        return self._counts_on(outcome, found.task, result)

    def _judge_of(self, outcome: StepOutcome, task: Task, redact: Redactor) -> Judge:
        secrets = self._scoring.secrets
        given = secrets.resolve(config_of(task, outcome.step.name).env)
        self._judge.inner = JudgeByKey(
            self._settings,
            lambda name: given.get(name) or secrets.value(name),
            self.paths.judge(outcome.step.name),
            redact.cut,
            earlier=() if self._scoring.ask_again else (self._rollout.paths.judge(outcome.step.name),),
        )
        return self._judge

    async def _said(self, outcome: StepOutcome, found: FoundTask, judge: Judge, workbench: Workbench) -> VerifyResult:
        """What the task's own scoring, or the rubric that was given, says of the state that a step led to."""
        node = await asyncio.to_thread(node_after, self._rollout, outcome, judge, workbench)
        given = self._scoring.rubric.rubric if self._scoring.rubric is not None else None
        if given is not None and not isinstance(given, JudgeRubric):
            return await given.score(node)
        task, config, now = found.task, config_of(found.task, outcome.step.name), datetime.now(UTC)

        async def output() -> VerifyResult:
            if given is not None:
                return await judge_stored(given, node, self._rollout.workspace(outcome.step.name), now)
            return await verify(node, task, config, step=outcome.step.name, now=now)

        file = f"{task.name}/{task.config_file}"
        table = table_of(task, outcome.step.name)
        allowed = self._scoring.allow_code
        return await score(node, output, table, now=now, reward_range=config.reward_range, file=file, allowed=allowed)

    def _counts_on(self, outcome: StepOutcome, task: Task, result: VerifyResult) -> bool:
        names = [step.name for step in task.steps]
        if outcome.step.name not in names or not result.is_scored:
            return result.is_scored
        place, run = names.index(outcome.step.name), self._rollout.result.steps
        is_last = outcome is run[-1]
        if reaches(result, _min_reward(outcome, task)):
            has_stopped = is_last and place + 1 < len(names) and self._rollout.result.error is None
            # Where it branches, its children run the others; or they are to end before the last.
            if has_stopped and self._rollout.spec.run.branch is None:
                self._warn(f"step {names[place]!r} is good enough now for the next one, which was not run")
            return True
        if not is_last:
            self._warn(f"step {names[place]!r} is not good enough now: the steps after it do not count")
        return False

    def _warn(self, note: str) -> None:
        if note not in self._warnings:
            self._warnings.append(note)

    # --- the record ------------------------------------------------------------------------------------

    def _summed_up(self, task: Task) -> RescoredRollout:
        of = {score.index: score for score in self._steps}
        outcomes = [
            outcome.model_copy(update={"verify": score.verify, "verifier_error": score.error})
            for outcome in self._rollout.result.steps
            if (score := of.get(outcome.step.index)) is not None
        ]
        strategy = task.multi_step_reward_strategy
        rewards, error = combine_steps(outcomes, strategy, self._rollout.result.error)
        if rewards is None:
            return self._record("failed", error=error)
        is_same = rewards == self._rollout.result.rewards
        return self._record("unchanged" if is_same else "changed", rewards=rewards)

    def _record(
        self,
        outcome: Outcome,
        *,
        rewards: dict[str, float] | None = None,
        error: Failure | None = None,
        value: StateValue | None = None,
    ) -> RescoredRollout:
        result, found = self._rollout.result, self._found
        notes = [note for step in self._steps if step.verify for note in step.verify.warnings]
        return RescoredRollout(
            rollout_name=result.rollout_name,
            task_name=result.task_name,
            agent=result.agent,
            model=result.model,
            repeat=result.repeat,
            scoring=self._scoring.digest,
            recorded_digest=result.task_digest,
            task_digest=found.digest if found else None,
            task_from=found.origin if found else None,
            outcome=outcome,
            before=result.rewards,
            rewards=rewards,
            changes=changes(result.rewards, rewards) if rewards is not None else {},
            steps=self._steps,
            value=value,
            judge=together([self._judge.use, *(record.judge for record in self._records)]),
            error=error or (result.error if outcome == "unmeasured" else None),
            warnings=self._warnings + notes,
            finished_at=datetime.now(UTC),
        )


def _min_reward(outcome: StepOutcome, task: Task) -> float | dict[str, float] | None:
    """Return what the task, as it is now, asks of a step's rewards before the next one is run."""
    return next((step.min_reward for step in task.steps if step.name == outcome.step.name), None)


def node_after(rollout: StoredRollout, outcome: StepOutcome, judge: Judge, workbench: Workbench) -> RolloutNode:
    """The node that a step led to, as it was when it was first scored: nothing had come of it or after it."""
    reached = load_rollout(rollout.paths.root, judge=judge)[node_id(outcome.step.index, rollout.spec.chain)]
    about = replace(reached.rollout, workbench=workbench)
    node: RolloutNode | None = None
    for each in reached.path:
        node = replace(each, parent=node, children=[], rewards=None, value=None, rollout=about)
        if node.parent is not None:
            node.parent.children.append(node)
    assert node is not None
    return node


def _redacted(failure: Failure, redact: Redactor) -> Failure:
    tail = redact.cut(failure.log_tail) if failure.log_tail else None
    return failure.model_copy(update={"message": redact.cut(failure.message), "log_tail": tail})


def _clear(rollout: RolloutPaths, place: RolloutPaths) -> None:
    """Remove what an attempt that failed or was killed has left, but for the answers of judges, and all links."""
    with storage_errors(place.root), ConfinedDirectory(rollout.root) as directory:
        name = place.root.relative_to(rollout.root).as_posix()
        directory.make_directories(name)
        for entry in list(directory.entries(name)):
            is_answer = entry.is_file and _ANSWER.fullmatch(entry.name.removeprefix(f"{name}/"))
            if not entry.is_directory and not is_answer:
                directory.remove(entry.name)
