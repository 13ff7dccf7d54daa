"""Remove the files of finished steps' verifiers from the sandbox, which no later agent may see."""

from __future__ import annotations

from benchflow.host_files import write_atomic
from benchflow.hosting.hosted import Hosted
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.verify import make_verifier

SETTLED = "settled.json"
"""File that marks a step's evidence as complete, with its warnings. Later changes to the sandbox do not count."""

_REMOVED = "verifier-removed"
"""File of the evidence that marks the files of the step's verifier as removed from the sandbox."""


async def remove_verifiers(rollout: Hosted) -> None:
    """Remove the files that verifiers of finished steps brought and wrote, once per step.

    Call it before an agent acts in the sandbox, and before the sandbox is copied. It is not part of a verification,
    because one that resumes after a crash reads the verifier's files again.

    Args:
        rollout: The rollout, attached to its sandbox.
    """
    task = rollout.task
    for index, step in enumerate(task.steps):
        evidence = rollout.paths.evidence(step.name)
        if not (evidence / SETTLED).is_file() or (evidence / _REMOVED).is_file():
            continue
        if find_config(task, step.name).sandbox_mode != "separate":
            verifier = make_verifier(task, rollout.directory, step.name, key=f"verify-{index}", env={}, trusted=True)
            await verifier.remove_files(rollout.sandbox)
        write_atomic(evidence / _REMOVED, b"", durable=False)
