"""Report a rollout that ends: collect logs and artifacts from its sandbox, write its result and row, and pack them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from benchflow.confined import ConfinedDirectory
from benchflow.contracts.activities import ReportInput, ReportResult
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.reward import HardeningReport
from benchflow.contracts.rollout_records import TRUNCATING, RolloutResult, StepOutcome
from benchflow.contracts.task import ArtifactSpec
from benchflow.errors import BenchFlowError, ResultFileError, SandboxError, SandboxLostError, TaskError, UnsafePathError
from benchflow.host_files import raise_storage_errors
from benchflow.hosting.clean_room import remove_rooms
from benchflow.hosting.freezing import thaw
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.hosted_world import store_logs
from benchflow.hosting.interruption import is_cancelled
from benchflow.hosting.portable import unpack_record
from benchflow.hosting.session_files import store_journals
from benchflow.paths import JobPaths, RolloutPaths
from benchflow.planes.sandbox import directory_trees, get_provider
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.results.hardening_findings import collect_findings
from benchflow.results.mode_rows import append_rows
from benchflow.results.write import append_row, write_rollout
from benchflow.secrets import Redactor
from benchflow.tasks import compose_step_prompt, unpack, write_pack
from benchflow.trajectories.journal import read_heads, read_journal
from benchflow.trajectories.nodes import read_hardening
from benchflow.trajectories.rollout_tree import add_events, build_tree

log = structlog.get_logger("benchflow.reports")

COLLECT_SEC = 600.0
"""Maximum number of seconds to collect logs and artifacts: several artifacts of the largest size that is allowed."""

AFTER_CANCEL_SEC = 10.0
"""Maximum number of seconds to collect from a cancelled rollout: that it ends soon matters more than completeness."""


class HostedReport:
    """The report of a rollout that ends on this host."""

    def __init__(self, rollout: Hosted, report: ReportInput, is_last_attempt: Callable[[], bool]) -> None:
        """Make it.

        Args:
            rollout: The rollout, with its task read; it need not be attached to its sandbox.
            report: All that the workflow knows of the rollout.
            is_last_attempt: Returns whether no retry follows if this attempt fails.
        """
        self._rollout = rollout
        self._report = report
        self._is_last_attempt = is_last_attempt

    async def collect_and_write(self) -> ReportResult:
        """Collect logs and artifacts from the sandbox within a time limit, then write the result as `write` does.

        Whatever can't be collected becomes a warning. If `keeps_result` is set and there is a result, nothing is done.

        Raises:
            SandboxError: Collecting fails retryably.
            StoreError: The results can't be written.
        """
        report, paths = self._report, self._rollout.make_results_directory()
        if report.keeps_result and paths.result.exists():
            return ReportResult(is_kept=True)
        warnings = list(report.warnings)
        was_cancelled = report.status == "cancelled"
        limit = AFTER_CANCEL_SEC if was_cancelled else COLLECT_SEC
        try:
            async with awake_timeout(limit):
                warnings += await self._collect(paths)
        except TimeoutError:
            when = " after the cancellation" if was_cancelled else ", and not to the end"
            warnings.append(f"logs and artifacts were collected for {limit:g} s{when}")
        except asyncio.CancelledError:
            if not is_cancelled():
                raise
            warnings.append("logs and artifacts were not all collected: the rollout was cancelled meanwhile")
        finishing = asyncio.create_task(self._finish(warnings, paths))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            if not is_cancelled():
                finishing.cancel()
                raise
            return await finishing

    async def _finish(self, warnings: list[str], paths: RolloutPaths) -> ReportResult:
        """Write the rest of the results, which needs no sandbox: gateway warnings, journals, result."""
        rollout = self._rollout
        warnings += await rollout.model.list_warnings()
        # Journals last: no file that comes out of the sandbox may replace them.
        episode = rollout.ref.episode
        warnings += await asyncio.to_thread(store_journals, rollout.sessions, episode, paths.sessions, rollout.redact)
        self._report = self._report.model_copy(update={"warnings": warnings})
        return await self.write()

    async def write_without_sandbox(self) -> ReportResult:
        """Write the result, as `write` does, of a rollout whose sandbox is lost, or that never had one.

        After a lost host, results up to the last portable checkpoint are fetched from the store before.
        """
        if self._report.record is not None:
            # Its host is lost, with the results that it had written there.
            await unpack_record(self._rollout, self._report.record)
        self._rollout.make_results_directory()
        return await self.write()

    # --- collecting ---------------------------------------------------------------------------------------------

    async def _collect(self, paths: RolloutPaths) -> list[str]:
        """Download logs and artifacts from the sandbox. Return warnings about missing ones, which change no reward."""
        rollout, report = self._rollout, self._report
        try:
            await rollout.attach()
            if report.is_frozen:
                return ["logs and artifacts were not collected: the rollout was cancelled while it waited for a slot"]
            await thaw(rollout.sandbox, paths.root)
            if report.status == "cancelled" and rollout.spec.job_run_id is None:
                # No process is needed any more, and a running one could delay the collecting.
                await rollout.sandbox.kill_processes(keep="nothing")
            task, warnings = rollout.task, await self._collect_logs(paths)
            done = {outcome.step.name for outcome in report.steps}
            wanted = [(artifact, paths.artifacts) for artifact in task.artifacts]
            for step in task.steps:
                if step.name in done:
                    artifacts = paths.root / "steps" / step.name / "artifacts"
                    wanted += [(artifact, artifacts) for artifact in step.artifacts]
            for artifact, root in wanted:
                warnings += await self._collect_artifact(artifact, root)
            return warnings + await self._collect_world(paths)
        except SandboxError as error:
            if error.retryable:
                raise
            return [f"logs and artifacts could not be collected: {error.message}"]

    async def _collect_logs(self, paths: RolloutPaths) -> list[str]:
        warnings = []
        for source, target in (("/logs/agent", paths.agent), ("/logs/artifacts", paths.artifacts)):
            # Made before: then a sandbox can't put a file or a link in place of the directory.
            with raise_storage_errors(target):
                target.mkdir(parents=True, exist_ok=True)
            try:
                await self._rollout.sandbox.download(source, target)
            except SandboxLostError:
                raise
            except SandboxError as error:
                if error.retryable:
                    raise
                warnings.append(f"{source} could not be collected: {error.message}")
        return warnings

    async def _collect_artifact(self, artifact: ArtifactSpec, root: Path) -> list[str]:
        sandbox = self._rollout.sandbox
        source = PurePosixPath(sandbox.ref.workdir) / artifact.source
        relative = PurePosixPath(artifact.destination or str(source).lstrip("/"))
        try:
            with raise_storage_errors(root):
                root.mkdir(parents=True, exist_ok=True)
                with ConfinedDirectory(root) as directory:
                    directory.make_directories(str(relative.parent))
            if not await sandbox.download(str(source), root / relative, exclude=artifact.exclude):
                return [f"artifact {artifact.source} does not exist"]
        except SandboxLostError:
            raise
        except SandboxError as error:
            if error.retryable:
                raise
            return [f"artifact {artifact.source} could not be collected: {error.message}"]
        return []

    async def _collect_world(self, paths: RolloutPaths) -> list[str]:
        try:
            world = await self._rollout.open_world()
            return await store_logs(world, paths) if world is not None else []
        except FileNotFoundError:
            return ["the world was never started"]

    # --- writing ------------------------------------------------------------------------------------------------

    async def write(self, *, is_lost: bool = False) -> ReportResult:
        """Fetch the results of children, remove clean rooms, redact, and write the result, the tree and the job's row.

        It may be repeated by a retry, which writes the same files again.

        Args:
            is_lost: Whether the job reports a rollout that did not report itself. A result of its own is not replaced.

        Returns:
            Directory of the results on this host, a pack of them in the store if the job's host is another one, or
            both for a child in a tree that may use several hosts.

        Raises:
            BenchFlowError: A child's results can't be fetched, and a retry may help; or the files can't be written.
        """
        rollout, report, spec, paths = self._rollout, self._report, self._rollout.spec, self._rollout.paths
        notes: list[str] = []
        for path, results in report.packs.items():
            try:
                await self._fetch_child(path, results)
            except BenchFlowError as error:
                # A disk that several hosts share may show a file late.
                if error.is_outage or (error.retryable and not self._is_last_attempt()):
                    raise
                # The child's reward is in the tree all the same: the parent got it from the workflow.
                notes.append(f"the results of the child {path} are missing: {error.message}")
        await remove_rooms(spec.run.sandbox, paths.root)
        # A verifier may print files of the agent, with the agent's secrets.
        notes += await asyncio.to_thread(_redact_directories, rollout.redact, list_collected(paths))
        report = report.model_copy(update={"warnings": report.warnings + notes})
        events = await asyncio.to_thread(read_heads, paths.trajectory)
        rewards = await asyncio.to_thread(read_journal, paths.rewards)
        root, started = spec.begins_at
        tree = build_tree(spec.id, report.steps[started:], events, rewards, root=root, chain=spec.chain)
        if report.tree is not None:
            tree = add_events(report.tree, tree)
        found = await asyncio.to_thread(collect_findings, report.steps, partial(_read_hardening, paths))
        result = _make_result(rollout, report, leaves=len(tree.leaves), nodes=len(tree.nodes), found=found)
        if not await asyncio.to_thread(write_rollout, paths, result, tree, self._list_prompts(), is_lost=is_lost):
            return ReportResult(directory=str(paths.root))
        if spec.branch is not None:
            # Its parent reports it, and only the root has a row.
            portable = spec.run.branch is not None and spec.run.branch.portable
            return ReportResult(directory=str(paths.root), pack=await self._pack() if portable else None)
        if rollout.host.is_origin(spec.origin):
            job = JobPaths(Path(spec.origin.job_dir))
            try:
                await asyncio.to_thread(append_row, job, result)
                if spec.run.mode is not None:
                    await asyncio.to_thread(append_rows, job, spec.run.mode, result)
            except BenchFlowError as error:
                # The result is written. The job's end writes all rows anew, and no rollout is run again for a row.
                log.warning("a row is missing until the job ends", id=spec.id, error=error.message)
            return ReportResult(directory=str(paths.root))
        return ReportResult(pack=await self._pack())

    async def _pack(self) -> ArtifactRef:
        """Pack all results of the rollout, and return the archive's reference in the store."""
        with tempfile.TemporaryDirectory() as scratch:
            pack = Path(scratch) / "rollout.tar"
            await asyncio.to_thread(write_pack, self._rollout.paths.root, pack)
            return await self._rollout.host.store.put_file(pack)

    async def _fetch_child(self, path: str, pack: ArtifactRef) -> None:
        """Fetch the packed results of the child with a branch path to this host, unless its result is there."""
        results = self._rollout.root_paths.child(path)
        if results.result.exists():
            return
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "rollout.tar"
            await self._rollout.host.store.fetch(pack, file)
            # Files of the child on this host date from before its host was lost.
            await asyncio.to_thread(shutil.rmtree, results.root, ignore_errors=True)
            await asyncio.to_thread(unpack, file, results.root)

    def _list_prompts(self) -> list[dict[str, Any]]:
        try:
            task = self._rollout.task
        except TaskError:
            return []
        return [
            {"step": outcome.step.name, "role": outcome.step.role, "text": compose_step_prompt(task, outcome.step)}
            for outcome in self._report.steps
        ]


