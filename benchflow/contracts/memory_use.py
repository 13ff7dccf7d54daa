"""A sandbox's memory: its limit, its peak, and how many of its processes were killed for want of it."""

from __future__ import annotations

from benchflow.contracts.base import Model

_NEAR_LIMIT = 0.9
"""Share of the limit that a sandbox has used at its peak, if its own limit is why the kernel killed in it."""


class MemoryUse(Model):
    """The memory counters of a sandbox, from its start on."""

    kills: int
    """Processes that the kernel killed for want of memory."""
    limit_mb: int | None = None
    """Most memory that all processes together may use, in MiB. None: no limit."""
    peak_mb: int | None = None
    """Most memory that they have used, in MiB. None where the kernel does not count it."""

    def kills_since(self, earlier: int) -> int:
        """Return the kills since a moment at which `earlier` were counted.

        Fewer than that are a sandbox that was started again: all of them are newer.
        """
        return self.kills - earlier if self.kills >= earlier else self.kills

    @property
    def is_own_limit(self) -> bool:
        """Whether the sandbox reached its own limit, and not its host: as far as the counters tell."""
        if self.limit_mb is None:
            return False
        return self.peak_mb is None or self.peak_mb >= self.limit_mb * _NEAR_LIMIT

    def explanation(self, kills: int) -> str:
        """Return in words that so many processes were killed, and at which limit."""
        killed = f"the kernel killed {kills} process{'' if kills == 1 else 'es'} of the sandbox"
        peak = "" if self.peak_mb is None else f", peak {self.peak_mb} MiB"
        if self.is_own_limit:
            return f"{killed} at its memory limit (limit {self.limit_mb} MiB{peak})"
        limit = "none" if self.limit_mb is None else f"{self.limit_mb} MiB"
        return f"{killed} because this host was out of memory (the sandbox's limit: {limit}{peak})"

    def remedy(self, key: str) -> str:
        """Return what to do about it. key: of the limit, as the task spells it."""
        if self.is_own_limit:
            return f"raise {key}, which the agent's own processes, the task's and the verifier's share"
        return "run fewer rollouts at once on this host, or give it more memory"
