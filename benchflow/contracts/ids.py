"""Ids and names of workflows, results directories and sandboxes.

Every id is an idempotency key, reads as a path, and derives from the thing that it names.
"""

from __future__ import annotations

import hashlib
import re

from benchflow.errors import ConfigError

MAX_ID = 200
"""Most characters of a workflow id."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def short_hash(text: str, length: int = 8) -> str:
    """Return the first `length` hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def cut(text: str, length: int) -> str:
    """Return `text` if it has at most `length` characters, else its beginning and a hash of all of it."""
    return text if len(text) <= length else f"{text[: length - 9]}-{short_hash(text)}"


def slug(text: str) -> str:
    """Return `text` as a part of a path or id: characters not allowed there are replaced, and a hash is added then."""
    safe = _UNSAFE.sub("-", text).strip("-.") or "x"
    return safe if safe == text else f"{safe}-{short_hash(text, 4)}"


def check_job_name(name: str) -> str:
    """Return the name of a job.

    Raises:
        ConfigError: The name is not allowed. The remedy proposes one that is.
    """
    if _JOB_NAME.fullmatch(name):
        return name
    proposal = _UNSAFE.sub("-", name).strip("-.")[:80] or "my-job"
    raise ConfigError(
        f"{name!r} cannot name a job: it names a directory and a workflow",
        key="job_name",
        remedy=f"use 1 to 80 letters, digits, '.', '_' or '-', beginning with a letter or digit: {proposal!r}",
    )


def job_id(name: str, jobs_dir: str) -> str:
    """Return the workflow id of a job, `job/<name>-<hash8>`. The hash is of `jobs_dir`, an absolute path."""
    return f"job/{name}-{short_hash(jobs_dir)}"


def rollout_id(job: str, task: str, agent: str, repeat: int) -> str:
    """Return the workflow id of a rollout, `<job>/r/<task>/<agent key>/<repeat>`.

    Args:
        job: Workflow id of the job.
        task: Name of the task.
        agent: Label of the agent, `agent` or `agent:model`.
        repeat: Number of the repeat, from 0.
    """
    # The workflow id of a child adds `/b/` and 16 hex digits to it.
    room = MAX_ID - len(job) - len(f"/r///{repeat}") - len("/b/") - 16
    agent_key = cut(slug(agent), min(40, room // 2))
    return f"{job}/r/{cut(slug(task), room - len(agent_key))}/{agent_key}/{repeat}"


def child_id(root: str, chain: str) -> str:
    """Return the workflow id of a child in a tree, `<root>/b/<hash16>`.

    Args:
        root: Workflow id of the tree's root.
        chain: Branch path of the child, of which the hash is.
    """
    return f"{root}/b/{short_hash(chain, 16)}"


def rollout_name(task: str, rollout: str) -> str:
    """Return the name of a rollout's results directory, `<task>__<hash12>`.

    Args:
        task: Name of the task.
        rollout: Workflow id of the rollout, of which the hash is.
    """
    # A job may have ten thousand rollouts of one task, and no two may share a directory.
    return f"{cut(slug(task), 80)}__{short_hash(rollout, 12)}"


def shared_sandbox_name(stack: str, run: str, environment: str) -> str:
    """Return the name of a sandbox that all rollouts of a job share.

    Args:
        stack: Identity of the stack.
        run: Run id of the first run of the job's workflow.
        environment: Name of the environment; of the task if it has none.
    """
    return f"bf-{cut(slug(environment), 24).lower()}-{short_hash(f'{stack}/{run}', 12)}-shared"


def clean_room_name(sandbox: str, run: str, key: str) -> str:
    """Return the name of a clean room: a sandbox for a verifier alone.

    Args:
        sandbox: Name of the agent's sandbox.
        run: Run id of the first run of the rollout's workflow.
        key: Key of the verifier's run, such as `verify-0`.
    """
    return f"{sandbox}-{short_hash(f'{run}/{key}', 6)}"


def sandbox_name(stack: str, run: str, task: str, generation: int) -> str:
    """Return the name of a rollout's sandbox.

    Args:
        stack: Identity of the stack.
        run: Run id of the first run of the rollout's workflow.
        task: Name of the task.
        generation: Number of the sandbox among those of this run: each provisioning makes a new one.
    """
    return f"bf-{cut(slug(task), 24).lower()}-{short_hash(f'{stack}/{run}', 12)}-{generation}"
