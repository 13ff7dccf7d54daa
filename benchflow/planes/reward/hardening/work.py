"""Harden a sandbox between agent and verifier in a few round trips: restore tools, kill, survey, judge, act."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from benchflow.contracts.process_table import RunningProcess
from benchflow.contracts.reward import HardeningFinding, HardeningReport, Weight
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import HardeningConfig
from benchflow.errors import SandboxError, UnsafePathError, VerifierError
from benchflow.planes.reward.hardening.baseline import HardeningBaseline, list_skipped
from benchflow.planes.reward.hardening.devices import find_replaced_devices, list_devices
from benchflow.planes.reward.hardening.escaping_archives import MAX_ARCHIVES, MAX_BYTES, find_escaping_member
from benchflow.planes.reward.hardening.foundation import CLEAN_ROOM, Repairs, compare_tools
from benchflow.planes.reward.hardening.foundation import ITEM as TOOLS_ITEM
from benchflow.planes.reward.hardening.git_state import ITEM as GIT_ITEM
from benchflow.planes.reward.hardening.git_state import list_repositories, restore_git_view
from benchflow.planes.reward.hardening.hardening_record import MAX_NAMED, HardeningRecord, extend_report
from benchflow.planes.reward.hardening.judgement import (
    BUILD,
    CONFTESTS,
    CRON_PLACES,
    ENVIRONMENT,
    FRESH,
    LINKS,
    PROCESSES,
    PYTHON,
    STANDARD_ITEM,
    Judgement,
    get_weight,
    judge,
)
from benchflow.planes.reward.hardening.strangers import (
    ALTERED,
    format_scheduler_signal,
    kill_strangers,
    list_unaltered_strangers,
    note_altered,
    note_running,
    refuse_memory_kills,
)
from benchflow.planes.reward.hardening.survey import (
    MAX_COMMAND,
    SURVEY_DIRECTORY,
    encode,
    format_name,
    get_workspace,
    take_survey,
)
from benchflow.planes.reward.hardening.verifier_dependencies import CLEAR_AWAY, LOADER_CACHE, LOGS
from benchflow.planes.reward.hardening.work_notes import note_work

_MAX_ROUNDS = 4
"""Maximum number of comparisons, after which tools that keep changing are an error."""

_MAX_PASSES = 2
"""Maximum number of times that a sandbox is surveyed, where services go on to start processes that are killed."""

_MAX_MEMBER = 300
"""Maximum number of characters of an archive member's name in a finding."""

_ACT = f"{SURVEY_DIRECTORY}/act"

# A link to a program or a library of the image stays: virtual environments have such links, and they lead a verifier to
# nothing that the agent wrote.
_BEGIN = r"""
link() {
  t=$(readlink -f -- "$2")
  k=
  case $t in
  /tests|/tests/*|/verifier|/verifier/*|/logs/*|/oracle|/oracle/*|/solution|/solution/*|/proc/*|/sys/*|/dev/*|/etc/*) ;;
  /usr/*|/bin/*|/sbin/*|/lib*|/opt/*|/nix/*) [ ! -e "$t" ] || k=1;;
  *) [ ! -f "$t" ] || [ ! -x "$t" ] || k=1;;
  esac
  if [ -n "$k" ]; then echo "kept $1"; else rm -f -- "$2" || echo "failed $1"; fi
}
put() {
  d=${1%/*}
  [ -d "$d" ] || return 0
  if [ -h "$d" ]; then
    case $d/ in "$ws"/*) return 0;; esac
    rm -f -- "$d" && mkdir -- "$d" || return 1
  fi
  rm -rf -- "$1"
  cat >"$1" && chmod "$2" "$1" && chown "$3" "$1"
}
"""
_LOGS = f"""
if [ -h /logs ]; then rm -f /logs; fi
{CLEAR_AWAY}
clear_away {LOGS} && mkdir -p {LOGS} && chown 0:0 /logs {LOGS} && chmod 755 /logs {LOGS} || exit 1
"""
# A verifier starts in the workspace, so an agent that replaced the directory could keep every verifier from running.
_MAKE = """
if [ ! -d {workspace} ]; then rm -rf -- {workspace} && mkdir -p -- {workspace} && echo made workspace || exit 1; fi
"""
# A verifier that writes to a well-known temporary name would follow a planted link, and overwrite its own files.
_TEMPORARY = r"""
find /tmp /var/tmp -xdev -type l 2>/dev/null | while IFS= read -r f; do
  case $(readlink "$f") in
  /tests*|/verifier*|/logs/verifier*|*/../tests*|*/../logs/verifier*|/proc/*) rm -f -- "$f" && echo "temporary $f";;
  esac
done
"""
# Hard links are separated: a verifier that overwrites a file at one name would change the agent's answer at another.
_PART = r"""
find {workspace} -xdev -type f -links +1 ! -path '*/.git/*' ! -path '*/node_modules/*' -exec sh -c '
  for f; do cp -p -- "$f" "$f.benchflow" && mv -f -- "$f.benchflow" "$f"; done' sh {{}} + 2>/dev/null
"""
_OWN = r"""
find {workspace} -xdev ! -user {user} -exec chown -h {user} {{}} + 2>/dev/null
find {workspace} -xdev ! -type l \( -perm -020 -o -perm -002 \) -exec chmod go-w {{}} + 2>/dev/null
:
"""


