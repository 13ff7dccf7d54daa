"""Running a verifier in a sandbox: end the agent's processes, upload the verifier, run it, download its files.

The verifier enters the sandbox only now. `test.sh` starts in the workspace, as published tasks expect, a command of the
verifier's document in the verifier's directory. A script is run by its shebang's interpreter, a reward kit by Python.
`run_soft` does the same while the agent is still there, and leaves no trace.
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
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.planes.reward import kit
from benchflow.planes.reward.hardening import (
    HardeningBaseline,
    list_own_modules,
    list_plugin_files,
    make_verifier_env,
    put_plugins,
)
from benchflow.planes.reward.hardening.strangers import format_scheduler_signal, list_unaltered_strangers, note_running
from benchflow.planes.reward.hardening.verifier_dependencies import CLEAR_AWAY
from benchflow.planes.reward.inputs import find_config
from benchflow.planes.reward.soft import ASIDE_SUFFIX, LOGS, create_directories, restore_directories
from benchflow.planes.reward.soft import ENV as SOFT_ENV
from benchflow.planes.reward.uploads import compare_uploads
from benchflow.planes.reward.verifier_end import (
    RUN,
    TAIL,
    check_end,
    explain_kills,
    read_doubts,
    read_output_tail,
    read_result,
)
from benchflow.planes.sandbox.sandbox_memory import KillNote
from benchflow.planes.sandbox.timeouts import awake_timeout

OUTPUT = f"{LOGS}/test-stdout.txt"
EVIDENCE = f"{LOGS}/environment"
"""Directory in the sandbox with the world's state and its changes, for the verifier."""

FETCH_TIMEOUT = 300.0
"""Seconds to download a verifier's files: ten times as long as the maximum size takes."""

EVIDENCE_VARIABLE = "BENCHFLOW_ENVIRONMENT"
_SOFT_END = "soft.json"
"""Suffix of the file with a soft verification's exit status, beside its logs; if it exists, nothing is run again."""

