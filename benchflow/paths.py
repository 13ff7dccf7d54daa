"""Paths on this host: the engine's state directory, and the layout of a job's results. No other module chooses paths.

The state directory belongs to the engine (server database, store, records). The jobs directory belongs to the user;
`JobPaths` and `RolloutPaths` are its layout.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


def find_state_dir() -> Path:
    """Return `$BENCHFLOW_STATE_DIR`, else `$XDG_STATE_HOME/benchflow`, else `~/.local/state/benchflow`."""
    explicit = os.environ.get("BENCHFLOW_STATE_DIR")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    return root / "benchflow"


PRIVATE_UMASK = 0o077
"""Umask of the engine's own processes: their files are for their user alone, wherever they write.

Files that a sandbox's users must read get their mode explicitly. A user's process that calls the engine keeps its own
umask.
"""

MAX_SOCKET_ADDRESS_BYTES = 107
"""Maximum bytes of a socket's path: the kernel's 108 without the final NUL."""


def make_socket_address(path: Path) -> str:
    """Return an address by which this process can connect to a socket, even if its path is longer than an address."""
    if len(os.fsencode(path)) <= MAX_SOCKET_ADDRESS_BYTES:
        return str(path)
    found = path.parent.stat()
    return f"/proc/self/fd/{_open_directory(path.parent, found.st_dev, found.st_ino)}/{path.name}"


@functools.cache
def _open_directory(path: Path, _device: int, _inode: int) -> int:
    """Open a directory, once per process: clients reconnect to the same address as long as they live."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@dataclass(frozen=True)
class StatePaths:
    """Paths of the engine's own files on this host."""

    root: Path

    @classmethod
    def default(cls) -> StatePaths:
        """Return the paths below `find_state_dir()`."""
        return cls(find_state_dir())

    @property
    def host_id(self) -> Path:
        """File with this host's id."""
        return self.root / "host-id"

    @property
    def job_key(self) -> Path:
        """Secret key of the MACs by which jobs submitted with this state directory are recognised."""
        return self.root / "job-key"

    @property
    def stack_lock(self) -> Path:
        """Lock that the stack's supervisor holds."""
        return self.root / "stack.lock"

    @property
    def stack_record(self) -> Path:
        """State of the stack, as its supervisor last recorded it."""
        return self.root / "stack.json"

    @property
    def stack_stopped(self) -> Path:
        """Marker that exists while the stack is down because a user stopped it."""
        return self.root / "stack-stopped"

    @property
    def worker_wanted(self) -> Path:
        """Worker that was last requested: interpreter and package digest."""
        return self.root / "worker-wanted.json"

    @property
    def last_used(self) -> Path:
        """Empty file that clients touch when they use the stack."""
        return self.root / "last-used"

    @property
    def database(self) -> Path:
        """Database of the Temporal server."""
        return self.root / "temporal.db"

    @property
    def server_socket(self) -> Path:
        """Socket by which clients reach a server that has a network namespace of its own."""
        return self.root / "server.sock"

    @property
    def ui_socket(self) -> Path:
        """Socket of such a server's Web UI, for the door alone."""
        return self.root / "ui.sock"

    @property
    def ui_token(self) -> Path:
        """Secret token that the Web UI's door asks for."""
        return self.root / "ui-token"

    @property
    def logs(self) -> Path:
        """Directory of the stack's log files."""
        return self.root / "logs"

    @property
    def store(self) -> Path:
        """Directory of the artifact store, unless the environment names another."""
        return self.root / "store"

    @property
    def tasks(self) -> Path:
        """Unpacked tasks, one directory per digest."""
        return self.root / "tasks"

    @property
    def secrets(self) -> Path:
        """Private files with the secrets of jobs, one per job."""
        return self.root / "secrets"

    @property
    def running(self) -> Path:
        """Task tokens of running activities, one directory per worker process."""
        return self.root / "running"

    @property
    def slots(self) -> Path:
        """Slots of this host's capacity, one file per sandbox."""
        return self.root / "slots"

    @property
    def toolboxes(self) -> Path:
        """Agent runtime bundles, one directory per agent and version, and the runtimes that they share."""
        return self.root / "toolboxes"

    @property
    def sessions(self) -> Path:
        """Journals of agents' stdio, one directory per sandbox."""
        return self.root / "sessions"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints on this host that rollouts are resumed from, one file each."""
        return self.root / "checkpoints"

    @property
    def proofs(self) -> Path:
        """Proofs of `bench env check` about worlds, one file per world."""
        return self.root / "proofs"

    @property
    def gateway(self) -> GatewayPaths:
        """Return the paths of the model gateway."""
        return GatewayPaths(self.root / "gateway")

    @property
    def ended(self) -> Path:
        """States of ended rollouts whose checkpoints are retained, one file per rollout."""
        return self.root / "ended"

    @property
    def checks(self) -> Path:
        """Jobs directory of the trials of worlds."""
        return self.root / "checks"

    @property
    def rollouts(self) -> Path:
        """Results of rollouts whose job was submitted from another host, until they are in the store."""
        return self.root / "rollouts"


@dataclass(frozen=True)
class GatewayPaths:
    """Paths in `<state>/gateway/`, of the process through which this host's agents reach their models."""

    root: Path

    @property
    def public(self) -> Path:
        """Directory that sandboxes mount; contains only the socket for the agents' calls."""
        return self.root / "public"

    @property
    def control(self) -> Path:
        """Socket for the engine alone."""
        return self.root / "control.sock"

    @property
    def lock(self) -> Path:
        """Lock that the gateway's process holds."""
        return self.root / "lock"

    @property
    def last_seen(self) -> Path:
        """File with the last time at which the process was seen running, by this host's monotonic clock."""
        return self.root / "last_seen"

    @property
    def rollouts(self) -> Path:
        """Settings of each rollout, one private file per token."""
        return self.root / "rollouts"