async def harden(
    sandbox: Sandbox,
    baseline: HardeningBaseline,
    config: HardeningConfig,
    *,
    verifier: str | int | None = None,
    trusted: bool = False,
    left: Sequence[str] = (),
    record: HardeningRecord | None = None,
    plugins: Sequence[str] = (),
) -> HardeningReport:
    """Prepare the sandbox for a verifier, after the agent's last action. May be repeated.

    Args:
        sandbox: Sandbox in which the agent has acted.
        baseline: Its baseline, from before the agent acted.
        config: Items that are on.
        verifier: User of the verifier; None for root.
        trusted: Whether the oracle has acted, whose services may stay.
        left: Commands that the agent had left running when it ended.
        record: Collects the findings, also of a hardening that fails.
        plugins: The task's `verifier.pytest_plugins`.

    Returns:
        The report of all findings.

    Raises:
        VerifierError: A change can't be undone, or the changes can't be listed.
    """
    began = time.monotonic()
    record = record if record is not None else HardeningRecord()
    found = record.findings
    action = "killed" if config.kill_processes and not trusted else "found"
    found += [HardeningFinding(item=PROCESSES, action=action, detail=command) for command in left]
    for _ in range(_MAX_PASSES):
        if not trusted:
            await _secure(sandbox, baseline, config, record)
            if config.verify_tools and baseline.devices:
                replaced = find_replaced_devices(baseline.devices, await list_devices(sandbox), TOOLS_ITEM)
                found += [finding for finding in replaced if finding not in found]
                record.unsafe = record.unsafe or next((f"{one.path} {one.detail}" for one in replaced), "")
        async with refuse_memory_kills(sandbox):
            judged = await _judge(sandbox, baseline, config, plugins)
            # The restored cache lacks the libraries that the agent has installed, so it is rebuilt.
            is_old = any(finding.path == LOADER_CACHE for finding in found)
            acted = await _act(sandbox, judged, config, verifier, trusted, is_old)
            found += [finding for finding in acted if finding not in found]
        running = [] if trusted else await list_unaltered_strangers(sandbox)
        # What a service has started since the last kill may have changed what was compared before. A kill costs more
        # than a look, since the engine's own shell is started again.
        if not (running and config.kill_processes and await kill_strangers(sandbox, found, running)):
            break
    else:
        running = await list_unaltered_strangers(sandbox)
    is_planted = any(finding.path.startswith(CRON_PLACES) for finding in found)
    if config.kill_processes and not trusted and (is_planted or baseline.has_schedulers):
        await sandbox.control(format_scheduler_signal("STOP" if is_planted else "CONT"))
    found += [note_running(process) for process in running if process.command not in left]
    disabled = [name for name, is_on in config.model_dump().items() if not is_on]
    seconds = round(time.monotonic() - began, 4)
    report = HardeningReport(disabled=disabled, seconds=seconds, unsafe=record.unsafe)
    return extend_report(report, found)


