"""The work between the agent and the verifier, in a few round trips: end, look, judge, act."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from benchflow.contracts.reward import HardeningFinding, HardeningReport
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.task import HardeningConfig
from benchflow.errors import SandboxError, SandboxLostError, VerifierError
from benchflow.planes.reward.hardening.baseline import HardeningBaseline
from benchflow.planes.reward.hardening.judgement import BUILD, CONFTESTS, FRESH, LINKS, PYTHON, Judgement, judge
from benchflow.planes.reward.hardening.names import CLEAR_AWAY, LOGS
from benchflow.planes.reward.hardening.survey import MOST_SAID, ROOM, encode, take_survey, workspace_of
from benchflow.planes.reward.hardening.tools import ITEM as TOOLS_ITEM
from benchflow.planes.reward.hardening.tools import secure_first, verify_tools

MOST = 200
"""Findings that a report lists."""

_ACT = f"{ROOM}/act"

# A link to a program or a library of the image, as virtual environments have them, gives a verifier nothing to follow.
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
  [ -d "$d" ] && [ ! -h "$d" ] || return 0
  rm -rf -- "$1"
  cat >"$1" && chmod "$2" "$1" && chown "$3" "$1"
}
"""
_LOGS = f"""
if [ -h /logs ]; then rm -f /logs; fi
{CLEAR_AWAY}
clear_away {LOGS} && mkdir -p {LOGS} && chown 0:0 /logs {LOGS} && chmod 755 /logs {LOGS} || exit 1
"""
# A verifier starts in the workspace. What an agent has made of it must not decide whether one can be run at all.
_MAKE = """
if [ ! -d {workspace} ]; then rm -rf -- {workspace} && mkdir -p -- {workspace} && echo made workspace || exit 1; fi
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
) -> HardeningReport:
    """Make the sandbox fit for a verifier, after the agent's last action; repeatable.

    verifier: its user. trusted: what acted was the oracle, whose services may stay. Raises `VerifierError` for what was
    changed and cannot be put back.
    """
    began = time.monotonic()
    tools = baseline.tools if config.verify_tools and not trusted else None
    found = await _end(sandbox, is_doubtful=tools is not None) if config.kill_processes and not trusted else []
    remove: list[str] = []
    if tools is not None:
        if tools.first:
            found += await secure_first(sandbox, tools, kill=config.kill_processes)
        changed, remove = await verify_tools(sandbox, tools)
        found += changed
    judged = await _judge(sandbox, baseline, config)
    judged.remove.update(dict.fromkeys(remove, TOOLS_ITEM))
    found += await _act(sandbox, judged, config, verifier, trusted)
    disabled = [name for name, is_on in config.model_dump().items() if not is_on]
    return HardeningReport(
        findings=found[:MOST],
        left_out=max(0, len(found) - MOST),
        disabled=disabled,
        seconds=round(time.monotonic() - began, 4),
    )


async def _end(sandbox: Sandbox, *, is_doubtful: bool) -> list[HardeningFinding]:
    """Kill what the agent left. is_doubtful: the shell may be the agent's, so that a failure is not the last word."""
    try:
        killed = await sandbox.kill_processes()
    except SandboxLostError:
        raise
    except SandboxError as error:
        if error.retryable or not is_doubtful:
            raise
        killed = 0
    if not killed:
        return []
    what = "a process" if killed == 1 else f"{killed} processes"
    return [HardeningFinding(item="kill_processes", action="killed", detail=what)]


async def _judge(sandbox: Sandbox, baseline: HardeningBaseline, config: HardeningConfig) -> Judgement:
    if not any(getattr(config, item) for item in (BUILD, FRESH, LINKS, CONFTESTS, PYTHON)):
        return Judgement()
    before = baseline.survey
    now = await take_survey(
        sandbox,
        home=baseline.home,
        path=baseline.path,
        modules=baseline.modules,
        known=sorted(before.files),
        since=before.now,
    )
    return judge(before, now, config, workspace_of(sandbox))


async def _act(
    sandbox: Sandbox, judged: Judgement, config: HardeningConfig, verifier: str | int | None, trusted: bool
) -> list[HardeningFinding]:
    """Carry it out, by one script."""
    lines = [_BEGIN, _LOGS if config.fresh_logs else ""]
    links = list(judged.links)
    lines += [f"link {index} {_word(path)}" for index, path in enumerate(links)]
    workspace = workspace_of(sandbox)
    if config.own_workspace and workspace:
        lines.append(_MAKE.format(workspace=_word(workspace)))
    if judged.remove:
        lines.append(f"{_printed(f'{path}' + chr(0) for path in judged.remove)} | xargs -0 rm -rf -- || exit 1")
    for path, (_, kept) in judged.restore.items():
        content = _printed([kept.content], as_bytes=True)
        lines.append(f"{content} | put {_word(path)} {kept.mode:o} {kept.uid}:{kept.gid} || exit 1")
    if config.own_workspace and workspace and not trusted:
        user = "0" if verifier in (None, "root") else str(verifier)
        lines.append(_OWN.format(workspace=_word(workspace), user=_word(user)))
    script = "\n".join(lines)
    if len(script) > MOST_SAID:
        await sandbox.write_file(_ACT, script, mode=0o600)
        script = f". {_ACT}"
    result = await sandbox.control(f"{script}\nrm -rf {ROOM}", timeout=300)
    said = [line.split(" ") for line in result.stdout.splitlines()]
    if result.return_code != 0 or any(word == "failed" for word, *_ in said):
        raise VerifierError("what the agent left could not be cleared away", log_tail=result.stderr[-2000:])
    kept_links = {int(index) for word, index, *_ in said if word == "kept"}
    found = _told(judged, links, kept_links)
    if ["made", "workspace"] in said:
        detail = "was no directory any more"
        found.append(HardeningFinding(item="own_workspace", action="replaced", path=workspace, detail=detail))
    return found


def _told(judged: Judgement, links: Sequence[str], kept: set[int]) -> list[HardeningFinding]:
    found = [HardeningFinding(item=item, action="removed", path=_shown(path)) for path, item in judged.remove.items()]
    for path, (item, _) in judged.restore.items():
        found.append(HardeningFinding(item=item, action="restored", path=_shown(path)))
    for index, path in enumerate(links):
        detail = f"to {_shown(judged.links[path])}"
        if index in kept:
            detail += ", a program or a library"
        action = "found" if index in kept else "removed"
        found.append(HardeningFinding(item=LINKS, action=action, path=_shown(path), detail=detail))
    order = (TOOLS_ITEM, FRESH, LINKS, CONFTESTS, BUILD, PYTHON)
    found += judged.found
    return sorted(found, key=lambda finding: order.index(finding.item))


def _shown(path: str) -> str:
    """A name as a report can hold it."""
    return encode(path).decode(errors="backslashreplace")


def _word(text: str) -> str:
    """A shell's word of any bytes."""
    return f'"$({_printed([text])})"'


def _printed(texts: Iterable[str], *, as_bytes: bool = False) -> str:
    """A command that prints texts, in ASCII alone."""
    data = b"".join(text.encode("latin-1") if as_bytes else encode(text) for text in texts)
    return "printf '" + "".join(chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in data) + "'"


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@ ")
