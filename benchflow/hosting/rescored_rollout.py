"""Score one stored rollout of a tree again: its steps, then its reward from them or from its children.

No agent is run. A step is scored by its task as it is now, or by a rubric that the request names instead. A rollout
that can't be scored gets a record with an error and no reward; only retryable errors are raised.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchflow.branching.custom import load_aggregate
from benchflow.confined import ConfinedDirectory
from benchflow.contracts.base import Model
from benchflow.contracts.branch import ChildOutcome, StateValue
from benchflow.contracts.failures import failure_of
from benchflow.contracts.rescoring import Outcome, RescoredRollout, StepScore
from benchflow.contracts.reward import Judge, JudgeSettings, RolloutNode, VerifyResult, Workbench
from benchflow.contracts.rewards import combine_steps, is_measured, reaches
from benchflow.contracts.rollout_records import Failure, StepOutcome
from benchflow.contracts.task import Task
from benchflow.errors import BenchFlowError, VerifierError
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.scoring_basis import ScoringBasis
from benchflow.hosting.stored_judging import CountingJudge, judge_stored, sum_uses
from benchflow.hosting.stored_step import StoredStep, make_labeller
from benchflow.hosting.stored_workbench import open_workbench
from benchflow.paths import RolloutPaths
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.judge.model_judge import JudgeByKey
from benchflow.planes.reward.needs import make_reward_table
from benchflow.planes.reward.on_tampering import apply_rule
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify
from benchflow.results.hardening_findings import make_hardening_metadata
from benchflow.results.rescored import compare_metrics
from benchflow.results.stored_rollouts import StoredRollout
from benchflow.results.write import remove_events, write_rewards
from benchflow.stored_files import read_stored
from benchflow.trajectories.nodes import load_rollout
from benchflow.trajectories.rollout_tree import make_step_node_id
from benchflow.trajectories.state_values import compute_state_value

_ANSWER = re.compile(r"(steps/[^/]+/)?judge/[^/]+")
"""Files of a rollout's new score that outlive a run of the workflow: recorded answers of judges."""

UNFINISHED = "unfinished"
"""Directory of a new score for the progress of one run of the workflow; removed once the record is written."""

_RUN = "run"
"""File in that directory with the id of the run."""


class _StepNote(Model):
    """Score of a step, stored so that a later attempt does not score the step again."""

    score: StepScore
    warnings: list[str]
    is_next_scored: bool
    """Whether the step after it counts, because its rewards reach the minimum that the task requires."""