# $1 the verifier's directory, $2 its user, $3 not empty to make the logs' directory anew, then files to remove before
# it starts. An existing directory of logs is chowned to a verifier's user other than root, which has to write there.
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
    """A verifier to run."""

    config: VerifierConfig
    document: VerifierDocument | None
    sources: list[Path]
    """Its directories on this host, later ones over earlier."""

    target: str
    """Its directory in the sandbox."""

    key: str
    """Idempotency key of the run."""

    env: dict[str, str]
    """Variables of its commands."""

    trusted: bool
    """Whether the oracle ran before it, or no agent: then running processes stay."""

    clean: Callable[[Path], None] = lambda directory: None
    """Redacts secrets in all files of a directory, before they are read."""

    evidence: Path | None = None
    """Directory on this host that the verifier gets as `$BENCHFLOW_ENVIRONMENT`."""

    rubrics: Mapping[str, JudgeRubric] = field(default_factory=dict)
    """Rubrics of the task, by path: a reward kit's criteria are one."""

    baseline: HardeningBaseline | None = None
    """State of the sandbox before the agent, by which it was hardened and the verifier's environment is pinned."""

    worked_in: HardeningBaseline | None = None
    """State of the agent's sandbox before the agent, for a verifier that runs in another sandbox."""

    room: Callable[[], HardeningBaseline | None] | None = None
    """Returns the baseline of an open clean room, from before the work arrived; used in place of `baseline`."""

    kills: KillNote | None = None
    """Count of out-of-memory kills before it starts; None in a sandbox where nothing has run before it."""

    report: Callable[[Sequence[HardeningFinding]], None] = lambda found: None
    """Called with the findings once the verifier has ended."""

    starts_in_root: bool = False
    """Whether `test.sh` and the `collect` commands start in `/` instead of the workspace."""

    is_split: bool = False
    """Whether its task has the split layout, where several keys without a scalar are a reward."""

    is_lenient: bool = False
    """Whether its reward files are read leniently."""

    def get_directory(self, sandbox: Sandbox) -> str:
        """Return the directory of the sandbox in which the verifier starts."""
        if self._declared_command is not None or self.config.workdir == "verifier":
            return self.target
        return "/" if self.starts_in_root else sandbox.ref.workdir

    @property
    def _declared_command(self) -> str | None:
        """Return the shell command that the verifier's document declares; None if `test.sh` scores."""
        strategy = self.document.strategy if self.document else None
        if strategy is None:
            return None
        if strategy.type == "reward-kit":
            return kit.format_command(self._program)
        # The shell falls back to itself for a script without a shebang, which execve alone refuses.
        return f"exec ./{_SCRIPT}" if strategy.command == f"./{_SCRIPT}" else strategy.command

    @property
    def _program(self) -> str:
        """Return the path of the verifier's main program in the sandbox."""
        strategy = self.document.strategy if self.document else None
        if strategy is None or strategy.type != "reward-kit":
            return f"{self.target}/{_SCRIPT}"
        return posixpath.join(self._resolve_path(strategy.root or "."), strategy.entrypoint or "reward.py")

    @property
    def _programs(self) -> set[str]:
        """Return the files of the sandbox that are run, as far as the declared command names them."""
        words = re.findall(r"[\w./-]+", self._declared_command or "")
        return {self._program, *(posixpath.normpath(posixpath.join(self.target, word)) for word in words)}

    def isolate(self, env: dict[str, str], room: Callable[[], HardeningBaseline | None]) -> ScriptVerifier:
        """Return the verifier for a clean room, where no process is ended and no `collect` command is run.

        The output of those commands came with the agent's work.

        Args:
            env: Variables of its commands there.
            room: Returns that sandbox's baseline, since its image may be another than the agent's. Not used, so that
                nothing is pinned there either, if the agent's sandbox has no baseline.
        """
        # The verifier's own sandbox table may move the workspace.
        own = self.config.sandbox
        in_root = own.works_in_root if own and own.workdir else self.starts_in_root
        config = self.config.model_copy(update={"collect": []})
        alone = replace(self, config=config, trusted=True, env=env, kills=None, baseline=None, worked_in=self.baseline)
        return replace(alone, room=room if self.baseline else None, starts_in_root=in_root)

    @property
    def _pinned_by(self) -> HardeningBaseline | None:
        """Return the baseline by which the verifier's environment is pinned; None if it is not."""
        return self.room() if self.room is not None else self.baseline

    async def run(self, sandbox: Sandbox, logs: Path) -> VerifyResult:
        """Score the sandbox as it is; download the verifier's files to `logs` on this host.

        Raise `VerifierTimeoutError`, `RewardMissingError`, `RewardFileError` or another `VerifierError`.
        """
        notes = await self.settle(sandbox, logs)
        # A verifier that was started before a crash still runs: do not disturb it.
        if not await sandbox.was_started(self.key):
            await self.prepare(sandbox)
            if self.kills is not None:
                await self.kills.start(sandbox)
        outcome = await self._execute(sandbox)
        if self.config.hardening.kill_processes and not self.trusted:
            # The tested code has left them, and they may have changed the reward file since.
            left = await list_unaltered_strangers(sandbox)
            self.report([note_running(process, "after the verifier") for process in left])
        if self.config.hardening.verify_tools:
            self.report(await compare_uploads(sandbox, self.sources, self.target, self._programs))
        use = await sandbox.memory_use()
        await self._fetch(sandbox, logs)
        self.report(read_doubts(logs))
        with explain_kills(use, self.kills, outcome.return_code, self._program, read_output_tail(logs)) as warnings:
            result = self._read_result(sandbox, logs, outcome, notes)
        return result.model_copy(update={"warnings": [*result.warnings, *warnings]})

    async def run_soft(self, sandbox: Sandbox, logs: Path) -> VerifyResult:
        """Score the sandbox between an agent's turns: no process is killed, and the verifier's files are removed.

        While it runs, only its user and root can read its files. Changes that it makes to the workspace stay. `collect`
        commands are not run. One call at a time in a sandbox. Errors are those of `run`.

        `logs` is for this call alone: a further call with it and the same `key` returns the same result.
        """
        # Not in `logs`, to which the sandbox's files are downloaded.
        end = logs.with_name(f"{logs.name}-{_SOFT_END}")
        room = (sandbox, self.target, self._user, self._list_own_files())
        if not end.exists():
            if not await sandbox.was_started(self.key):
                await create_directories(*room)
                await self._upload(sandbox, self.user)
            outcome = await self._execute(sandbox, SOFT_ENV)
            await self._fetch(sandbox, logs)
            kept = {"stdout": outcome.stdout[-100:], "stderr": outcome.stderr[-100:]}
            write_atomic(end, outcome.model_copy(update=kept).model_dump_json().encode())
        await restore_directories(*room)
        return self._read_result(sandbox, logs, SandboxExecResult.model_validate_json(end.read_bytes()), [])

    # --- preparation -------------------------------------------------------------------------------------

    async def settle(self, sandbox: Sandbox, logs: Path) -> list[str]:
        """End the agent's processes, then run the `collect` commands in order; return a warning for each that failed.

        The published format does not specify such a failure: here the verifier runs nevertheless. May be called again,
        also after a crash: completed steps are not repeated.
        """
        if not await self.has_settled(sandbox):
            await self.end_agent(sandbox)
        commands = enumerate(self.config.collect)
        return [note for index, command in commands if (note := await self._run_collect(sandbox, command, index, logs))]

    async def end_agent(self, sandbox: Sandbox) -> None:
        """Kill the agent's processes, unless the task or `trusted` lets them stay, or hardening has killed them."""
        if self.config.hardening.kill_processes and not self.trusted and self.baseline is None:
            await sandbox.kill_processes()

    async def has_settled(self, sandbox: Sandbox) -> bool:
        """Return whether the agent's processes were ended before: then those that run now belong to the scoring."""
        for key in (self.key, f"{self.key}-collect-0", f"{self.key}-settled"):
            if await sandbox.was_started(key):
                return True
        return False

    async def _run_collect(self, sandbox: Sandbox, command: CollectCommand, index: int, logs: Path) -> str | None:
        """Run one command of `verifier.collect`; return a warning if it failed, else None."""
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
        """Make the verifier's directories and upload its files. Raise `VerifierError` if the sandbox refuses."""
        aside = [f"{path}{ASIDE_SUFFIX}{part}" for path in (self.target, "/tests", LOGS) for part in ("", ".new")]
        fresh = self.config.hardening.fresh_logs
        gone = aside + (self._list_own_files() if fresh else [])
        result = await sandbox.control(_PREPARE, self.target, self._user, "yes" if fresh else "", *gone)
        if result.return_code != 0:
            raise VerifierError("the sandbox could not be made ready for the verifier", log_tail=result.stderr[-TAIL:])
        await self._upload(sandbox, None)
        # As root, which owns the file: the verifier's user could not.
        await sandbox.control('chmod +x -- "$1" 2>/dev/null || :', f"{self.target}/{_SCRIPT}")

    async def _upload(self, sandbox: Sandbox, user: str | int | None) -> None:
        """Upload the verifier, its evidence, the pytest plugins and a kit's manifest, owned by a user (None: root)."""
        for source in self.sources:
            await sandbox.upload(source, self.target, user=user)
        if self.evidence is not None:
            await sandbox.upload(self.evidence, EVIDENCE, user=user)
        if (baseline := self._pinned_by) is not None and self.config.hardening.pin_environment:
            # The modules' owners were determined in the sandbox in which the agent worked.
            own = list_own_modules(self.worked_in or baseline) if self.config.hardening.standard_library else None
            await put_plugins(sandbox, baseline, self.config.pytest_plugins, user=self.user, own=own)
        if self.document is not None and (env := self._make_kit_env()):
            manifest = kit.format_manifest(self.document, env, self.rubrics)
            await sandbox.write_file(kit.MANIFEST, manifest, user=user)

    async def remove_files(self, sandbox: Sandbox) -> None:
        """Remove the verifier's files and resume schedulers (cron) that were stopped, before the next step's agent."""
        script = f'rm -rf -- "$@"; if [ -h /tests ]; then rm -f /tests; fi\n{format_scheduler_signal("CONT")}'
        await sandbox.control(script, self.target, LOGS, *self._list_own_files())

    # --- run ---------------------------------------------------------------------------------------------

    async def _execute(self, sandbox: Sandbox, env: Mapping[str, str] | None = None) -> SandboxExecResult:
        """Run the verifier's program by `RUN`, once for its key, with further variables `env`."""
        script = shlex.quote(f"{self.target}/{_SCRIPT}")
        command = self._declared_command or f"exec {script}"
        outputs = self.document.outputs if self.document else VerifierOutputs()
        rewards = shlex.join([outputs.reward_text, outputs.reward_json])
        return await sandbox.exec_once(
            self.key,
            ["sh", "-c", RUN.format(script=script, command=command, output=OUTPUT, rewards=rewards)],
            env={
                EVIDENCE_VARIABLE: EVIDENCE,
                **self._make_kit_env(),
                **(env or {}),
                **self.pin_env(sandbox),
                **self.env,
            },
            cwd=self.get_directory(sandbox),
            user=self.user,
            timeout=self.config.timeout_sec,
        )

    def pin_env(self, sandbox: Sandbox) -> dict[str, str]:
        """Return the variables that shield the verifier's processes from the agent's files; none without a baseline."""
        if (baseline := self._pinned_by) is None:
            return {}
        return make_verifier_env(baseline, self.config, target=self.target, workspace=sandbox.ref.workdir)

    def _make_kit_env(self) -> dict[str, str]:
        if self.document is None or self.document.strategy.type != "reward-kit":
            return {}
        strategy = self.document.strategy
        criteria = self._resolve_path(strategy.criteria) if strategy.criteria else None
        return kit.make_env(self.target, self._resolve_path(strategy.root or "."), criteria, self.document)

    @property
    def user(self) -> str | int | None:
        """Return the user as whom it runs; None for root."""
        return self._default_user if self.config.user is None else self.config.user

    @property
    def _default_user(self) -> str | None:
        """Return the user for commands of which the task names none; None for root."""
        baseline = self._pinned_by
        return baseline.user if baseline is not None else None

    @property
    def _user(self) -> str:
        return "root" if self.user is None else str(self.user)

    def _resolve_path(self, path: str) -> str:
        """Return the path in the sandbox of a path in the document, relative to the verifier's or task's directory."""
        own, _, inner = path.removeprefix("./").partition("/")
        if inner and not any((source / path).exists() for source in self.sources):
            path = inner if any(source.name == own for source in self.sources) else path
        return posixpath.normpath(posixpath.join(self.target, path))

    # --- result ------------------------------------------------------------------------------------------

    def _read_result(self, sandbox: Sandbox, logs: Path, outcome: SandboxExecResult, notes: list[str]) -> VerifyResult:
        check_end(
            outcome,
            logs,
            self.config,
            program=self._program,
            directory=self.get_directory(sandbox),
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
        """Download the verifier's files to `logs` and redact secrets. Raise `VerifierError` if they cannot be read."""
        with raise_storage_errors(logs):
            logs.mkdir(parents=True, exist_ok=True)
        declared = self._list_declared_outside()
        try:
            with ConfinedDirectory(logs) as directory:
                for old in {"reward.txt", "reward.json", *declared.values()}:
                    directory.remove_tree(old)
            async with awake_timeout(FETCH_TIMEOUT):
                # Without the evidence that it was given, which is stored elsewhere.
                await sandbox.download(LOGS, logs, exclude=[EVIDENCE.removeprefix(f"{LOGS}/")])
                for path, name in declared.items():
                    await sandbox.download(path, logs / name)
            # A verifier may print secrets, and its output is read into events and errors.
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

    def _list_declared_outside(self) -> dict[str, str]:
        """Return the declared outputs that are not at their default paths, with their names in the results."""
        outputs = self.document.outputs if self.document else VerifierOutputs()
        names = {outputs.reward_text: "reward.txt", outputs.reward_json: "reward.json"}
        if outputs.details_json is not None and not outputs.details_json.startswith(f"{LOGS}/"):
            names[outputs.details_json] = posixpath.basename(kit.DETAILS)
        return {path: name for path, name in names.items() if path != f"{LOGS}/{name}"}

    def _list_own_files(self) -> list[str]:
        """Return the files outside of its directories that must not exist before it runs."""
        pinned_by = self._pinned_by
        return [*self._list_declared_outside(), *(list_plugin_files(pinned_by) if pinned_by is not None else [])]


def make_verifier(
    task: Task, directory: Path, step: str | None, *, has_workdir: bool = True, **how: Any
) -> ScriptVerifier:
    """Return a task's verifier for a step (None: the only one), in the task's directory.

    `has_workdir`: whether the task or its image names a workspace. `how`: the other fields of `ScriptVerifier`.
    """
    own = task.step_files[step].verifier_dir if step else None
    # The files that all steps share come first; a step's own files replace them.
    sources = [source for source in (task.verifier_dir, own) if source is not None]
    assert sources  # a task without a verifier is refused when it is read
    return ScriptVerifier(
        config=find_config(task, step),
        document=task.verifier_document,
        sources=[directory / source for source in sources],
        target="/tests" if Path(sources[-1]).name == "tests" else "/verifier",
        rubrics=task.rubrics,
        starts_in_root=task.starts_in_root(has_workdir),
        is_split=task.layout == "split",
        **how,
    )
