"""One turn of an agent that has a session: from its prompt, or resumed where an earlier attempt left it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Literal

from benchflow.contracts.activities import StepInput
from benchflow.contracts.agent import Line, Session, StopReason, TurnLimits, TurnRequest, Unanswered
from benchflow.contracts.failures import failure_of
from benchflow.contracts.gateway import ReplayStatus
from benchflow.contracts.rollout_records import Failure, Question, TurnResult
from benchflow.errors import (
    AgentError,
    AgentOutputError,
    AgentTimeoutError,
    BenchFlowError,
    BudgetExhaustedError,
    ReplayDivergedError,
    StackError,
)
from benchflow.gateway.turn_calls import TurnCalls, TurnEnd
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_agent import HostedAgent
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.replays import TAKEN_AGAIN
from benchflow.planes.agent import attribute_errors
from benchflow.planes.agent.question_answers import make_answerer
from benchflow.planes.agent.turn_limits import DEFAULT_TIMEOUTS
from benchflow.planes.sandbox.cancellation import run_to_completion
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.trajectories.journal import NodeWriter
from benchflow.trajectories.rollout_tree import make_step_node_id

_MAX_TEXT, _MAX_NAME, _MAX_FORM = 4000, 200, 32_000
"""Maximum number of characters of a question's text, of an option's name and of a form in a workflow's history."""

_MAX_OPTIONS = 50


def open_trajectory(rollout: Hosted, work: StepInput) -> NodeWriter:
    """Return the writer of a step's events, which redacts them. The caller closes it.

    Args:
        rollout: The rollout.
        work: The step. Events of a replayed turn of the parent go to a file of their own.
    """
    path, spec = rollout.paths.trajectory, rollout.spec
    # A replayed turn is the parent's.
    path = path if work.before is None else path.with_name(TAKEN_AGAIN)
    return NodeWriter(path, make_step_node_id(work.step.index, spec.chain), work.step.role, redact=rollout.redact.line)


