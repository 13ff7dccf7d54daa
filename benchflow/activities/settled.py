"""Steps whose agent has ended for good: what their verifiers leave in the sandbox is not for who comes next."""

from __future__ import annotations

from benchflow.activities.context import WorkerContext
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.reward.verify import config_of, verifier_of
from benchflow.store import write_atomic
from benchflow.tasks import verified_in

SETTLED = "settled.json"
"""In the evidence: that all of it is there, with the warnings. What comes after changes what there would be to keep."""

_REMOVED = "verifier-removed"
"""In the evidence: that the sandbox no longer has what the step's verifier brought and wrote."""


async def remove_verifiers(context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox) -> None:
    """Take out of a sandbox what the verifiers of its steps brought and wrote, before an agent or a copy has it.

    Not at the end of a verification: one that a crash cuts off reads the verifier's files again.
    """
    task, directory = await context.task(spec.task)
    paths = context.results(spec)
    for index, step in enumerate(task.steps):
        evidence = paths.evidence(step.name)
        if not (evidence / SETTLED).is_file() or (evidence / _REMOVED).is_file():
            continue
        if config_of(verified_in(task, spec.run.verify_in), step.name).sandbox_mode == "shared":
            verifier = verifier_of(task, directory, step.name, key=f"verify-{index}", env={}, trusted=True)
            await verifier.leave(sandbox)
        write_atomic(evidence / _REMOVED, b"", durable=False)
