"""Provenance of stored jobs: a MAC of the configuration shows that it was written with this state directory's key.

Users exchange the directories of jobs. A job's configuration names variables, files of this host, URLs, a sandbox and
code, which a command that acts on the job would use. Such a command therefore accepts only a configuration that was
written with this state directory, or one that its user trusts explicitly.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator

from benchflow.confined import ConfinedDirectory
from benchflow.contracts.job import AgentSpec, JobSpec
from benchflow.errors import ResultFileError, StackError, UnsafePathError, UntrustedJobError
from benchflow.host import make_state_private, require_own_place
from benchflow.host_files import hold_lock, write_atomic
from benchflow.paths import JobPaths, StatePaths
from benchflow.results.summary import parse_spec, read_config
from benchflow.secrets import list_agent_references
from benchflow.stored_files import read_stored

_KEY_BYTES = 32

_PURPOSE = b"benchflow: configuration of a job\n"
"""Prefix of the authenticated bytes, so that a MAC made for another purpose with the same key is not valid here."""

_MAX_MACS = 1024
"""Maximum bytes of the file of MACs, which has at most two."""

_MAX_LISTED = 10
"""Maximum number of names of one kind that an error lists."""


def write_config(job: JobPaths, spec: JobSpec) -> None:
    """Write a job's configuration and the MAC of its bytes.

    The MACs are written first, and include that of the configuration that is replaced: after a crash between the two
    writes, either configuration is still valid.
    """
    content = spec.model_dump_json(indent=2).encode() + b"\n"
    macs = [_compute_mac(_make_key(StatePaths.default()), content), *_read_macs(job)[:1]]
    write_atomic(job.config_mac, "".join(f"{mac}\n" for mac in macs).encode())
    write_atomic(job.config, content)


def is_own(job: JobPaths) -> bool:
    """Return whether a job's configuration was written with this state directory."""
    return _has_mac(job, read_config(job))


def read_own_spec(job: JobPaths, *, trust: bool = False) -> JobSpec:
    """Return the specification of a stored job, in order to act on it.

    Args:
        job: Paths of the job.
        trust: Accept it, whoever wrote it.

    Raises:
        UntrustedJobError: It was not written with this state directory.
        JobNotFoundError: There is no configuration.
        ResultFileError: The configuration cannot be parsed.
    """
    content = read_config(job)
    spec = parse_spec(job, content)
    if not trust and not _has_mac(job, content):
        raise _make_untrusted_error(job, spec)
    return spec


def _make_untrusted_error(job: JobPaths, spec: JobSpec) -> UntrustedJobError:
    """Return the error for an untrusted job, which lists what its configuration would use."""
    lines = []
    for kind, names in _list_uses(spec).items():
        listed = list(dict.fromkeys(names))
        if listed:
            more = f", and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
            lines.append(f"  {kind}: {', '.join(listed[:_MAX_LISTED])}{more}")
    return UntrustedJobError(
        "this job was not submitted with your state directory, or its configuration was changed since. It uses:\n"
        + "\n".join(lines),
        file=str(job.config),
        remedy="read the file; if you trust whoever wrote it with all of that, give --trust (in Python: trust=True)",
    )


def _list_uses(spec: JobSpec) -> dict[str, list[str]]:
    """Return what a command would use for a job's configuration, by kind."""
    run = spec.run
    worlds = [task.environment for task in spec.tasks if task.environment is not None]
    references = [name for agent in spec.agents for name in sorted(list_agent_references(agent))]
    variables = [name for name in references if not name.startswith("~/")]
    variables += [name for world in worlds for name in world.manifest.forward_env.keys]
    files = [name for name in references if name.startswith("~/")]
    packs = [pack for task in spec.tasks for pack in (task.pack, task.context) if pack is not None]
    packs += [world.image for world in worlds if world.image is not None]
    paths = [task.source for task in spec.tasks] + [world.source for world in worlds if world.code is None]
    paths += [spec.context_root, spec.environment_manifest, run.replay.record if run.replay is not None else None]
    return {
        "sandbox": [run.sandbox],
        "variables": [*variables, *([run.judge.credential] if run.judge.credential else [])],
        "credential files": [*files, *(f"~/{path}" for agent in spec.agents for path in _login_files(agent))],
        "addresses": [*_list_addresses(spec), *([run.judge.base_url] if run.judge.base_url else [])],
        "code": list(_list_code(spec)),
        "files of this host": [path for path in paths if path],
        "packs": [pack.uri for pack in packs if pack.uri.startswith("file:")],
    }