class RescoredRolloutWork:
    """The scoring of one stored rollout of a tree: call `score_steps`, then `record`.

    Args:
        basis: Tasks and rubric to score by.
        stored: The stored rollout.
        paths: Paths for the new score.
        before: New scores of the parent's steps, for a child.
    """

    def __init__(
        self, basis: ScoringBasis, stored: StoredRollout, paths: RolloutPaths, before: list[StepScore]
    ) -> None:
        """Make it."""
        self._basis, self._stored, self._paths = basis, stored, paths
        self._settings = JudgeSettings.model_validate(basis.spec.run.judge.model_dump() | basis.scoring.judge)
        self._judge = CountingJudge()
        self._steps: list[StepScore] = list(before)
        self._warnings: list[str] = []
        self._failure: Failure | None = None
        self._is_cut_short = False
        """Whether some step does not count, so that the steps after it, and the children, do not count either."""
        self._task: Task | None = None

    async def score_steps(self) -> list[StepScore]:
        """Score the rollout's own steps, up to the first that does not count, and return them after the parent's.

        A step that an earlier attempt of this run has scored is read from its note. An error is stored for `record`.

        Raises:
            BenchFlowError: It is retryable.
        """
        if self._was_never_measured():
            return self._steps
        try:
            self._task = (await self._basis.load_rollout()).task
            await asyncio.to_thread(self._begin)
            for outcome in self._own_steps:
                if not await self._score_step(outcome, self._task):
                    self._is_cut_short = True
                    break
        except Exception as error:
            self._fail(error)
        return self._steps

    def _fail(self, error: Exception) -> None:
        """Store an error, redacted, as the rollout's; raise it if it is retryable."""
        if isinstance(error, BenchFlowError) and error.retryable:
            raise error
        self._failure = self._basis.redact_failure(failure_of(error, "verify"))

    @property
    def _own_steps(self) -> list[StepOutcome]:
        """Return the steps that the rollout ran itself, without those of a child's parent."""
        return self._stored.result.steps[self._stored.spec.begins_at[1] :]

    def _was_never_measured(self) -> bool:
        """Return whether the rollout has no reward because of how it ended, whatever a verifier would report."""
        result, steps = self._stored.result, self._own_steps
        if result.reward_kind == "value":
            return result.reward is None
        return not is_measured(result.error) or not any(step.verify or step.verifier_error for step in steps)

    @property
    def _unfinished(self) -> Path:
        return self._paths.root / UNFINISHED

    def _begin(self) -> None:
        """Remove the files of another run's score, except judges' answers. Do nothing in a retry of this run."""
        mark, run = self._unfinished / _RUN, self._basis.owner.run.encode()
        try:
            if read_stored(mark) == run:
                return
        except FileNotFoundError:
            pass
        root, paths = self._stored.paths.root, self._paths
        with raise_storage_errors(paths.root), ConfinedDirectory(root) as directory:
            name = paths.root.relative_to(root).as_posix()
            directory.make_directories(name)
            for entry in list(directory.entries(name)):
                is_answer = entry.is_file and _ANSWER.fullmatch(entry.name.removeprefix(f"{name}/"))
                if not entry.is_directory and not is_answer:
                    directory.remove(entry.name)
            directory.make_directories(f"{name}/{UNFINISHED}")
        write_atomic(mark, run)

    # --- a step -----------------------------------------------------------------------------------------------

    async def _score_step(self, outcome: StepOutcome, task: Task) -> bool:
        """Score a step, or read its note, and return whether the next step counts. A step that never ran: False."""
        if outcome.verify is None and outcome.verifier_error is None:
            return False
        noted = self._unfinished / f"{outcome.step.index}.json"
        try:
            note = _StepNote.model_validate_json(await asyncio.to_thread(read_stored, noted))
        except FileNotFoundError:
            note = await self._score_step_now(outcome, task)
            await asyncio.to_thread(write_atomic, noted, note.model_dump_json().encode())
        self._steps.append(note.score)
        self._warnings += [text for text in note.warnings if text not in self._warnings]
        return note.is_next_scored

    async def _score_step_now(self, outcome: StepOutcome, task: Task) -> _StepNote:
        basis = self._basis
        rollout = await basis.load_rollout()
        step = StoredStep(
            stored=self._stored,
            outcome=outcome,
            by=basis.load_rollout,
            first_by=lambda: basis.load_rollout(first=True),
            logs=self._paths.verifier_of(outcome.step.name),
            notes=self._unfinished / "rooms",
            labels=make_labeller(basis.owner),
            owner=basis.owner,
            is_trusted=basis.scoring.trust_workspace,
        )
        mark = {"index": outcome.step.index, "name": outcome.step.name}
        try:
            async with open_workbench(step) as workbench:
                judge = self._make_judge(outcome, rollout)
                result = rollout.redact.result(await self._score_state(outcome, rollout, judge, workbench))
            if basis.spec.run.branch is not None:
                require_scalar(result, "a rollout that branches")
            if isinstance(_find_min_reward(outcome, task), int | float):
                require_scalar(result, "min_reward", of_only_key=False)
            report = await asyncio.to_thread(step.make_hardening_report, rollout)
            if result.is_scored:
                allowed = find_config(rollout.task, outcome.step.name).reward_range
                rule, now = basis.spec.run.on_tampering, datetime.now(UTC)
                result = apply_rule(result, report, rule, reward_range=allowed, now=now)
        except Exception as error:
            if isinstance(error, BenchFlowError) and error.retryable:
                raise
            # The verifier of the first scoring's task may have run, too, with the secrets of that task.
            failure, warnings = (
                basis.redact_failure(failure_of(error, "verify")),
                [*map(basis.redact_text, step.warnings)],
            )
            score_ = StepScore(**mark, verifier=step.ran, error=failure)
            return _StepNote(score=score_, warnings=warnings, is_next_scored=False)
        result = result.model_copy(update={"metadata": result.metadata | make_hardening_metadata(report)})
        await asyncio.to_thread(write_rewards, self._paths, outcome.step.index, result.events)
        warnings = [*map(basis.redact_text, step.warnings)]
        if step.ran == "ran" and basis.spec.task.environment is not None:
            warnings.append(
                "the services of its world did not run for the verifier, which was shown their state as it was kept"
            )
        counts = self._is_next_scored(outcome, task, result, warnings)
        score_ = StepScore(**mark, verifier=step.ran, verify=remove_events(result))
        return _StepNote(score=score_, warnings=warnings, is_next_scored=counts)

    def _make_judge(self, outcome: StepOutcome, rollout: Hosted) -> Judge:
        given = rollout.secrets.resolve(find_config(rollout.task, outcome.step.name).env)
        self._judge.inner = JudgeByKey(
            self._settings,
            lambda name: given.get(name) or rollout.secrets.value(name),
            self._paths.judge(outcome.step.name),
            rollout.redact.cut,
            earlier=() if self._basis.scoring.ask_again else (self._stored.paths.judge(outcome.step.name),),
        )
        return self._judge

    async def _score_state(
        self, outcome: StepOutcome, rollout: Hosted, judge: Judge, workbench: Workbench
    ) -> VerifyResult:
        """Score the state that a step led to: by the task's verifier and reward functions, or the request's rubric."""
        name, task, now = outcome.step.name, rollout.task, datetime.now(UTC)
        node = await asyncio.to_thread(load_node, self._stored, outcome, judge, workbench)
        if (scorer := self._basis.get_scorer()) is not None:
            try:
                return await scorer.score(node)
            except BaseException as error:
                if isinstance(error, Exception | asyncio.CancelledError | KeyboardInterrupt):
                    raise
                # SystemExit, and what pytest raises to fail a test, would end the worker, and again the next one.
                raise VerifierError(f"the rubric raised {type(error).__name__}: {error}") from error
        given, config = self._basis.scoring.rubric, find_config(task, name)

        async def output() -> VerifyResult:
            if given is not None and given.judge is not None:
                return await judge_stored(given.judge, node, self._stored.workspace(name), now)
            return await verify(node, task, config, step=name, now=now)

        file, allowed = f"{task.name}/{task.config_file}", self._basis.scoring.allow_code
        reward_range, table = config.reward_range, make_reward_table(task, name)
        return await score(node, output, table, now=now, reward_range=reward_range, file=file, allowed=allowed)

    def _is_next_scored(self, outcome: StepOutcome, task: Task, result: VerifyResult, warnings: list[str]) -> bool:
        """Return whether the step after this one counts. A change of that since the rollout is added to `warnings`."""
        names = [step.name for step in task.steps]
        if outcome.step.name not in names or not result.is_scored:
            return result.is_scored
        place, run = names.index(outcome.step.name), self._stored.result.steps
        is_last = outcome is run[-1]
        if reaches(result, _find_min_reward(outcome, task)):
            has_stopped = is_last and place + 1 < len(names) and self._stored.result.error is None
            # If it branches, its children run the other steps; or they are to end before the last.
            if has_stopped and self._stored.spec.run.branch is None:
                warnings.append(f"step {names[place]!r} is good enough now for the next one, which was not run")
            return True
        if not is_last:
            warnings.append(f"step {names[place]!r} is not good enough now: the steps after it do not count")
        return False

    # --- the record -------------------------------------------------------------------------------------------

    def record(self, children: list[ChildOutcome], below: list[RescoredRollout]) -> RescoredRollout:
        """Return the record of the new score.

        Args:
            children: New outcomes of the rollout's children.
            below: Their records.

        Raises:
            BenchFlowError: It is retryable.
        """
        if self._was_never_measured():
            return self._make_record("unmeasured", below)
        if self._failure is not None:
            return self._make_record("failed", below, error=self._failure)
        try:
            if self._stored.result.reward_kind == "value" and not self._is_cut_short:
                return self._record_value(children, below)
            return self._record_sum(below)
        except Exception as error:
            self._fail(error)
            return self._make_record("failed", below, error=self._failure)

    def _record_value(self, children: list[ChildOutcome], below: list[RescoredRollout]) -> RescoredRollout:
        """Return the record with V(s) of the children's new returns; a failure if a child has lost its return."""
        lost = next((record for record in below if record.has_lost_return), None)
        if lost is not None:
            return self._make_record("failed", below, error=lost.error)
        aggregate = find_aggregate(self._stored)
        value = compute_state_value(self._stored.branched_at, aggregate, children, own=load_aggregate(aggregate))
        if value.value is None:
            return self._make_record("unmeasured", below)
        return self._record_rewards({"reward": value.value}, below, value)

    def _record_sum(self, below: list[RescoredRollout]) -> RescoredRollout:
        """Return the record with the rewards that the steps' new scores give by the task's strategy."""
        of = {one.index: one for one in self._steps}
        outcomes = [
            apply_score(outcome, one)
            for outcome in self._stored.result.steps
            if (one := of.get(outcome.step.index)) is not None
        ]
        assert self._task is not None
        rewards, error = combine_steps(outcomes, self._task.multi_step_reward_strategy, self._stored.result.error)
        if rewards is None:
            return self._make_record("failed", below, error=error)
        return self._record_rewards(rewards, below)

    def _record_rewards(
        self, rewards: dict[str, float], below: list[RescoredRollout], value: StateValue | None = None
    ) -> RescoredRollout:
        self._warnings += [
            f"a child has no return any more, and where it began there is no value: {record.error.message}"
            for record in below
            if record.has_lost_return and record.error is not None
        ]
        is_same = rewards == self._stored.result.rewards
        return self._make_record("unchanged" if is_same else "changed", below, rewards=rewards, value=value)

    def _make_record(
        self,
        outcome: Outcome,
        below: list[RescoredRollout],
        *,
        rewards: dict[str, float] | None = None,
        error: Failure | None = None,
        value: StateValue | None = None,
    ) -> RescoredRollout:
        result, by = self._stored.result, self._basis.find_task()
        is_found = self._task is not None
        notes = [note for step in self._steps if step.verify for note in step.verify.warnings]
        return RescoredRollout(
            rollout_name=result.rollout_name,
            task_name=result.task_name,
            agent=result.agent,
            model=result.model,
            repeat=result.repeat,
            scoring=self._basis.scoring.digest,
            recorded_digest=result.task_digest,
            task_digest=by.digest if is_found else None,
            task_from=by.origin if is_found else None,
            outcome=outcome,
            before=result.rewards,
            rewards=rewards,
            changes=compare_metrics(result.rewards, rewards) if rewards is not None else {},
            steps=self._steps,
            value=value,
            judge=sum_uses([self._judge.use, *(record.judge for record in below)]),
            error=error or (result.error if outcome == "unmeasured" else None),
            warnings=self._warnings + notes,
            finished_at=datetime.now(UTC),
            stored_finished_at=result.finished_at,
        )


