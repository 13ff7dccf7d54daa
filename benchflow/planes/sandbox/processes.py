"""Whether this host could copy a running process, which the session rung `process` would take: CRIU, asked itself.

Nothing here copies one. An agent's process holds what a copy would have to share or to make anew: its connection to the
model, watches on files, rings of the kernel; the rung `load` needs none of that. So the rung is refused, and whoever
asks for it is told what this host says.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from benchflow.contracts.base import Model
from benchflow.errors import UnsupportedFeatureError

_LIMIT_SEC = 60
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessProbe(Model):
    """What was found. works: CRIU says that it can do its work on this kernel; why_not: why it cannot."""

    kernel: str
    criu: str | None = None
    version: str | None = None
    works: bool = False
    why_not: str | None = None

    @property
    def summary(self) -> str:
        """For a person to read."""
        tool = f"CRIU {self.version or 'of no known version'} ({self.criu})" if self.criu else "no CRIU"
        said = "says that it could" if self.works else f"cannot: {self.why_not}"
        return f"{tool} on Linux {self.kernel} {said}"


def probe_processes(path: str | None = None) -> ProcessProbe:
    """Ask this host's CRIU whether it could copy processes here. path: where it is looked for."""
    kernel = platform.release()
    criu = shutil.which("criu", path=path or f"{os.environ.get('PATH', '')}:{_PLACES}")
    if criu is None:
        return ProcessProbe(kernel=kernel, why_not="the program criu is not installed")
    told = _ask(criu, "--version")
    version = next(
        (line.partition(":")[2].strip() for line in told[1].splitlines() if line.startswith("Version")), None
    )
    code, said = _ask(criu, "check")
    if code == 0:
        return ProcessProbe(kernel=kernel, criu=criu, version=version, works=True)
    errors = [line.strip() for line in said.splitlines() if line.strip()]
    why_not = errors[0] if errors else f"criu check ended with {code}"
    return ProcessProbe(kernel=kernel, criu=criu, version=version, why_not=why_not[:300])


def _ask(criu: str, what: str) -> tuple[int, str]:
    """Its exit status, and what it has printed."""
    try:
        done = subprocess.run(
            [criu, what], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_SEC, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def process_refusal(agent: str, probe: ProcessProbe) -> UnsupportedFeatureError:
    """That an agent's process is not copied, and what this host could."""
    return UnsupportedFeatureError(
        f"the running process of agent {agent!r} cannot be copied: no sandbox does that in this release; "
        f"this host was asked: {probe.summary}",
        key="branch.min_session_rung",
        remedy="ask for `load`: a new process goes on with the session in a copy of its world",
    )
