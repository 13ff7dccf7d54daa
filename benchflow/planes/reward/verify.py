"""Running a verifier in a sandbox: the agent ends, the verifier arrives, it runs, its files are read.

The verifier enters the sandbox only now. `test.sh` starts in the workspace, as the published ones expect, a command of
the verifier's document in the verifier's own directory; a script's shebang decides who runs it, a reward kit is a
Python program. `soft` does the same while the agent is still there, and leaves no trace.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchflow.confined import ConfinedDirectory
from benchflow.contracts.reward import HardeningFinding, JudgeRubric, VerifyResult
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import CollectCommand, VerifierConfig, VerifierDocument, VerifierOutputs
from benchflow.errors import UnsafePathError, VerifierError
from benchflow.planes.reward import kit
from benchflow.planes.reward.hardening import HardeningBaseline, files_of, own_modules, put_plugins, verifier_env
from benchflow.planes.reward.hardening.names import CLEAR_AWAY
from benchflow.planes.reward.hardening.work import signal_schedulers
from benchflow.planes.reward.killed import explaining_kills
from benchflow.planes.reward.soft import ENV as SOFT_ENV
from benchflow.planes.reward.soft import KEPT, LOGS, clear_room, make_room
from benchflow.planes.reward.uploads import compare_uploads
from benchflow.planes.reward.verifier_end import RUN, TAIL, check_end, doubts_of, output_tail, read_result
from benchflow.planes.sandbox.memory import KillNote
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.store import storage_errors, write_atomic

OUTPUT = f"{LOGS}/test-stdout.txt"
EVIDENCE = f"{LOGS}/environment"
"""Where a verifier finds the world's state, and what has changed in it."""

FETCH_TIMEOUT = 300.0
"""Seconds to bring what a verifier has left to this host: ten times what the most that is allowed takes."""

EVIDENCE_VARIABLE = "BENCHFLOW_ENVIRONMENT"
_SOFT_END = "soft.json"
"""How a soft verification ended, beside what it left: with it, nothing is run again."""

# $1 the verifier's directory, $2 its user, $3 not empty where logs are made anew, then files that must not be there
# when it starts. A directory of logs that stays is given to a verifier that is not root, for it has to write there.
_PREPARE = rf"""{CLEAR_AWAY}
set -e
target=$1 user=$2 logs=$3
shift 3
clear_away "$target" ${{logs:+/logs/verifier}} "$@"
mkdir -p "$target"
if [ ! -d /logs/verifier ]; then mkdir -p /logs/verifier; logs=new; fi
if [ -n "$logs" ]; then chmod 755 /logs/verifier; fi
if [ -n "$logs" ] || {{ [ "$user" != root ] && [ ! -h /logs/verifier ]; }}; then chown "$user" /logs/verifier; fi
if [ "$target" = /verifier ] && {{ [ -h /tests ] || [ ! -e /tests ]; }}; then ln -sfn /verifier /tests; fi
"""


_SCRIPT = "test.sh"