def _find_min_reward(outcome: StepOutcome, task: Task) -> float | dict[str, float] | None:
    """Return the rewards that a step must reach for the next one to run, by the task as it is now; None for any."""
    return next((step.min_reward for step in task.steps if step.name == outcome.step.name), None)


def load_node(rollout: StoredRollout, outcome: StepOutcome, judge: Judge, workbench: Workbench) -> RolloutNode:
    """Return the node that a step led to, as it was before its first scoring: without rewards and later nodes.

    Args:
        rollout: The stored rollout.
        outcome: The step.
        judge: Judge for the node's scorers.
        workbench: Workbench for the node's scorers.
    """
    reached = load_rollout(rollout.paths.root, judge=judge)[make_step_node_id(outcome.step.index, rollout.spec.chain)]
    about = replace(reached.rollout, workbench=workbench)
    node: RolloutNode | None = None
    for each in reached.path:
        node = replace(each, parent=node, children=[], rewards=None, value=None, rollout=about)
        if node.parent is not None:
            node.parent.children.append(node)
    assert node is not None
    return node


def apply_score(outcome: StepOutcome, score_: StepScore) -> StepOutcome:
    """Return a step's outcome with its new score, and without its turn's usage, which was counted at first."""
    turn = outcome.turn.model_copy(update={"usage": None})
    return outcome.model_copy(update={"turn": turn, "verify": score_.verify, "verifier_error": score_.error})


def find_aggregate(stored: StoredRollout) -> str:
    """Return the name of the aggregation that makes V(s) of the returns of a rollout's children; `mean` by default."""
    config = stored.spec.run.branch
    return config.aggregate if config is not None else "mean"