def _login_files(agent: AgentSpec) -> tuple[str, ...]:
    return agent.record.credential_files if agent.record is not None else ()


def _list_addresses(spec: JobSpec) -> Iterator[str]:
    """Yield the URLs of model endpoints."""
    for agent in spec.agents:
        if agent.base_url is not None:
            yield agent.base_url
        elif agent.record is not None:
            yield from (endpoint.upstream for endpoint in agent.record.endpoints)


def _list_code(spec: JobSpec) -> Iterator[str]:
    """Yield names and commands of the code that the configuration would run."""
    yield from spec.run.allow_code
    for task in spec.tasks:
        if task.environment is not None and task.environment.code is not None:
            yield task.environment.code
    for agent in spec.agents:
        if ":" in agent.name:
            yield agent.name
        if agent.record is not None:
            packages = agent.record.install.packages if agent.record.install is not None else {}
            yield " ".join([agent.name, "=", *agent.record.launch])
            yield from (f"{name} {version}" for name, version in packages.items())
    branch = spec.run.branch
    if branch is not None:
        yield from (name for name in (getattr(branch.policy, "policy", ""), branch.aggregate) if ":" in name)


# --- the key and the MACs ------------------------------------------------------------------------------


def _compute_mac(key: bytes, content: bytes) -> str:
    return hmac.new(key, _PURPOSE + content, hashlib.sha256).hexdigest()


def _has_mac(job: JobPaths, content: bytes) -> bool:
    """Return whether one of a job's MACs authenticates the content, by the key of this state directory."""
    key = _read_key(StatePaths.default())
    if key is None:
        return False
    wanted = _compute_mac(key, content)
    return any(hmac.compare_digest(wanted, mac) for mac in _read_macs(job))


def _read_macs(job: JobPaths) -> list[str]:
    """Return the MACs of a job's configuration; empty if there is no valid file of them."""
    try:
        return read_stored(job.config_mac, limit=_MAX_MACS).decode("ascii").split()
    except (FileNotFoundError, ResultFileError, UnicodeDecodeError):
        return []


def _make_key(paths: StatePaths) -> bytes:
    """Return the key of a state directory; make it if there is none."""
    make_state_private(paths)
    with hold_lock(paths.root / "job-key.lock"):
        key = _read_key(paths)
        if key is None:
            key = secrets.token_bytes(_KEY_BYTES)
            write_atomic(paths.job_key, key)
        return key


def _read_key(paths: StatePaths) -> bytes | None:
    """Return the key of a state directory; None if there is none yet. Raise `StackError` if it is not safe."""
    # Another user who knows the key could forge MACs of this user.
    require_own_place(paths.root, key="BENCHFLOW_STATE_DIR")
    try:
        with ConfinedDirectory(paths.root) as directory, directory.open(paths.job_key.name) as file:
            status, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnsafePathError as error:
        raise _make_key_error(paths, error.message) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise _make_key_error(paths, "other users can read it")
    if len(key) != _KEY_BYTES:
        raise _make_key_error(paths, f"it does not hold {_KEY_BYTES} bytes")
    return key


def _make_key_error(paths: StatePaths, why: str) -> StackError:
    return StackError(
        f"this cannot be the key by which jobs are known: {why}",
        file=str(paths.job_key),
        remedy="remove it; jobs that were submitted before then need --trust",
    )
