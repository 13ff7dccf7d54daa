"""Running a verifier script: the agent ends, the verifier arrives, the script runs, its files are read.

The verifier enters the sandbox only now. Its own directory is its working directory and its shebang decides who
runs it. What the sandbox is hardened against between agent and verifier belongs in `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import VerifierConfig, VerifierDocument
from benchflow.errors import VerifierError, VerifierTimeoutError
from benchflow.planes.reward.script import parse_rewards

LOGS = "/logs/verifier"
OUTPUT = f"{LOGS}/test-stdout.txt"
EVIDENCE = f"{LOGS}/environment"
"""Where a verifier finds the world's state, and what has changed in it."""

EVIDENCE_VARIABLE = "BENCHFLOW_ENVIRONMENT"
_TAIL = 4000

# $1 the verifier's directory, $2 its user, then files that must not be there when it starts.
_PREPARE = r"""
set -e
target=$1 user=$2
shift 2
rm -rf "$target" /logs/verifier "$@"
mkdir -p "$target" /logs/verifier
chown "$user" /logs/verifier
chmod 755 /logs/verifier
if [ "$target" = /verifier ] && { [ -h /tests ] || [ ! -e /tests ]; }; then ln -sfn /verifier /tests; fi
"""


@dataclass(frozen=True)
class ScriptVerifier:
    """A verifier to run. sources: its directories on this host, later ones over earlier; target: where they lie in
    the sandbox.

    key: names the run, so that it happens once; trusted: what ran before was the oracle, whose services stay. clean:
    takes out of a file what nobody may read, before it is read. evidence: a directory of this host that the verifier
    finds as `$BENCHFLOW_ENVIRONMENT`.
    """

    config: VerifierConfig
    document: VerifierDocument | None
    sources: list[Path]
    target: str
    key: str
    env: dict[str, str]
    trusted: bool
    clean: Callable[[Path], None] = lambda file: None
    evidence: Path | None = None

    @property
    def command(self) -> str:
        if self.document is not None and self.document.strategy.command:
            return self.document.strategy.command
        return "./test.sh"

    async def run(self, sandbox: Sandbox, logs: Path) -> VerifyResult:
        """Score the sandbox as it is; the verifier's files end up in `logs` on this host.

        Raises `VerifierTimeoutError`, `RewardMissingError`, `RewardFileError`, `VerifierError`.
        """
        # A verifier that was started before a crash is waited for, not disturbed.
        if not await sandbox.was_started(self.key):
            await self.prepare(sandbox)
        # The shell falls back to itself for a script without a shebang, which execve alone refuses.
        script = f"chmod +x ./test.sh 2>/dev/null; {{ {self.command}\n}} >{OUTPUT} 2>&1"
        result = await sandbox.exec_once(
            self.key,
            ["sh", "-c", script],
            env={EVIDENCE_VARIABLE: EVIDENCE} | self.env,
            cwd=self.target,
            user=self.config.user,
            timeout=self.config.timeout_sec,
        )
        await self._collect(sandbox, logs)
        if result.timed_out:
            raise VerifierTimeoutError(
                f"the verifier did not finish in {self.config.timeout_sec:g} s",
                file=f"{self.target}/test.sh",
                key="verifier.timeout_sec",
                remedy="raise verifier.timeout_sec, or find what hangs",
                log_tail=_tail(logs),
            )
        return parse_rewards(
            logs,
            reward_range=self.config.reward_range,
            exit_code=result.return_code,
            aggregate=self.document.outputs.aggregate_policy if self.document else None,
            now=datetime.now(UTC),
        )

    async def prepare(self, sandbox: Sandbox) -> None:
        """Between the agent's last action and the verifier's first command."""
        if not self.trusted:
            await sandbox.kill_processes()
        user = self.config.user if self.config.user is not None else "root"
        outputs = self.document.outputs if self.document else None
        stale = [outputs.reward_text, outputs.reward_json] if outputs else []
        result = await sandbox.control(_PREPARE, self.target, str(user), *stale)
        if result.return_code != 0:
            raise VerifierError("the sandbox could not be made ready for the verifier", log_tail=result.stderr[-_TAIL:])
        for source in self.sources:
            await sandbox.upload(source, self.target)
        if self.evidence is not None:
            await sandbox.upload(self.evidence, EVIDENCE)

    async def _collect(self, sandbox: Sandbox, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        for old in ("reward.txt", "reward.json"):
            (logs / old).unlink(missing_ok=True)
        # What it was shown is kept elsewhere.
        await sandbox.download(LOGS, logs, exclude=[EVIDENCE.removeprefix(f"{LOGS}/")])
        if self.document is not None:
            await self._collect_declared(sandbox, self.document, logs)
        # A verifier may print what it found, and that is read into events and errors.
        for file in logs.rglob("*"):
            self.clean(file)

    async def _collect_declared(self, sandbox: Sandbox, document: VerifierDocument, logs: Path) -> None:
        outputs = document.outputs
        for path, name in ((outputs.reward_text, "reward.txt"), (outputs.reward_json, "reward.json")):
            if path != f"{LOGS}/{name}":
                await sandbox.download(path, logs / name)


def _tail(logs: Path) -> str | None:
    try:
        return (logs / "test-stdout.txt").read_text(errors="replace")[-_TAIL:]
    except OSError:
        return None
