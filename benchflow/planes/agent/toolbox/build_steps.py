"""One step of a build: a program that runs to its end, with a log, and never outlives this process.

Only here is a failed program's output translated to a typed error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow.errors import AgentDownloadError, AgentInstallError, AgentSpaceError
from benchflow.planes.sandbox.timeouts import awake_timeout

# The parent's death kills it, even if the parent died before the request to the kernel.
_DIES_WITH_US = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): os._exit(1)
os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
"""
_TAIL = 4000

_NO_SPACE = re.compile(r"ENOSPC|EDQUOT|No space left on device|Disk quota exceeded")
_NO_VERSION = re.compile(
    r"E404|ETARGET|notarget|No matching (version|distribution)|Could not find a version|EBADENGINE|ResolutionImpossible"
)
_UNTRUSTED = re.compile(r"SELF_SIGNED|UNABLE_TO_(GET|VERIFY)|CERTIFICATE_VERIFY_FAILED|certificate verify failed|CERT_")
_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|FETCH_ERROR|ERR_SOCKET|"
    r"network (connectivity|request)|Max retries exceeded|NewConnectionError|Failed to establish|name resolution|"
    r"Read timed out|ProxyError|Connection (broken|aborted|refused)|E50\d|HTTP error 5\d\d"
)


async def run_step(
    argv: Sequence[str], *, cwd: Path, log: Path, what: str, timeout: float, env: Mapping[str, str], check: bool = True
) -> None:
    """Run a program to its end.

    Args:
        argv: Program and arguments.
        cwd: Working directory.
        log: File to which stdout and stderr are appended.
        what: Description for errors, as "installing NAME".
        timeout: Seconds after which it is killed.
        env: Environment.
        check: Whether another exit status than 0 is an error.

    Raises:
        AgentDownloadError: It timed out, or the package index cannot be reached.
        AgentInstallError: It failed for another reason.
    """
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _DIES_WITH_US, str(os.getpid()), *argv),
            cwd=cwd,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        async with awake_timeout(timeout):
            status = await process.wait()
    except TimeoutError as error:
        raise AgentDownloadError(
            f"{what} did not end within {timeout:g} s",
            remedy="look at the network, and try again: what was fetched is kept",
            log_tail=read_tail(log),
        ) from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if status != 0 and check:
        raise classify_failure(what, read_tail(log), f"ended with {status}")


def read_tail(log: Path) -> str:
    """Return the end of a log; empty if it is missing."""
    return log.read_bytes()[-_TAIL:].decode(errors="replace").strip() if log.exists() else ""


def classify_failure(what: str, said: str, otherwise: str) -> AgentInstallError:
    """Return the error for a failed program or request, classified by its output.

    Args:
        what: Description of the step.
        said: Output of the program, or text of the exception.
        otherwise: Message if the output is of no known kind.
    """
    if _NO_SPACE.search(said):
        return AgentSpaceError(
            f"{what}: no space is left",
            remedy="free space, or set BENCHFLOW_STATE_DIR to a directory on a larger disk",
            log_tail=said,
        )
    if _UNTRUSTED.search(said):
        return AgentInstallError(
            f"{what}: the index's certificate is not trusted",
            remedy="name your CA: npm config set cafile FILE, NODE_EXTRA_CA_CERTS, or pip config set global.cert FILE",
            log_tail=said,
        )
    if _NO_VERSION.search(said):
        return AgentInstallError(
            f"{what}: there is no such version, or one that it needs",
            remedy="correct `install.packages` of the agent, or look whether your package index has them",
            log_tail=said,
        )
    if _UNREACHABLE.search(said):
        return AgentDownloadError(
            f"{what}: the package index cannot be reached",
            remedy="look at the network and at the proxy; a mirror is named by npm's and pip's own configuration",
            log_tail=said,
        )
    return AgentInstallError(f"{what}: {otherwise}", remedy="see the log", log_tail=said or None)