class SessionTurn:
    """One turn of an agent that has a session.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: The step and the agent's session.
        prompt: Prompt of the turn.
    """

    def __init__(self, rollout: Hosted, work: StepInput, prompt: str) -> None:
        """Make it."""
        self._rollout = rollout
        self._work = work
        self._prompt = prompt
        self._redact = rollout.redact
        self._session: Session
        self._is_interrupted = False
        self._end = TurnEnd()
        self._model = rollout.find_gateway_model(work.session)

    async def run(self, session: Session, writer: NodeWriter) -> TurnResult:
        """Run the turn to its end or to a question of the agent, or resume it where an earlier attempt left it.

        A failure of agent, model or limits is in the result, and not raised. If the rollout is cancelled, the agent is
        ended. The session is closed in any case.

        Args:
            session: Handle of the agent's session.
            writer: Writer of the turn's events.

        Returns:
            The result: stop reason, usage, question or failure.

        Raises:
            StackError: The engine stopped the agent although the rollout was not cancelled; retryable.
        """
        self._session = session
        try:
            turn = await self._run_metered(writer) if self._model is not None else await self._run_unmetered(writer)
        except asyncio.CancelledError:
            if is_cancelled():
                with suppress(BenchFlowError):
                    await run_to_completion(self._end_cancelled())
            raise
        finally:
            await session.close()
        if self._is_interrupted and turn.failure is None:
            raise StackError("the engine stopped the agent, and the rollout was not cancelled")
        return turn

    async def _run_unmetered(self, writer: NodeWriter) -> TurnResult:
        """Prompt the agent, and return the turn's result without the gateway's data."""
        try:
            return await self._make_result(await self._prompt_agent(writer), writer)
        except Unanswered as waiting:
            return self._make_turn("paused", question=self._shorten_question(waiting.question))
        except AgentError as error:
            await self._session.end()
            failure = self._rollout.redact_failure(failure_of(error))
            writer.add([{"type": "agent_error", "category": failure.category, "message": failure.message}])
            return self._make_turn("error").model_copy(update={"failure": failure})

    async def _run_metered(self, writer: NodeWriter) -> TurnResult:
        """Prompt the agent with its calls attributed and watched; return the result with the gateway's data.

        These are the usage, whether calls were still in flight, and failures by refused calls or by the endpoint.
        """
        assert self._model is not None
        before, calls = await self._model.begin_turn(self._work.step)
        async with self._model.watch_calls(calls, lambda: self._session.cancel(self._work.step.index)):
            turn = await self._run_unmetered(writer)
        if turn.question is not None:
            return turn
        quiet, status, usage = await self._model.end_turn(before)
        end: Literal["observed", "inferred"] = "observed" if quiet else "inferred"
        turn_end = end if turn.turn_end is not None else None
        replay = self._told(status.replay)
        turn = turn.model_copy(update={"usage": usage, "turn_end": turn_end, "replay": replay, "prefix": status.prefix})
        if status.prefix_divergence is not None:
            writer.add([{"type": "other_prefix", "message": self._redact(status.prefix_divergence.message)}])
        ended = self._find_refusal(status.budget_exhausted, replay)
        ended = ended or await self._find_endpoint_error(calls, turn, status.silent)
        if ended is None:
            return turn
        failure, line = ended
        writer.add([{"type": failure.category} | line])
        return turn.model_copy(update={"stop_reason": failure.category, "failure": failure})

    def _told(self, replay: ReplayStatus | None) -> ReplayStatus | None:
        """Return a replay's status without secrets: a divergence shows parts of the agent's request."""
        if replay is None:
            return None
        return ReplayStatus.model_validate(self._redact.within(replay.model_dump(mode="json")))

    def _find_refusal(self, limit: str | None, replay: ReplayStatus | None) -> tuple[Failure, dict[str, Any]] | None:
        """Return why the gateway refused calls, and the trajectory's line about it; None if it refused none."""
        if limit is not None:
            error: BenchFlowError = BudgetExhaustedError(
                f"the rollout has used up its {limit}", key=f"limits.{limit}", remedy="raise the limit"
            )
            return failure_of(error), {"limit": limit}
        settings = self._rollout.spec.run.replay
        divergence = replay.divergence if replay is not None else None
        if settings is None or not settings.strict or divergence is None:
            return None
        error = ReplayDivergedError(
            divergence.message,
            file=settings.record,
            remedy="without --strict the model answers from there on",
            log_tail=divergence.diff or None,
        )
        return failure_of(error), {"message": divergence.message, "diff": divergence.diff}

    async def _find_endpoint_error(
        self, calls: TurnCalls, turn: TurnResult, silent: Mapping[str, float]
    ) -> tuple[Failure, dict[str, Any]] | None:
        """Return why the model did not answer, and the trajectory's line about it; None if it did.

        `silent` is that of `TurnCalls.find_problem`.
        """
        assert self._model is not None
        end = replace(self._end, is_failed=turn.failure is not None)
        error = await self._model.find_endpoint_error(calls, end, silent)
        if error is None:
            return None
        failure = self._rollout.redact_failure(failure_of(error))
        return failure, {"message": failure.message}

    async def _prompt_agent(self, writer: NodeWriter) -> StopReason:
        """Prompt the agent, or follow a turn that was prompted already, and return why the turn is over."""
        step, session = self._work.step, self._session
        ask_blocked = self._model.find_blocked if self._model is not None else None
        limits = TurnLimits(wall=step.timeout_sec, idle=step.idle_timeout_sec, ask_blocked=ask_blocked)

        def take(lines: list[Line]) -> None:
            writer.add(lines)
            if writer.is_full:
                raise AgentOutputError("the agent said more than a trajectory holds")

        session.on_ask_user(make_answerer(self._rollout.spec.run.permissions, self._work.answers))
        turn = TurnRequest(step.index, self._prompt, limits, take, writer.skip)
        with attribute_errors(self._rollout.record):
            return await (session.nudge(turn) if self._work.goes_on else session.prompt(turn))

    async def _make_result(self, stop: StopReason, writer: NodeWriter) -> TurnResult:
        self._is_interrupted = stop.ended_by == "cancelled"
        if stop.ended_by not in ("wall_clock", "idle"):
            return self._make_turn(stop.reason, inferred=True)
        step = self._work.step
        limit = step.timeout_sec if stop.ended_by == "wall_clock" else step.idle_timeout_sec
        self._end = TurnEnd(stop.ended_by, limit if limit is not None else math.inf)
        writer.add([{"type": "agent_timeout", "reason": stop.ended_by, "timeout_sec": limit}])
        said = "did not finish in" if stop.ended_by == "wall_clock" else "said nothing for"
        failure = failure_of(
            AgentTimeoutError(f"the agent {said} {limit:g} s", log_tail=await self._session.log_tail())
        )
        return self._make_turn("timeout").model_copy(update={"failure": self._rollout.redact_failure(failure)})

    def _make_turn(self, stop_reason: str, *, inferred: bool = False, question: Question | None = None) -> TurnResult:
        counts = self._session.counts
        return TurnResult(
            # An agent may report any text; the protocol's stop reasons are short.
            stop_reason=self._redact(stop_reason)[:100],
            n_tool_calls=len(counts.tool_calls),
            usage=counts.usage,
            # Only the gateway can observe that no model call is in flight.
            turn_end="inferred" if inferred else None,
            question=question,
        )

    def _shorten_question(self, question: Question) -> Question:
        """Return a question as a workflow carries it: without secrets, and short."""
        redact = self._redact.cut
        options = [
            option.model_copy(update={"name": redact(option.name)[:_MAX_NAME]})
            for option in question.options[:_MAX_OPTIONS]
        ]
        form = self._redact.within(question.form)
        shown = {"text": redact(question.text)[:_MAX_TEXT], "options": options}
        return question.model_copy(update=shown | {"form": form if len(str(form)) < _MAX_FORM else None})

    async def _end_cancelled(self) -> None:
        """End the turn of a cancelled rollout, and its agent. Output that still comes is recorded."""
        with closing(open_trajectory(self._rollout, self._work)) as writer:
            assert self._work.session is not None
            self._session = session = await HostedAgent(self._rollout).attach_session(self._work.session)
            try:
                session.cancel(self._work.step.index)
                writer.add([{"type": "user_message", "text": self._prompt}])
                # Reading the rest of a flooded journal would take minutes.
                with suppress(TimeoutError):
                    async with awake_timeout(DEFAULT_TIMEOUTS.cancel + 2.0):
                        await self._prompt_agent(writer)
            finally:
                await session.close()
                await session.end()
