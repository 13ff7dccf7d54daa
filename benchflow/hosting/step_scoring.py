"""Score a step on this host, by the task's verifier and its reward functions.

`verify` comes after a step, and ends the agent. `preview` runs only the verifier, between turns, and changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from benchflow.contracts.activities import SoftVerifyInput, VerifyInput
from benchflow.contracts.reward import VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.hosting.fidelity import Fidelity, store_fidelity
from benchflow.hosting.freezing import thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_world import has_ended_world, store_state
from benchflow.hosting.out_of_memory import explain_losses
from benchflow.hosting.scored_step import Open, ScoredStep
from benchflow.hosting.verifier_place import VerifierPlace
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.needs import make_reward_table
from benchflow.planes.reward.on_tampering import apply_rule
from benchflow.planes.reward.sandbox_workbench import SandboxWorkbench
from benchflow.planes.reward.score import score
from benchflow.planes.reward.strategy import verify as output_of
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.results.hardening_findings import make_hardening_metadata
from benchflow.results.write import remove_events, write_rewards


async def verify(rollout: Hosted, work: VerifyInput) -> VerifyResult:
    """End the agent, score the state that a step led to, write the reward events, and return the result.

    The evidence is collected once, and the verifier runs once: a retry resumes after them. An oracle's rewards are also
    stored as the task's `Fidelity`.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: The step, the agent's session, and whether it is the last step.

    Raises:
        VerifierError: The verifier failed, or gave no valid reward.
        RewardFuncError: A reward function failed.
        SandboxMemoryError: The sandbox ended for want of memory.
    """
    step, scored = work.step, ScoredStep(rollout, work.step)

    measured: list[VerifyResult] = []

    async def scorers(open: Open, verifier: ScriptVerifier) -> VerifyResult:
        task, config = rollout.task, scored.config
        bench = SandboxWorkbench(open, verifier, scored.logs)
        node = await asyncio.to_thread(scored.make_node, scored.evidence, bench, rollout.paths.judge(step.name))
        now = datetime.now(UTC)

        async def output() -> VerifyResult:
            measured[:] = [await output_of(node, task, config, step=step.name, now=now)]
            return measured[0]

        return await score(
            node,
            output,
            make_reward_table(task, step.name),
            now=now,
            reward_range=config.reward_range,
            file=f"{task.name}/{task.config_file}",
            allowed=rollout.spec.run.allow_code,
        )

    async with explain_losses(rollout.sandbox):
        settled = await scored.settle(work)
        verifier = scored.make_verifier(settled.state)
        # Later rollouts use a shared sandbox, and children start from the sandbox of a rollout that branches.
        spec = rollout.spec
        is_last = work.is_last and spec.job_run_id is None and spec.branch is None and spec.run.branch is None
        result = await scored.score(verifier, work.run_id, scored.evidence, scorers, settled.place, is_last=is_last)
        if measured and scored.is_trusted and rollout.spec.branch is None:
            rewards, task = measured[0].rewards, rollout.spec.task.digest
            found = Fidelity(separate=rewards) if settled.place.is_separate else Fidelity(shared=rewards)
            store_fidelity(task, rollout.ref.provider, step.name, found)
            if not settled.place.is_separate and (trial := scored.trial) is not None:
                alone = replace(verifier, key=f"{verifier.key}-trial")
                trial_room = scored.make_room(alone.key, work.run_id, scored.evidence / "trial")
                await trial.run(trial_room, scored.make_room_verifier(alone, trial_room), scored.measure_alone)
    if rollout.spec.run.branch is not None:
        require_scalar(result, "a rollout that branches")
    if isinstance(step.min_reward, int | float):
        require_scalar(result, "min_reward", of_only_key=False)
    if not result.is_scored:
        raise RewardFuncError(result.error or "the reward could not be made of what was measured")
    report = await asyncio.to_thread(scored.report.read)
    rule, reward_range = rollout.spec.run.on_tampering, scored.config.reward_range
    result = apply_rule(result, report, rule, reward_range=reward_range, now=datetime.now(UTC))
    await asyncio.to_thread(write_rewards, rollout.paths, step.index, result.events)
    warnings = list(dict.fromkeys([*settled.notes, *result.warnings]))
    metadata = result.metadata | make_hardening_metadata(report) | scored.make_fidelity_metadata()
    return remove_events(result.model_copy(update={"warnings": warnings, "metadata": metadata}))


async def preview(rollout: Hosted, work: SoftVerifyInput) -> VerifyResult:
    """Return a verification preview: the verifier's result for the current state, while the agent waits for an answer.

    The agent and its processes stay, and the result does not count as the step's.

    Args:
        rollout: The rollout, attached to its sandbox.
        work: The step under way, and the number of the preview, which names its directory in the results.

    Raises:
        VerifierError: The verifier failed, or gave no valid reward.
    """
    scored, root = ScoredStep(rollout, work.step), rollout.paths.root / "soft" / str(work.number)
    evidence, shown = root / "evidence", None
    # An attempt that a crash interrupted may have left the sandbox frozen.
    await thaw(rollout.sandbox, rollout.paths.root)
    world = await rollout.open_world()
    if world is not None and not has_ended_world(rollout):
        shown, _ = await store_state(rollout, world, f"soft-{work.number}", work.baseline)
    verifier = replace(scored.make_verifier(shown), key=f"soft-{work.number}")
    await scored.store_inputs(evidence)
    # A preview is not worth the cost of finding out whether a clean room is faithful.
    place = VerifierPlace(is_separate=scored.config.sandbox_mode == "separate", why="a look between turns")
    if place.is_separate:
        await scored.pack_for_room(evidence)

    async def scorers(open: Open, verifier: ScriptVerifier) -> VerifyResult:
        bench = SandboxWorkbench(open, verifier, root / "verifier", soft=not place.is_separate)
        node = await asyncio.to_thread(scored.make_node, evidence, bench, root / "judge")
        return await output_of(node, rollout.task, scored.config, step=work.step.name, now=datetime.now(UTC))

    return remove_events(await scored.score(verifier, work.run_id, evidence, scorers, place))