@dataclass(frozen=True)
class ScriptVerifier:
    """A verifier to run. sources: its directories on this host, later ones over earlier; target: where they lie in
    the sandbox.

    key: names the run, so that it happens once; trusted: what ran before was the oracle, whose services stay. clean:
    takes secrets out of all files of a directory, before they are read. evidence: a directory of this host that the
    verifier finds as `$BENCHFLOW_ENVIRONMENT`. rubrics: the task's, by their paths: a reward kit's criteria are one.
    baseline: the sandbox before the agent, by which it was hardened and its environment is pinned. room: tells, once it
    is open, what a sandbox where no agent was is before the work arrives, and takes the place of `baseline`. kills: of
    what was killed for want of memory before it starts; None in a sandbox where nothing has run before it.
    """

    config: VerifierConfig
    document: VerifierDocument | None
    sources: list[Path]
    target: str
    key: str
    env: dict[str, str]
    trusted: bool
    clean: Callable[[Path], None] = lambda directory: None
    evidence: Path | None = None
    rubrics: Mapping[str, JudgeRubric] = field(default_factory=dict)
    baseline: HardeningBaseline | None = None
    worked_in: HardeningBaseline | None = None
    """What the agent's sandbox was before it acted, of a verifier that runs in another one."""

    room: Callable[[], HardeningBaseline | None] | None = None
    kills: KillNote | None = None
    report: Callable[[Sequence[HardeningFinding]], None] = lambda found: None
    """Called with what is found once the verifier has ended."""

    starts_in_root: bool = False
    """Whether `test.sh`, and what collects for it, start in `/` instead of the workspace."""

    is_split: bool = False
    """Whether it is of a task of the split layout, where several keys without a scalar are a reward."""

    is_lenient: bool = False
    """Whether its reward files are read leniently."""

    def directory(self, sandbox: Sandbox) -> str:
        """Return the directory of the sandbox that the verifier starts in."""
        if self._declared_command is not None or self.config.workdir == "verifier":
            return self.target
        return "/" if self.starts_in_root else sandbox.ref.workdir

    @property
    def _declared_command(self) -> str | None:
        """The command that the verifier's document declares; None where `test.sh` scores."""
        strategy = self.document.strategy if self.document else None
        if strategy is None:
            return None
        if strategy.type == "reward-kit":
            return kit.kit_command(self._program)
        # The shell falls back to itself for a script without a shebang, which execve alone refuses.
        return f"exec ./{_SCRIPT}" if strategy.command == f"./{_SCRIPT}" else strategy.command

    @property
    def _program(self) -> str:
        strategy = self.document.strategy if self.document else None
        if strategy is None or strategy.type != "reward-kit":
            return f"{self.target}/{_SCRIPT}"
        return posixpath.join(self._place(strategy.root or "."), strategy.entrypoint or "reward.py")

    @property
    def _programs(self) -> set[str]:
        """Files of the sandbox that are run, as far as a command says so."""
        words = re.findall(r"[\w./-]+", self._declared_command or "")
        return {self._program, *(posixpath.normpath(posixpath.join(self.target, word)) for word in words)}

    def alone(self, env: dict[str, str], room: Callable[[], HardeningBaseline | None]) -> ScriptVerifier:
        """The same verifier for a sandbox where no agent was: nothing has to end there, and what commands collect came
        with the agent's work. env: of its commands there. room: what that sandbox is, whose image may be another than
        the agent's; without a baseline of the agent's nothing is pinned there either.
        """
        room_of = room if self.baseline else None
        # The room's own table may move the workspace.
        own = self.config.sandbox
        in_root = own.works_in_root if own and own.workdir else self.starts_in_root
        config = self.config.model_copy(update={"collect": []})
        alone = replace(self, config=config, trusted=True, env=env, kills=None, baseline=None, worked_in=self.baseline)
        alone = replace(alone, room=room_of)
        return replace(alone, starts_in_root=in_root)

    @property
    def _pinned_by(self) -> HardeningBaseline | None:
        return self.room() if self.room is not None else self.baseline

    async def run(self, sandbox: Sandbox, logs: Path) -> VerifyResult:
        """Score the sandbox as it is; the verifier's files end up in `logs` on this host.

        Raises `VerifierTimeoutError`, `RewardMissingError`, `RewardFileError`, `VerifierError`.
        """
        notes = await self.settle(sandbox, logs)
        # A verifier that was started before a crash is waited for, not disturbed.
        if not await sandbox.was_started(self.key):
            await self.prepare(sandbox)
            if self.kills is not None:
                await self.kills.begin(sandbox)
        outcome = await self._execute(sandbox)
        if self.config.hardening.verify_tools:
            self.report(await compare_uploads(sandbox, self.sources, self.target, self._programs))
        use = await sandbox.memory_use()
        await self._fetch(sandbox, logs)
        self.report(doubts_of(logs))
        with explaining_kills(use, self.kills, outcome.return_code, self._program, output_tail(logs)) as warnings:
            result = self._result(sandbox, logs, outcome, notes)
        return result.model_copy(update={"warnings": [*result.warnings, *warnings]})

    async def soft(self, sandbox: Sandbox, logs: Path) -> VerifyResult:
        """What the verifier says now, between an agent's turns: nothing is killed, and nothing of it stays.

        While it runs, its files are its user's alone, so that an agent that is neither that user nor root cannot read
        them. What the verifier itself does to the workspace is its own. Commands that collect after the agent's end are
        not run. logs: a directory for this call alone; called again with the same one and the same `key` it answers the
        same, and runs nothing. One at a time in a sandbox. Raises what `run` raises.
        """
        # Not in the directory that files of the sandbox are brought to.
        end = logs.with_name(f"{logs.name}-{_SOFT_END}")
        room = (sandbox, self.target, self._user, self._own_files())
        if not end.exists():
            if not await sandbox.was_started(self.key):
                await make_room(*room)
                await self._bring(sandbox, self.user)
            outcome = await self._execute(sandbox, SOFT_ENV)
            await self._fetch(sandbox, logs)
            kept = {"stdout": outcome.stdout[-100:], "stderr": outcome.stderr[-100:]}
            write_atomic(end, outcome.model_copy(update=kept).model_dump_json().encode())
        await clear_room(*room)
        return self._result(sandbox, logs, SandboxExecResult.model_validate_json(end.read_bytes()), [])

    # --- before it ---------------------------------------------------------------------------------------

    async def settle(self, sandbox: Sandbox, logs: Path) -> list[str]:
        """End what the agent has left running, then run the commands that collect for the verifier, in order.

        Returns warnings: what becomes of a command that fails is not specified where these are published; here the
        verifier runs nevertheless. May be called again, also after a crash: what was done is not done twice.
        """
        if not await self.has_settled(sandbox):
            await self.end_agent(sandbox)
        commands = enumerate(self.config.collect)
        return [note for index, command in commands if (note := await self._run_before(sandbox, command, index, logs))]

    async def end_agent(self, sandbox: Sandbox) -> None:
        """End what the agent has left running, unless it may stay, or hardening has ended it."""
        if self.config.hardening.kill_processes and not self.trusted and self.baseline is None:
            await sandbox.kill_processes()

    async def has_settled(self, sandbox: Sandbox) -> bool:
        """Whether what the agent left was ended, so that what runs now is the scoring's own."""
        for key in (self.key, f"{self.key}-collect-0", f"{self.key}-settled"):
            if await sandbox.was_started(key):
                return True
        return False

    async def _run_before(self, sandbox: Sandbox, command: CollectCommand, index: int, logs: Path) -> str | None:
        """Run one command of `verifier.collect`; what went wrong with it."""
        key = f"verifier.collect[{index}]"
        result = await sandbox.exec_once(
            f"{self.key}-collect-{index}",
            ["sh", "-c", f"{{ {command.command}\n}} 2>&1"],
            env=self.env,
            cwd="/" if self.starts_in_root else None,
            user=command.user if command.user is not None else self._default_user,
            timeout=command.timeout_sec,
        )
        file = logs / f"collect-{index}.txt"
        write_atomic(file, (result.stdout + result.stderr).encode(), durable=False)
        if result.timed_out:
            return f"{key} did not finish in {command.timeout_sec:g} s"
        return f"{key} ended with exit status {result.return_code}" if result.return_code else None

    async def prepare(self, sandbox: Sandbox) -> None:
        """Between the agent's last action and the verifier's first command: the verifier arrives."""
        aside = [f"{path}{KEPT}{part}" for path in (self.target, "/tests", LOGS) for part in ("", ".new")]
        fresh = self.config.hardening.fresh_logs
        gone = aside + (self._own_files() if fresh else [])
        result = await sandbox.control(_PREPARE, self.target, self._user, "yes" if fresh else "", *gone)
        if result.return_code != 0:
            raise VerifierError("the sandbox could not be made ready for the verifier", log_tail=result.stderr[-TAIL:])
        await self._bring(sandbox, None)
        # As root, whose file it is: the verifier's own user could not.
        await sandbox.control('chmod +x -- "$1" 2>/dev/null || :', f"{self.target}/{_SCRIPT}")

    async def _bring(self, sandbox: Sandbox, user: str | int | None) -> None:
        for source in self.sources:
            await sandbox.upload(source, self.target, user=user)
        if self.evidence is not None:
            await sandbox.upload(self.evidence, EVIDENCE, user=user)
        if (baseline := self._pinned_by) is not None and self.config.hardening.pin_environment:
            # Whose they are was found out where the agent worked.
            own = own_modules(self.worked_in or baseline) if self.config.hardening.standard_library else None
            await put_plugins(sandbox, baseline, self.config.pytest_plugins, user=self.user, own=own)
        if self.document is not None and (env := self._kit_env()):
            told = kit.kit_manifest(self.document, env, self.rubrics)
            await sandbox.write_file(kit.MANIFEST, told, user=user)

    async def leave(self, sandbox: Sandbox) -> None:
        """Take out of the sandbox what the verifier brought and has written, before another step's agent acts."""
        script = f'rm -rf -- "$@"; if [ -h /tests ]; then rm -f /tests; fi\n{signal_schedulers("CONT")}'
        await sandbox.control(script, self.target, LOGS, *self._own_files())

    # --- it ----------------------------------------------------------------------------------------------

    async def _execute(self, sandbox: Sandbox, env: Mapping[str, str] | None = None) -> SandboxExecResult:
        script = shlex.quote(f"{self.target}/{_SCRIPT}")
        command = self._declared_command or f"exec {script}"
        outputs = self.document.outputs if self.document else VerifierOutputs()
        rewards = shlex.join([outputs.reward_text, outputs.reward_json])
        return await sandbox.exec_once(
            self.key,
            ["sh", "-c", RUN.format(script=script, command=command, output=OUTPUT, rewards=rewards)],
            env={EVIDENCE_VARIABLE: EVIDENCE, **self._kit_env(), **(env or {}), **self.pinned(sandbox), **self.env},
            cwd=self.directory(sandbox),
            user=self.user,
            timeout=self.config.timeout_sec,
        )

    def pinned(self, sandbox: Sandbox) -> dict[str, str]:
        """The variables that nothing of the agent's decides, while something runs for the verifier's sake."""
        if (baseline := self._pinned_by) is None:
            return {}
        return verifier_env(baseline, self.config, target=self.target, workspace=sandbox.ref.workdir)

    def _kit_env(self) -> dict[str, str]:
        if self.document is None or self.document.strategy.type != "reward-kit":
            return {}
        strategy = self.document.strategy
        criteria = self._place(strategy.criteria) if strategy.criteria else None
        return kit.kit_env(self.target, self._place(strategy.root or "."), criteria, self.document)

    @property
    def user(self) -> str | int | None:
        """Return the user that it runs as; None for root."""
        return self._default_user if self.config.user is None else self.config.user

    @property
    def _default_user(self) -> str | None:
        """Return the user where the task names none."""
        baseline = self._pinned_by
        return baseline.user if baseline is not None else None

    @property
    def _user(self) -> str:
        return "root" if self.user is None else str(self.user)

    def _place(self, path: str) -> str:
        """Where a path of the verifier's document lies in the sandbox; written from its directory, or the task's."""
        own, _, inner = path.removeprefix("./").partition("/")
        if inner and not any((source / path).exists() for source in self.sources):
            path = inner if any(source.name == own for source in self.sources) else path
        return posixpath.normpath(posixpath.join(self.target, path))

    # --- after it ----------------------------------------------------------------------------------------

    def _result(self, sandbox: Sandbox, logs: Path, outcome: SandboxExecResult, notes: list[str]) -> VerifyResult:
        check_end(
            outcome,
            logs,
            self.config,
            program=self._program,
            directory=self.directory(sandbox),
            is_pinned=self._pinned_by is not None,
        )
        result = read_result(
            logs,
            config=self.config,
            document=self.document,
            rubrics=self.rubrics,
            exit_code=outcome.return_code,
            is_split=self.is_split,
            is_lenient=self.is_lenient,
        )
        return result.model_copy(update={"warnings": [*notes, *result.warnings]})

    async def _fetch(self, sandbox: Sandbox, logs: Path) -> None:
        with storage_errors(logs):
            logs.mkdir(parents=True, exist_ok=True)
        declared = self._declared_outside()
        try:
            with ConfinedDirectory(logs) as directory:
                for old in {"reward.txt", "reward.json", *declared.values()}:
                    directory.remove_tree(old)
            async with awake_timeout(FETCH_TIMEOUT):
                # What it was shown is kept elsewhere.
                await sandbox.download(LOGS, logs, exclude=[EVIDENCE.removeprefix(f"{LOGS}/")])
                for path, name in declared.items():
                    await sandbox.download(path, logs / name)
            # A verifier may print what it found, and that is read into events and errors.
            self.clean(logs)
        except UnsafePathError as error:
            raise VerifierError(
                f"what the verifier has left cannot be read: {error.message}",
                file=error.file,
                remedy="write few regular files, of some megabytes, to /logs/verifier",
            ) from error
        except TimeoutError as error:
            raise VerifierError(
                f"what the verifier has left could not be read within {FETCH_TIMEOUT:g} s",
                file=LOGS,
                remedy="write few regular files, of some megabytes, to /logs/verifier",
            ) from error

    def _declared_outside(self) -> dict[str, str]:
        """Declared outputs that do not lie where they do by default, with what they are called in the results."""
        outputs = self.document.outputs if self.document else VerifierOutputs()
        names = {outputs.reward_text: "reward.txt", outputs.reward_json: "reward.json"}
        if outputs.details_json is not None and not outputs.details_json.startswith(f"{LOGS}/"):
            names[outputs.details_json] = posixpath.basename(kit.DETAILS)
        return {path: name for path, name in names.items() if path != f"{LOGS}/{name}"}

    def _own_files(self) -> list[str]:
        """What must not be there before it runs, beside its directories."""
        pinned_by = self._pinned_by
        return [*self._declared_outside(), *(files_of(pinned_by) if pinned_by is not None else [])]