def _make_result(
    rollout: Hosted, report: ReportInput, *, leaves: int, nodes: int, found: Mapping[str, Any]
) -> RolloutResult:
    """Return the result as it is written, with the tree's numbers of leaves and nodes, and the hardening's fields."""
    spec = rollout.spec
    failure = report.error or report.verifier_error
    sandbox = report.sandbox
    below = [text for text in (report.tree.warnings if report.tree else ()) if text not in report.warnings]
    about: dict[str, Any] = {"provider": spec.run.sandbox, "provisions": report.generations}
    if sandbox is not None:
        capabilities = get_provider(spec.run.sandbox).capabilities()
        about |= {"name": sandbox.name, "host": sandbox.host_id, "workdir": sandbox.workdir}
        about |= {"isolation": capabilities.isolation, "image": sandbox.image}
        about |= {"has_workdir": sandbox.has_workdir}
    return RolloutResult(
        rollout_name=spec.name,
        task_name=spec.task.name,
        job_name=spec.job_name,
        workflow_id=spec.id,
        run_id=report.run_id or None,
        task_digest=spec.task.digest,
        agent=spec.agent.name,
        model=spec.agent.model,
        repeat=spec.repeat,
        attempt=spec.attempt,
        status=report.status,
        rewards=report.rewards,
        reward_kind="value" if report.value is not None else "measured",
        error=report.error,
        error_category=failure.category if failure else None,
        verifier_error=report.verifier_error,
        warnings=[*report.warnings, *below, *(note for step in report.steps for note in _warnings(step))],
        is_truncated=report.error is not None and report.error.category in TRUNCATING,
        n_tool_calls=report.n_tool_calls,
        n_prompts=len(report.steps[spec.begins_at[1] :]),
        steps=report.steps,
        **found,
        sessions=report.sessions,
        **_sum_usage(report),
        started_at=datetime.fromtimestamp(report.started_at, UTC),
        finished_at=datetime.now(UTC),
        timing=report.timing,
        sandbox=about,
        environment=_describe_world(report),
        tree={"nodes": nodes, "leaves": leaves},
        session_rung=report.rung,
        rollbacks=report.rollbacks,
        stored=Path(spec.stored.directory).name if spec.stored is not None else None,
        directory=str(rollout.paths.root) if rollout.host.is_origin(spec.origin) else None,
    )


