"""Identities. Every id is an idempotency key, reads as a path, and derives from what it names."""

from __future__ import annotations

import hashlib
import re

from benchflow.errors import ConfigError

MAX_ID = 200
"""Longest workflow id, in characters."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def short_hash(text: str, length: int = 8) -> str:
    """The first hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def cut(text: str, length: int) -> str:
    """`text` if it fits, else its beginning and a hash of all of it."""
    return text if len(text) <= length else f"{text[: length - 9]}-{short_hash(text)}"


def slug(text: str) -> str:
    """`text` with what a path or an id cannot hold replaced; marked by a hash where something was."""
    safe = _UNSAFE.sub("-", text).strip("-.") or "x"
    return safe if safe == text else f"{safe}-{short_hash(text, 4)}"


def check_job_name(name: str) -> str:
    """`name`, or a `ConfigError` that proposes one that is allowed."""
    if _JOB_NAME.fullmatch(name):
        return name
    proposal = _UNSAFE.sub("-", name).strip("-.")[:80] or "my-job"
    raise ConfigError(
        f"{name!r} cannot name a job: it names a directory and a workflow",
        key="job_name",
        remedy=f"use 1 to 80 letters, digits, '.', '_' or '-', beginning with a letter or digit: {proposal!r}",
    )


def job_id(name: str, jobs_dir: str) -> str:
    """`job/<name>-<hash8 of the absolute jobs_dir>`."""
    return f"job/{name}-{short_hash(jobs_dir)}"


def rollout_id(job: str, task: str, agent: str, repeat: int) -> str:
    """`<job>/r/<task>/<agent key>/<repeat>`."""
    # A child of it is called by it, and more.
    room = MAX_ID - len(job) - len(f"/r///{repeat}") - len("/b/") - 16
    agent_key = cut(slug(agent), min(40, room // 2))
    return f"{job}/r/{cut(slug(task), room - len(agent_key))}/{agent_key}/{repeat}"


def child_id(root: str, chain: str) -> str:
    """`<root rollout>/b/<hash16 of the chain>`: the workflow id of a child in a tree."""
    return f"{root}/b/{short_hash(chain, 16)}"


def rollout_name(task: str, rollout: str) -> str:
    """`<task>__<id>`, the name of the rollout's results directory."""
    # A job may have ten thousand rollouts of one task, and no two may share a directory.
    return f"{cut(slug(task), 80)}__{short_hash(rollout, 12)}"


def shared_sandbox_name(stack: str, run: str, environment: str) -> str:
    """The name of a sandbox that all rollouts of a job share: of one run of the job, on one stack."""
    return f"bf-{cut(slug(environment), 24).lower()}-{short_hash(f'{stack}/{run}', 12)}-shared"


def clean_room_name(sandbox: str, run: str, key: str) -> str:
    """The name of a sandbox for a verifier alone, beside the agent's. key: of what is verified, e.g. `verify-0`."""
    return f"{sandbox}-{short_hash(f'{run}/{key}', 6)}"


def sandbox_name(stack: str, run: str, task: str, generation: int) -> str:
    """The name of a sandbox: of one run of one rollout, on one stack."""
    return f"bf-{cut(slug(task), 24).lower()}-{short_hash(f'{stack}/{run}', 12)}-{generation}"
