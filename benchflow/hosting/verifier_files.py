"""Files that verifiers of finished steps have left in the sandbox, and that no later agent may see."""

from __future__ import annotations

from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.verify import config_of, verifier_of
from benchflow.store import write_atomic

SETTLED = "settled.json"
"""File of the evidence: all of it is there, with the warnings. Later changes to the sandbox do not count."""

_REMOVED = "verifier-removed"
"""File of the evidence: the sandbox no longer has what the step's verifier brought and wrote."""


async def remove_verifiers(rollout: Hosted) -> None:
    """Take out of the sandbox what the verifiers of its steps brought and wrote, before an agent or a copy has it.

    Not at the end of a verification: one that a crash cuts off reads the verifier's files again.
    """
    task = rollout.task
    for index, step in enumerate(task.steps):
        evidence = rollout.paths.evidence(step.name)
        if not (evidence / SETTLED).is_file() or (evidence / _REMOVED).is_file():
            continue
        if config_of(task, step.name).sandbox_mode != "separate":
            verifier = verifier_of(task, rollout.directory, step.name, key=f"verify-{index}", env={}, trusted=True)
            await verifier.leave(rollout.sandbox)
        write_atomic(evidence / _REMOVED, b"", durable=False)
