"""Where things lie on this host, and how a job's results are laid out. Nothing else decides a path.

The state directory belongs to the engine (server database, store, records). The jobs directory belongs to the
user; `JobPaths` and `RolloutPaths` are its layout.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


def state_dir() -> Path:
    """`$BENCHFLOW_STATE_DIR`, else `$XDG_STATE_HOME/benchflow`, else `~/.local/state/benchflow`."""
    explicit = os.environ.get("BENCHFLOW_STATE_DIR")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    return root / "benchflow"


PRIVATE_UMASK = 0o077
"""Of the engine's own processes: what they write is for their user alone, whoever writes it and wherever.

What a sandbox's users are to read gets its mode explicitly. A process of a user's that calls the engine keeps its own.
"""

MAX_SOCKET_ADDRESS_BYTES = 107
"""Of a socket's path, as the kernel takes it: 108 bytes, the last one a zero."""


def socket_address(path: Path) -> str:
    """Return the address at which this process connects to a socket whose path may be longer than an address."""
    if len(os.fsencode(path)) <= MAX_SOCKET_ADDRESS_BYTES:
        return str(path)
    found = path.parent.stat()
    return f"/proc/self/fd/{_open_directory(path.parent, found.st_dev, found.st_ino)}/{path.name}"


@functools.cache
def _open_directory(path: Path, _device: int, _inode: int) -> int:
    """Open a directory, once in this process: clients connect again at the same address as long as they live."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@dataclass(frozen=True)
class StatePaths:
    """The engine's own files on this host."""

    root: Path

    @classmethod
    def default(cls) -> StatePaths:
        return cls(state_dir())

    @property
    def host_id(self) -> Path:
        return self.root / "host-id"

    @property
    def job_key(self) -> Path:
        """The secret by which jobs that were submitted with this state directory are known."""
        return self.root / "job-key"

    @property
    def stack_lock(self) -> Path:
        return self.root / "stack.lock"

    @property
    def stack_record(self) -> Path:
        return self.root / "stack.json"

    @property
    def stack_stopped(self) -> Path:
        """Exists while the stack is down because somebody stopped it."""
        return self.root / "stack-stopped"

    @property
    def worker_wanted(self) -> Path:
        return self.root / "worker-wanted.json"

    @property
    def last_used(self) -> Path:
        return self.root / "last-used"

    @property
    def database(self) -> Path:
        return self.root / "temporal.db"

    @property
    def server_socket(self) -> Path:
        """The socket through which the server is reached where it has a network namespace of its own."""
        return self.root / "server.sock"

    @property
    def ui_socket(self) -> Path:
        """The socket that leads to the server's Web UI, for the door alone."""
        return self.root / "ui.sock"

    @property
    def ui_token(self) -> Path:
        """The secret that the door of the Web UI asks for."""
        return self.root / "ui-token"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def tasks(self) -> Path:
        """Unpacked tasks, one directory a digest."""
        return self.root / "tasks"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def running(self) -> Path:
        """Task tokens of running activities, one directory a worker process."""
        return self.root / "running"

    @property
    def slots(self) -> Path:
        """One file a sandbox that counts against this host's capacity."""
        return self.root / "slots"

    @property
    def toolboxes(self) -> Path:
        """What agents need to run, one directory an agent and version, and the runtimes that they share."""
        return self.root / "toolboxes"

    @property
    def sessions(self) -> Path:
        """What agents were sent and said, one directory a sandbox."""
        return self.root / "sessions"

    @property
    def checkpoints(self) -> Path:
        """What this host keeps of states that rollouts go on from, one file each."""
        return self.root / "checkpoints"

    @property
    def proofs(self) -> Path:
        """What `bench env check` has proven of worlds, one file a world."""
        return self.root / "proofs"

    @property
    def gateway(self) -> GatewayPaths:
        return GatewayPaths(self.root / "gateway")

    @property
    def ended(self) -> Path:
        """Directory of the states of rollouts that have ended, one file a rollout whose checkpoints are retained."""
        return self.root / "ended"

    @property
    def checks(self) -> Path:
        """Directory of the jobs that try worlds."""
        return self.root / "checks"

    @property
    def rollouts(self) -> Path:
        """Results of rollouts whose job was submitted from another host, until they are in the store."""
        return self.root / "rollouts"


@dataclass(frozen=True)
class GatewayPaths:
    """`<state>/gateway/`: of the process through which this host's agents reach their models."""

    root: Path

    @property
    def public(self) -> Path:
        """The directory that sandboxes mount; it holds the socket that agents' calls come through, and nothing else."""
        return self.root / "public"

    @property
    def control(self) -> Path:
        """The socket for the engine alone."""
        return self.root / "control.sock"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def last_seen(self) -> Path:
        """When the process was last seen at work, as the monotonic clock of this host has it."""
        return self.root / "last_seen"

    @property
    def rollouts(self) -> Path:
        """What it was told of each rollout, one private file a token."""
        return self.root / "rollouts"