@dataclass(frozen=True)
class JobPaths:
    """Paths in `<jobs_dir>/<job_name>/`."""

    root: Path

    @classmethod
    def of(cls, jobs_dir: Path, name: str) -> JobPaths:
        """Return the paths of the job of a name, with links in `jobs_dir` resolved.

        The job's id is made of this path. Without the resolution, a directory with two spellings, or behind a link,
        could have two running jobs of one name, which write to the same files.
        """
        return cls(Path(os.path.realpath(jobs_dir.expanduser())) / name)

    @property
    def config(self) -> Path:
        """Specification of the job."""
        return self.root / "config.json"

    @property
    def config_mac(self) -> Path:
        """MAC by which a command authenticates the configuration (`benchflow.provenance`)."""
        return self.root / "config.json.mac"

    @property
    def summary(self) -> Path:
        """Summary of the results."""
        return self.root / "summary.json"

    @property
    def results(self) -> Path:
        """Results, one line per rollout."""
        return self.root / "results.jsonl"

    @property
    def groups(self) -> Path:
        """GRPO groups, for a job whose mode is grpo."""
        return self.root / "groups.jsonl"

    @property
    def values(self) -> Path:
        """Values of states, for a job whose mode is value."""
        return self.root / "values.jsonl"

    def rollout(self, name: str) -> RolloutPaths:
        """Return the paths of the rollout whose directory has this name."""
        return RolloutPaths(self.root / name)


RESCORED = "rescored"
"""Directory in a job for the jobs that rescore it, and in a rollout for its new scores; one entry per scoring's name.
"""

TRIAL_FILE = "check.json"
"""File with the finding, in the results of a trial."""

TRIAL_STEP = "trying"
"""File with the current step, in the results of a running trial."""

WORKSPACE = "workspace.tar"
"""Archive of the workspace, in a step's evidence."""


def make_state_label(step: str | None) -> str:
    """Return the label of the world's state after a step; None stands for the only step.

    The prefix keeps a step's label apart from the baseline's. A name that cannot name a snapshot in a sandbox is
    replaced by its hash.
    """
    if step and (len(step) > 100 or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", step) is None):
        step = hashlib.sha256(step.encode()).hexdigest()[:16]
    return f"step-{step}" if step else "final"


@dataclass(frozen=True)
class RolloutPaths:
    """Paths in `<jobs_dir>/<job_name>/<task>__<id>/`."""

    root: Path

    @property
    def config(self) -> Path:
        """Specification of the rollout, with the id of its run."""
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        """Result; exists only after the rollout's end."""
        return self.root / "result.json"

    @property
    def timing(self) -> Path:
        """Duration of each phase."""
        return self.root / "timing.json"

    @property
    def prompts(self) -> Path:
        """Prompts of the steps."""
        return self.root / "prompts.json"

    @property
    def rewards(self) -> Path:
        """Reward events, one per line."""
        return self.root / "rewards.jsonl"

    @property
    def tree(self) -> Path:
        """Tree of the rollout's nodes."""
        return self.root / "tree.json"

    @property
    def agent(self) -> Path:
        """Directory of the agent's files."""
        return self.root / "agent"

    @property
    def sessions(self) -> Path:
        """Raw journals of the agent's sessions."""
        return self.root / "agent" / "sessions"

    @property
    def trajectory(self) -> Path:
        """Events of the agent's sessions, one per line."""
        return self.root / "trajectory" / "acp_trajectory.jsonl"

    @property
    def model_calls(self) -> Path:
        """Model calls as the gateway recorded them, one per line."""
        return self.root / "trajectory" / "llm_trajectory.jsonl"

    @property
    def verifier(self) -> Path:
        """Output of the verifier of the only step."""
        return self.root / "verifier"

    @property
    def environment(self) -> Path:
        """Directory of the world: logs of its services, and snapshots of its state."""
        return self.root / "environment"

    def state(self, step: str | None) -> Path:
        """Return the directory of the world's state that a step's verifier was given."""
        return self.state_called(make_state_label(step))

    def state_called(self, label: str) -> Path:
        """Return the directory of a state of the world, by its label."""
        return self.environment / "state" / label

    @property
    def artifacts(self) -> Path:
        """Artifacts collected from the sandbox."""
        return self.root / "artifacts"

    def evidence(self, step: str | None = None) -> Path:
        """Return the directory of evidence retained for scoring; `step` names the step, if the task has several."""
        return self.root / "steps" / step / "evidence" if step else self.root / "evidence"

    def hardening(self, step: str | None = None) -> Path:
        """Return the report of the hardening between a step's agent and its verifier."""
        return self.evidence(step) / "hardening.json"

    def workspace(self, step: str | None = None) -> Path:
        """Return the archive of the workspace after a step, which is retained for rescoring."""
        return self.evidence(step) / WORKSPACE

    def judge(self, step: str | None = None) -> Path:
        """Return the directory of judges' requests and responses. No sandbox writes there, so they are trusted."""
        return self.root / "steps" / step / "judge" if step else self.root / "judge"

    def verifier_of(self, step: str | None) -> Path:
        """Return the directory of the output of a step's verifier."""
        return self.root / "steps" / step / "verifier" if step else self.verifier

    def child(self, chain: str) -> RolloutPaths:
        """Return the paths of the child with this branch path; those of a grandchild are below its parent's."""
        root = self.root
        for part in chain.split("/"):
            root = root / "children" / part
        return RolloutPaths(root)

    @property
    def trainer(self) -> Path:
        """Directory of files for a trainer."""
        return self.root / "trainer"

    @property
    def build_log(self) -> Path:
        """Log of the image build."""
        return self.root / "build.log"