def config_of(task: Task, step: str | None) -> VerifierConfig:
    """The verifier's table of a step, None for the only one. Raises `VerifierError` when the task has no such step."""
    if step is None:
        return task.verifier
    for one in task.steps:
        if one.name == step:
            return one.verifier
    raise VerifierError(
        f"the task has no step {step!r}",
        file=task.config_file,
        key="steps",
        remedy="score by a task with the steps that were run",
    )


def verifier_of(
    task: Task, directory: Path, step: str | None, *, has_workdir: bool = True, **how: Any
) -> ScriptVerifier:
    """A task's verifier for a step, None for the only one. directory: of its files; how: the fields that are left.

    has_workdir: whether the task or its image names a workspace.
    """
    own = task.step_files[step].verifier_dir if step else None
    # What the steps share comes first, a step's own files over it.
    sources = [source for source in (task.verifier_dir, own) if source is not None]
    assert sources  # a task without a verifier is refused when it is read
    return ScriptVerifier(
        config=config_of(task, step),
        document=task.verifier_document,
        sources=[directory / source for source in sources],
        target="/tests" if Path(sources[-1]).name == "tests" else "/verifier",
        rubrics=task.rubrics,
        starts_in_root=task.starts_in_root(has_workdir),
        is_split=task.layout == "split",
        **how,
    )
