"""Agents' questions to their user, answered by a callback while a client waits for a rollout.

The questions are held by the workflows, so none is lost with this process: the next client that watches finds those
that are still unanswered.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from benchflow.contracts import temporal_names
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollout_records import Answer, UserQuestion
from benchflow.errors import AskUserError
from benchflow.jobs.job_client import QUERY_TIMEOUT, Job
from benchflow.workflow_executions import is_not_found

Reply = Answer | str | Mapping[str, Any] | None
AskHandler = Callable[[UserQuestion], Reply | Awaitable[Reply]]
"""Callback that answers a question by the id of an option, a text or a form's content, an `Answer`, or None, which
declines it.
"""

POLL_INTERVAL_SEC = 0.5
"""Seconds between two polls for questions."""


async def wait_and_answer(job: Job, rollout: str, handler: AskHandler) -> None:
    """Wait until the job has ended, as `Job.wait` does; meanwhile answer questions of a rollout and its children.

    Args:
        job: The job.
        rollout: Workflow id of the rollout.
        handler: Called once per question; again if the rollout was rolled back and asks anew.

    Raises:
        AskUserError: The handler raises, or returns an invalid answer. The agent still waits for one.
    """
    await _Watch(job, rollout, handler).until_over()


class _Watch:
    """Polls a rollout and its children for questions, and has the handler answer each once.

    `_asked` is keyed by workflow, start of its phase and question, so that a question is asked anew after a rollback.
    """

    def __init__(self, job: Job, rollout: str, handler: AskHandler) -> None:
        self._job, self._rollout, self._handler = job, rollout, handler
        self._asked: dict[tuple[str, float, str], asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def until_over(self) -> None:
        """Poll and answer until the job has ended. Raise the first error of the handler."""
        over = asyncio.create_task(self._job.wait())
        try:
            while not over.done():
                await self._look()
                answering = {task for task in self._asked.values() if not task.done()}
                await asyncio.wait({over, *answering}, timeout=POLL_INTERVAL_SEC, return_when=asyncio.FIRST_COMPLETED)
                for task in self._asked.values():
                    if task.done():
                        task.result()
            await over
        finally:
            tasks = (over, *self._asked.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        """Start to answer each new question of the rollout and of its children, without waiting for the answers."""
        async for workflow, progress in self._asking(self._rollout):
            question = progress.question
            if question is None or (key := (workflow, progress.since, question.id)) in self._asked:
                continue
            asks = UserQuestion(**question.model_dump(), rollout=workflow, chain=progress.chain)
            self._asked[key] = asyncio.create_task(self._answer(asks))

    async def _asking(self, workflow: str) -> AsyncIterator[tuple[str, RolloutProgress]]:
        """Yield the workflow ids and the progress of the running leaves of a rollout's tree."""
        try:
            about = await self._job.engine.client.get_workflow_handle(workflow).describe(rpc_timeout=QUERY_TIMEOUT)
        except RPCError:
            # It has not started, or the server is restarting.
            return
        if about.status != WorkflowExecutionStatus.RUNNING:
            return
        children = [child.workflow_id for child in about.raw_description.pending_children]
        for child in children:
            async for found in self._asking(child):
                yield found
        # A rollout that waits for its children asks nothing.
        progress = await self._job.rollout_progress(workflow) if not children else None
        if progress is not None:
            yield workflow, progress

    async def _answer(self, question: UserQuestion) -> None:
        """Have the handler answer a question, and signal the answer to the rollout until the server accepts it."""
        answer = make_answer(question, await self._replied(question))
        while True:
            handle = self._job.engine.client.get_workflow_handle(question.rollout)
            try:
                return await handle.signal(temporal_names.ANSWER, answer)
            except RPCError as error:
                if is_not_found(error):
                    return
                await asyncio.sleep(POLL_INTERVAL_SEC)

    async def _replied(self, question: UserQuestion) -> Any:
        """Return the handler's reply; run a handler that is not async in a thread, one at a time."""
        try:
            if inspect.iscoroutinefunction(self._handler):
                return await self._handler(question)
            # It may wait for a person at a keyboard, who answers one question at a time.
            async with self._one_at_a_time:
                reply = await asyncio.to_thread(self._handler, question)
            return await reply if inspect.isawaitable(reply) else reply
        except Exception as error:
            raise _make_error(question, f"raised {type(error).__name__}: {error}") from error


def make_answer(question: UserQuestion, reply: Reply) -> Answer:
    """Return the answer that a handler's reply stands for.

    Args:
        question: The question.
        reply: Return value of the handler.

    Raises:
        AskUserError: The reply does not fit the question.
    """
    if isinstance(reply, str):
        reply = _parse_text(question, reply)
    elif isinstance(reply, Mapping):
        reply = Answer(question=question.id, content=dict(reply))
    elif reply is None:
        reply = Answer(question=question.id)
    if not isinstance(reply, Answer):
        raise _make_error(question, f"returned what is no answer: {reply!r}")
    offered = [option.id for option in question.options]
    if reply.question != question.id:
        raise _make_error(
            question, f"returned an answer to another question, {reply.question!r}, not to {question.id!r}"
        )
    if reply.option is not None and reply.option not in offered:
        raise _make_error(question, f"returned {reply.option!r}, and offered is: {', '.join(offered) or 'a form'}")
    if reply.content is not None and question.kind != "form":
        raise _make_error(question, f"filled in a form where one of these is offered: {', '.join(offered)}")
    return reply


def _parse_text(question: UserQuestion, text: str) -> Answer:
    """Return a text as an answer: the content of a form's only field, if that is a string, else the id of an option."""
    fields = list(((question.form or {}).get("properties") or {}).items())
    if question.options or len(fields) != 1 or fields[0][1].get("type", "string") != "string":
        return Answer(question=question.id, option=text)
    return Answer(question=question.id, content={fields[0][0]: text})


def _make_error(question: UserQuestion, what: str) -> AskUserError:
    asks = f"{question.rollout}{f' ({question.chain})' if question.chain else ''}"
    return AskUserError(
        f"on_ask_user {what}",
        key="on_ask_user",
        remedy=f"{asks} still waits, asking {question.text[:200]!r}: run it again with a handler that answers",
    )