def _read_hardening(paths: RolloutPaths, step: str | None) -> HardeningReport | None:
    """Return the report of a step's hardening; None if there is none, or it can't be parsed."""
    try:
        return read_hardening(paths, step)
    except ResultFileError as error:
        log.warning("findings are missing from a result", file=error.file, error=error.message)
        return None


def _warnings(step: StepOutcome) -> list[str]:
    return [*step.turn.warnings, *(step.verify.warnings if step.verify else [])]


def list_collected(paths: RolloutPaths) -> tuple[Path, ...]:
    """Return the results' directories with files from a sandbox, which may hold secrets until they are redacted."""
    return (paths.agent, paths.artifacts, paths.verifier, paths.root / "steps", paths.environment / "logs")


def _redact_directories(redact: Redactor, directories: Sequence[Path]) -> list[str]:
    """Redact secrets in directories, and remove one that can't be read as a whole. Return warnings about the latter."""
    notes = []
    for directory in directories:
        try:
            redact.clean_below(directory)
        except UnsafePathError as error:
            directory_trees.remove_tree(directory)
            notes.append(f"{directory.name} is not kept, since secrets cannot be taken out of it: {error.message}")
    return notes


def _sum_usage(report: ReportInput) -> dict[str, Any]:
    """Return the result's fields about tokens and cost of all turns, as far as these are known."""
    # A step that a child ran counts once, with the child.
    own = [one for one in report.steps[report.spec.begins_at[1] :] if one.step.index not in report.adopted_steps]
    used = [step.turn.usage for step in own if step.turn.usage is not None] + report.used_below
    if not used:
        return {}
    costs = [usage.cost for usage in used if usage.cost is not None and usage.currency in (None, "USD")]
    return {
        "n_input_tokens": sum(usage.input_tokens for usage in used),
        "n_output_tokens": sum(usage.output_tokens for usage in used),
        "n_estimated_calls": sum(usage.estimated_calls for usage in used),
        "cost_usd": sum(costs) if costs else None,
    }


def _describe_world(report: ReportInput) -> dict[str, Any]:
    """Return the world's name, digest and source, and its state when it became ready; empty without a world."""
    environment = report.spec.task.environment
    if environment is None:
        return {}
    about = environment.model_dump(mode="json", include={"digest", "source"}) | {"name": environment.manifest.name}
    return about | (report.readied.model_dump(mode="json") if report.readied is not None else {})