async def _secure(
    sandbox: Sandbox, baseline: HardeningBaseline, config: HardeningConfig, record: HardeningRecord
) -> None:
    """Restore the tools and kill what the agent left running, until neither changes any more.

    A process that still runs may change a tool again, so the tools are compared once more after each kill. Raises
    `VerifierError` if they still change after `_MAX_ROUNDS` rounds, or can't be restored.
    """
    tools = baseline.tools if config.verify_tools else None
    found = record.findings
    altered: dict[tuple[int, int], RunningProcess] = {}
    stops = baseline.has_schedulers and config.kill_processes
    for turn in range(_MAX_ROUNDS):
        repairs = Repairs()
        try:
            if tools is not None and baseline.changes is not None:
                record.listing = await sandbox.changes(baseline.changes, skip=list_skipped(sandbox, tools))
                await compare_tools(sandbox, tools, baseline.changes, record.listing, repairs)
        except (VerifierError, UnsafePathError) as error:
            # Nothing of this round was restored yet, so its findings become `found`.
            found += [finding.model_copy(update={"action": "found"}) for finding in repairs.found]
            path, detail = error.file or "", error.message
            is_tool = isinstance(error, VerifierError)
            weight: Weight = "tampering" if is_tool else "note"
            found.append(HardeningFinding(item=TOOLS_ITEM, action="found", path=path, detail=detail, weight=weight))
            if is_tool:
                raise
            # Not retryable: in another sandbox the agent would leave the same.
            raise VerifierError(detail, file=error.file, remedy=error.remedy, log_tail=error.log_tail) from error
        # Changes that are only reported are found again in each round.
        found += [finding for finding in repairs.found if finding not in found]
        if repairs.put:
            await sandbox.put_outside(repairs.put)
        if stops:
            # A job that is due would be started after the last kill. The kill ends this shell, whatever it has loaded.
            await sandbox.control(format_scheduler_signal("STOP"))
        strangers = await sandbox.strangers() if config.kill_processes else []
        altered |= _find_altered(strangers)
        killed = await kill_strangers(sandbox, found, strangers) if config.kill_processes else 0
        found += await _finish_repairs(sandbox, repairs)
        if stops:
            # A kill by a script resumes them.
            await sandbox.control(format_scheduler_signal("STOP"))
        if not (killed or repairs.is_any or (stops and turn == 0)):
            left = _find_altered(await sandbox.strangers()) if config.kill_processes else {}
            found += [note_altered(process, key in left) for key, process in (altered | left).items()]
            record.unsafe = next((f"{ALTERED} that cannot be ended: {one.command}" for one in left.values()), "")
            return
    if killed:
        named = ", ".join(dict.fromkeys(process.command for process in strangers[:MAX_NAMED]))
        problem = f"processes are started again after each kill, by a service or by each other: {named}"
    else:
        problem = f"{found[-1].path} of the sandbox is changed again after each restoration"
    raise VerifierError(
        problem,
        remedy=CLEAN_ROOM,
    )


def _find_altered(processes: Sequence[RunningProcess]) -> dict[tuple[int, int], RunningProcess]:
    """Return those processes whose code another process has changed in memory, by their identities."""
    return {process.identity: process for process in processes if process.is_altered}


async def _finish_repairs(sandbox: Sandbox, repairs: Repairs) -> list[HardeningFinding]:
    """Remove files and reset directories by the sandbox's own programs, which can be trusted now. Return findings."""
    lines = [
        f"chown {state.uid}:{state.gid} {_format_word(path)}; chmod {state.mode:o} {_format_word(path)} || exit 1"
        for path, state in repairs.directories.items()
    ]
    if repairs.remove:
        lines.append(f"{_format_print(f'{path}' + chr(0) for path in repairs.remove)} | xargs -0 rm -rf -- || exit 1")
    if lines and (result := await sandbox.control("\n".join(lines), timeout=300)).return_code:
        raise VerifierError("what the agent changed could not be put back", log_tail=result.stderr[-2000:])
    return [
        HardeningFinding(item=TOOLS_ITEM, action="removed", path=path, weight=weight)
        for path, weight in repairs.remove.items()
    ]


async def _judge(
    sandbox: Sandbox, baseline: HardeningBaseline, config: HardeningConfig, plugins: Sequence[str]
) -> Judgement:
    """Survey the sandbox, and return the judgement of all files, archives and repositories."""
    items = (BUILD, FRESH, LINKS, CONFTESTS, PYTHON, GIT_ITEM, STANDARD_ITEM, ENVIRONMENT)
    if not any(getattr(config, item) for item in items):
        return Judgement()
    before = baseline.survey
    now = await take_survey(
        sandbox,
        home=baseline.home,
        path=baseline.path,
        modules=baseline.modules,
        known=sorted(before.files),
        since=before.now,
        wanted=[*before.includes, *before.targets],
    )
    judged = judge(before, now, config, get_workspace(sandbox), baseline.named)
    notes = note_work(before, now, get_workspace(sandbox), {*baseline.plugins, *plugins})
    judged.found.extend(note for note in notes if getattr(config, note.item))
    if config.remove_escaping_links:
        for path, member in (await _find_escaping_archives(sandbox, now.packed)).items():
            judged.remove[path] = LINKS
            judged.why[path] = f"would be unpacked to other places: {member}"
    if config.repository_state:
        judged.found.extend(
            await restore_git_view(sandbox, list_repositories(now), baseline.overlooked, baseline.replaced)
        )
    return judged


