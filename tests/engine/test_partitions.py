"""A host that the server does not hear of for a while: its agents go on, and what they did counts."""

from __future__ import annotations

from dataclasses import replace

from support.relay import Relay
from support.theatre import Theatre

from benchflow.activities.attempts import OngoingWork
from benchflow.activities.handover import RunningActivities
from benchflow.temporal import connect
from benchflow.testing.waiting import until
from benchflow.worker import make_workers

APART = "benchflow-host-apart"


async def test_a_partition_ends_no_turn_but_one_that_is_cancelled_meanwhile(theatre: Theatre) -> None:
    """Longer than the SDK waits before it cancels by itself what it can't report: heartbeat timeout + 5 s."""
    theatre.hall.held = True
    theatre.options(heartbeat_timeout_sec=1)
    theatre.hall.elsewhere = {"play": [APART], "stay": [APART]}
    async with Relay.to(theatre.target.address) as relay:
        target = replace(theatre.target, address=f"127.0.0.1:{relay.port}")
        client = await connect(target)
        context = replace(theatre.context, queue=APART, client=client)
        records = RunningActivities(theatre.context.paths.running, "apart")
        records.open()
        work = OngoingWork(client, records.identity, poll_sec=0.1)
        async with make_workers(context, records, work)[1]:
            job = await theatre.submit(theatre.task("play"), theatre.task("stay"))
            rollouts = await theatre.in_turn(2)
            relay.cut()

            async def attempts_are_over() -> bool:
                return work.unattended == 2 or theatre.hall.in_turn != rollouts

            await until(attempts_are_over)
            assert theatre.hall.in_turn == rollouts
            await job.cancel_rollout(next(rollout for rollout in rollouts if "/stay/" in rollout))
            relay.mend()

            async def is_ended() -> bool:
                return len(theatre.hall.in_turn) == 1

            await until(is_ended)
            theatre.hall.release()
            results = {result.task_name: result for result in await theatre.results(job)}
        await work.close()
    assert (results["play"].status, results["play"].reward, results["play"].error) == ("passed", 1.0, None)
    assert (results["stay"].status, results["stay"].rewards) == ("cancelled", None)
    assert {*theatre.hall.turns.values()} == {1}
    assert not theatre.hall.open