@dataclass(frozen=True)
class JobPaths:
    """`<jobs_dir>/<job_name>/`."""

    root: Path

    @classmethod
    def of(cls, jobs_dir: Path, name: str) -> JobPaths:
        """Return the paths of the job of a name.

        Its id is made of the path of `jobs_dir`, and so that is the real one: a directory that is spelt in two ways, or
        which a link leads to, would have two jobs of one name run in it, each in the other's files.
        """
        return cls(Path(os.path.realpath(jobs_dir.expanduser())) / name)

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def config_mac(self) -> Path:
        """By which a command that acts on the configuration knows it (`benchflow.provenance`)."""
        return self.root / "config.json.mac"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def results(self) -> Path:
        return self.root / "results.jsonl"

    @property
    def groups(self) -> Path:
        """Of a job whose mode is grpo."""
        return self.root / "groups.jsonl"

    @property
    def values(self) -> Path:
        """Of a job whose mode is value."""
        return self.root / "values.jsonl"

    def rollout(self, name: str) -> RolloutPaths:
        return RolloutPaths(self.root / name)


RESCORED = "rescored"
"""Directory of a job for the jobs that score it, and of a rollout for its new scores: one of each scoring's name."""

TRIAL_FILE = "check.json"
"""File of the results of a trial: what was found of a world."""

TRIAL_STEP = "trying"
"""File of the results of a trial that runs: what is tried now."""

WORKSPACE = "workspace.tar"
"""File of a step's evidence: the archive of its workspace."""


def state_label(step: str | None) -> str:
    """Return what the world's state after a step is called, None for the only one.

    A step may be called as the baseline is. A name that a snapshot in a sandbox cannot have is told by its hash.
    """
    if step and (len(step) > 100 or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", step) is None):
        step = hashlib.sha256(step.encode()).hexdigest()[:16]
    return f"step-{step}" if step else "final"


@dataclass(frozen=True)
class RolloutPaths:
    """`<jobs_dir>/<job_name>/<task>__<id>/`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def timing(self) -> Path:
        return self.root / "timing.json"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.json"

    @property
    def rewards(self) -> Path:
        return self.root / "rewards.jsonl"

    @property
    def tree(self) -> Path:
        return self.root / "tree.json"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def sessions(self) -> Path:
        """The raw journals of the agent's sessions."""
        return self.root / "agent" / "sessions"

    @property
    def trajectory(self) -> Path:
        return self.root / "trajectory" / "acp_trajectory.jsonl"

    @property
    def model_calls(self) -> Path:
        """Every call of a model, as the gateway recorded it."""
        return self.root / "trajectory" / "llm_trajectory.jsonl"

    @property
    def verifier(self) -> Path:
        return self.root / "verifier"

    @property
    def environment(self) -> Path:
        """Of the world: the logs of its services, and snapshots of its state."""
        return self.root / "environment"

    def state(self, step: str | None) -> Path:
        """What the verifier of a step was shown of the world's state."""
        return self.state_called(state_label(step))

    def state_called(self, label: str) -> Path:
        """What was shown of a state of the world, by what that is called."""
        return self.environment / "state" / label

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    def evidence(self, step: str | None = None) -> Path:
        """What was kept of the sandbox for scoring, after the step of that name if the task has several."""
        return self.root / "steps" / step / "evidence" if step else self.root / "evidence"

    def hardening(self, step: str | None = None) -> Path:
        """Return the report of what was done to the sandbox between the agent and the verifier of a step."""
        return self.evidence(step) / "hardening.json"

    def workspace(self, step: str | None = None) -> Path:
        """Return the archive of the workspace after a step, for scoring it again."""
        return self.evidence(step) / WORKSPACE

    def judge(self, step: str | None = None) -> Path:
        """What judges were asked and said. Apart from what comes out of a sandbox: it is taken for the judges' own."""
        return self.root / "steps" / step / "judge" if step else self.root / "judge"

    def verifier_of(self, step: str | None) -> Path:
        """What the verifier of a step left."""
        return self.root / "steps" / step / "verifier" if step else self.verifier

    def child(self, chain: str) -> RolloutPaths:
        """The results of the child whose chain of nodes has this name; of a child's child, they lie in its."""
        root = self.root
        for part in chain.split("/"):
            root = root / "children" / part
        return RolloutPaths(root)

    @property
    def trainer(self) -> Path:
        return self.root / "trainer"

    @property
    def build_log(self) -> Path:
        return self.root / "build.log"
