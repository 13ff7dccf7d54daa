"""Judge stored rollouts by a rubric of the request, and count the questions and the cost of judges."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from benchflow.archive_reader import copy_content, read_archive
from benchflow.confined import ConfinedDirectory, ConfinedPath
from benchflow.contracts.rescoring import JudgeUse
from benchflow.contracts.reward import Judge, JudgeAnswer, JudgeQuestion, JudgeRubric, RolloutNode, VerifyResult
from benchflow.errors import JudgeError, UnsafePathError, VerifierError
from benchflow.planes.reward.evidence import get_archive_limits
from benchflow.planes.reward.judge import JudgedDocument, Material, judge_rubric, list_documents

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of a retained workspace's files that are unpacked for a judge, all together."""

_TRAJECTORY = "trajectory/acp_trajectory.jsonl"
"""Name under which a judge is shown the events of the trajectory."""


class CountingJudge:
    """A `Judge` that asks another one, `inner`, and sums up the answers in `use`: None until there is one."""

    def __init__(self) -> None:
        """Make it without an `inner`, which is set later."""
        self.inner: Judge | None = None
        self.use: JudgeUse | None = None

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """Return the answer of `inner`, and count it. Raises `JudgeError` if there is no `inner`."""
        if self.inner is None:
            raise JudgeError("there is nobody to ask")
        answer = await self.inner.ask(question)
        self.use = _add_answer(self.use or JudgeUse(cost_usd=0.0), answer)
        return answer


def _add_answer(use: JudgeUse, answer: JudgeAnswer) -> JudgeUse:
    if answer.is_recorded:
        return use.model_copy(update={"recorded": use.recorded + 1})
    known = use.cost_usd is not None and answer.cost_usd is not None
    return use.model_copy(
        update={
            "asked": use.asked + 1,
            "input_tokens": use.input_tokens + answer.input_tokens,
            "output_tokens": use.output_tokens + answer.output_tokens,
            "cost_usd": (use.cost_usd or 0.0) + (answer.cost_usd or 0.0) if known else None,
        }
    )


def sum_uses(uses: Iterable[JudgeUse | None]) -> JudgeUse | None:
    """Return the sum of several judge uses; None if all are None. The cost is None unless all costs are known."""
    known = [use for use in uses if use is not None]
    if not known:
        return None
    costs = [use.cost_usd for use in known if use.cost_usd is not None]
    return JudgeUse(
        asked=sum(use.asked for use in known),
        recorded=sum(use.recorded for use in known),
        input_tokens=sum(use.input_tokens for use in known),
        output_tokens=sum(use.output_tokens for use in known),
        cost_usd=sum(costs) if len(costs) == len(known) else None,
    )


async def judge_stored(rubric: JudgeRubric, node: RolloutNode, workspace: Path | None, now: datetime) -> VerifyResult:
    """Return a judge's score of a stored rollout by a rubric of the request.

    The judge is shown the retained inputs of scorers, or else the files of the retained workspace; the artifacts; and
    the trajectory.

    Args:
        rubric: The rubric.
        node: Node to score; its rollout has the judge.
        workspace: Archive of the retained workspace; None if it was not retained.
        now: Time of the reward events.

    Raises:
        JudgeError: The judge can't be asked, or gives no valid answer.
        VerifierError: The workspace can't be read.
    """
    judge = node.rollout.judge
    assert judge is not None
    with tempfile.TemporaryDirectory(prefix="benchflow-rescore-") as scratch:
        documents = await asyncio.to_thread(_list_documents, node, workspace, Path(scratch))
        return await judge_rubric(
            rubric,
            Material(documents, node.rollout.task, node.rollout.instruction),
            judge=judge,
            now=now,
            source="rubric",
        )


def _list_documents(node: RolloutNode, workspace: Path | None, scratch: Path) -> list[JudgedDocument]:
    kept, results = node.rollout.evidence, node.rollout.directory
    documents = list_documents(ConfinedPath(kept / "inputs")) if kept is not None else []
    if not documents and workspace is not None:
        left_out = _unpack(workspace, scratch)
        documents = list_documents(ConfinedPath(scratch), prefix=node.rollout.workspace.strip("/") + "/")
        if left_out:
            documents.append(JudgedDocument("(larger files)", f"[{left_out} larger files are not shown]"))
    if results is not None:
        documents += list_documents(ConfinedPath(results / "artifacts"), prefix="artifacts/")
    lines = "\n".join(json.dumps(event, ensure_ascii=False) for event in node.trajectory)
    return [*documents, JudgedDocument(_TRAJECTORY, lines)]


def _unpack(workspace: Path, target: Path) -> int:
    """Unpack the regular files of a retained workspace below `target`; return the number of those left out by size."""
    left, left_out = MAX_UNPACKED_BYTES, 0
    try:
        with workspace.open("rb") as file, ConfinedDirectory(target) as directory:
            for member in read_archive(file, get_archive_limits(file)):
                if member.content is None or member.leads_out:
                    continue
                if member.info.size > left:
                    left_out += 1
                    continue
                left -= member.info.size
                directory.make_directories("/".join(member.parts[:-1]))
                with (
                    contextlib.suppress(FileExistsError),
                    os.fdopen(directory.create("/".join(member.parts)), "wb") as place,
                ):
                    copy_content(member.content, place)
    except (OSError, tarfile.TarError, UnsafePathError) as error:
        raise VerifierError(f"the kept workspace cannot be read: {error}", file=str(workspace)) from error
    return left_out