async def _act(
    sandbox: Sandbox,
    judged: Judgement,
    config: HardeningConfig,
    verifier: str | int | None,
    trusted: bool,
    rebuilds: bool,
) -> list[HardeningFinding]:
    """Carry out a judgement by one script, and return the findings.

    Args:
        sandbox: Sandbox of the agent.
        judged: Judgement.
        config: Items that are on.
        verifier: User of the verifier, who is to own the workspace.
        trusted: Whether the oracle has acted.
        rebuilds: Whether to make the loader's cache anew.
    """
    lines = [f"ws={_format_word(get_workspace(sandbox))}", _BEGIN, _LOGS if config.fresh_logs else ""]
    links = list(judged.links)
    lines += [f"link {index} {_format_word(path)}" for index, path in enumerate(links)]
    workspace = get_workspace(sandbox)
    if config.own_workspace and workspace:
        lines.append(_MAKE.format(workspace=_format_word(workspace)))
    if judged.remove:
        lines.append(f"{_format_print(f'{path}' + chr(0) for path in judged.remove)} | xargs -0 rm -rf -- || exit 1")
    for path, (_, kept) in judged.restore.items():
        content = _format_print([kept.content], as_bytes=True)
        lines.append(f"{content} | put {_format_word(path)} {kept.mode:o} {kept.uid}:{kept.gid} || exit 1")
    if config.remove_escaping_links:
        lines.append(_TEMPORARY)
    if config.remove_escaping_links and workspace and not trusted:
        lines.append(_PART.format(workspace=_format_word(workspace)))
    if config.own_workspace and workspace and not trusted:
        user = "0" if verifier in (None, "root") else str(verifier)
        lines.append(_OWN.format(workspace=_format_word(workspace), user=_format_word(user)))
    if rebuilds:
        lines.append("ldconfig 2>/dev/null || :")
    script = "\n".join(lines)
    if len(script) > MAX_COMMAND:
        await sandbox.write_file(_ACT, script, mode=0o600)
        script = f". {_ACT}"
    result = await sandbox.control(f"{script}\nrm -rf {SURVEY_DIRECTORY}", timeout=300)
    answers = [line.split(" ") for line in result.stdout.splitlines()]
    if result.return_code != 0 or any(word == "failed" for word, *_ in answers):
        raise VerifierError("what the agent left could not be cleared away", log_tail=result.stderr[-2000:])
    kept_links = {int(index) for word, index, *_ in answers if word == "kept"}
    found = _make_findings(judged, links, kept_links)
    for word, *rest in answers:
        if word == "temporary":
            path = " ".join(rest)
            found.append(HardeningFinding(item=LINKS, action="removed", path=path, weight="tampering"))
    if ["made", "workspace"] in answers:
        detail = "was no directory any more"
        found.append(HardeningFinding(item="own_workspace", action="replaced", path=workspace, detail=detail))
    return found


def _make_findings(judged: Judgement, links: Sequence[str], kept: set[int]) -> list[HardeningFinding]:
    """Return the findings about removed and restored files and links, and the judgement's own, ordered by item."""
    found = [
        HardeningFinding(
            item=item,
            action="removed",
            path=format_name(path),
            detail=format_name(judged.why.get(path, "")),
            weight=get_weight(item, path),
        )
        for path, item in judged.remove.items()
    ]
    for path, (item, _) in judged.restore.items():
        weight = get_weight(item, path)
        found.append(HardeningFinding(item=item, action="restored", path=format_name(path), weight=weight))
    for index, path in enumerate(links):
        target = judged.links[path]
        detail, weight = f"to {format_name(target)}", get_weight(LINKS, path, target)
        if index in kept:
            detail += ", a program or a library"
        action = "found" if index in kept else "removed"
        found.append(HardeningFinding(item=LINKS, action=action, path=format_name(path), detail=detail, weight=weight))
    order = (PROCESSES, TOOLS_ITEM, FRESH, LINKS, CONFTESTS, BUILD, PYTHON, GIT_ITEM, STANDARD_ITEM, ENVIRONMENT)
    found += judged.found
    return sorted(found, key=lambda finding: order.index(finding.item))


async def _find_escaping_archives(sandbox: Sandbox, packed: Sequence[str]) -> dict[str, str]:
    """Return the archives that would unpack over files elsewhere, each with the first member that would.

    Args:
        sandbox: Sandbox of the agent.
        packed: Paths of new archives, of which at most `MAX_ARCHIVES` are read.
    """
    found = {}
    for path in packed[:MAX_ARCHIVES]:
        try:
            content = await sandbox.read_bytes(path)
        except (FileNotFoundError, SandboxError):
            # It is gone, or too large to be read at once.
            continue
        if len(content) <= MAX_BYTES and (member := await asyncio.to_thread(find_escaping_member, content)) is not None:
            found[path] = member[:_MAX_MEMBER]
    return found


def _format_word(text: str) -> str:
    """Return a shell word that expands to a text of any bytes, but for newlines at its end."""
    return f'"$({_format_print([text])})"'


def _format_print(texts: Iterable[str], *, as_bytes: bool = False) -> str:
    """Return a shell command, in ASCII alone, that prints the texts.

    Args:
        texts: Texts, whose bytes are printed one after another.
        as_bytes: Whether they are in Latin-1, with a character for each byte, and not names.
    """
    data = b"".join(text.encode("latin-1") if as_bytes else encode(text) for text in texts)
    return "printf '" + "".join(chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in data) + "'"


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@ ")
