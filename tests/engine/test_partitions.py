"""A host that the server does not hear of for a while: its agents go on, and what they did counts."""

from __future__ import annotations

from dataclasses import replace

from support.in_process_worker import InProcessWorker
from support.relay import Relay

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.handover import RunningActivities
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.worker import make_workers

APART = "benchflow-host-apart"


async def test_a_partition_ends_no_work_but_what_is_cancelled_meanwhile(worker: InProcessWorker) -> None:
    """Longer than the SDK waits before it cancels by itself what it can't report: heartbeat timeout + 5 s."""
    provider = worker.provider
    provider.held = provider.holds_verifiers = True
    worker.options(heartbeat_timeout_sec=1)
    provider.elsewhere = {"play": [APART], "stay": [APART], "verified": [APART], "grown": [APART] * 3}
    growing = {"branch": {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}, "job_name": "tree"}
    async with Relay.to(worker.target.address) as relay:
        target = replace(worker.target, address=f"127.0.0.1:{relay.port}")
        client = await connect(target)
        context = replace(worker.context, queue=APART, client=client)
        records = RunningActivities(worker.context.paths.running, "apart")
        records.open()
        work = OngoingWork(client, records.identity, poll_sec=0.1)
        async with make_workers(context, records, work)[1]:
            job = await worker.submit(*map(worker.task, ("play", "stay", "verified")))
            tree = await worker.submit(worker.stepped(2, name="grown"), **growing)
            provider.release(*(name for name in await worker.in_turn(4) if not {"play", "stay"} & {*name.split("/")}))

            async def are_verified() -> bool:
                return sum(provider.verified.values()) == 2

            await until(are_verified)
            provider.release(next(name for name in provider.in_turn if "/grown/" in name))
            # Two turns, those of two children, and a verifier.
            rollouts = await worker.in_turn(5)
            relay.cut()

            async def attempts_are_over() -> bool:
                return work.unattended == 5 or provider.in_turn != rollouts

            await until(attempts_are_over)
            assert provider.in_turn == rollouts
            await job.cancel_rollout(next(rollout for rollout in rollouts if "/stay/" in rollout))
            relay.mend()

            async def is_ended() -> bool:
                return len(provider.in_turn) == 4

            await until(is_ended)
            provider.release_all()
            results = {result.task_name: result for result in await worker.results(job)}
            (grown,) = await worker.results(tree)
        await work.close()
    cancelled = results.pop("stay")
    assert (cancelled.status, cancelled.rewards) == ("cancelled", None)
    assert [*results] == ["play", "verified"]
    for result in [*results.values(), grown]:
        assert (result.status, result.reward, result.error) == ("passed", 1.0, None)
    assert {*provider.turns.values()} == {*provider.verified.values()} == {1}
    assert not provider.open
