"""Comparison of a world with a copy, in which a branch's child would start, by the answers of their services.

The comparison counts only where it could have failed: the world is changed first, by the task's oracle or by requests
that the user gives, and a URL whose answer has not changed by that proves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from benchflow.contracts.environment import Observation
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.planes.environment.manifest_environment import ManifestEnvironment, WorldPlace
from benchflow.planes.environment.observing import describe_difference, format_answer, is_same, observe
from benchflow.planes.environment.proofs import UrlProof
from benchflow.planes.environment.verifier_urls import OPEN_END
from benchflow.planes.sandbox.cancellation import run_to_completion

StartCopy = Callable[[ImageRef], AbstractAsyncContextManager[tuple[ManifestEnvironment, WorldPlace]]]
"""Starts a sandbox from a snapshot for a block, with its world not started yet, and removes it at the end."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a world with a copy of it."""

    world: ManifestEnvironment
    """The world to copy. It is ready."""

    place: WorldPlace
    """Sandbox of the world."""

    provider: SandboxProvider
    urls: Sequence[str]
    """URLs whose answers are compared; those with an `OPEN_END` cannot be requested, and stay unproven."""

    act: Callable[[], Awaitable[str]]
    """Changes the state by way of the services, and returns a phrase about it."""

    start_copy: StartCopy
    name: str
    """Name of the snapshot."""

    image: str
    """Reference of the image from which the world's sandbox was started."""

    async def run(self) -> tuple[str, list[UrlProof]]:
        """Change the world, copy it, and return the phrase of `act` and the findings about each URL.

        Raises:
            SandboxError: The sandbox cannot be copied, or the copy does not become ready.
            WorldError: The state cannot be restored in the copy, or a service died.
        """
        urls = [url for url in self.urls if OPEN_END not in url]
        first = await observe(self.place.helper, urls, with_bodies=True)
        done = await self.act()
        before = await observe(self.place.helper, urls, with_bodies=True)
        again = await observe(self.place.helper, urls, with_bodies=True)
        async with self._restore_copy() as copy:
            after = await observe(copy.helper, urls, with_bodies=True)
        told = zip(first, before, again, after, strict=True)
        seen = {answers[0].url: judge_url(*answers, done) for answers in told}
        where = {
            "sandbox": self.provider.name,
            "image": self.image,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        unasked = [url for url in self.urls if url not in seen]
        seen |= {
            url: UrlProof(url=url, detail=f"a verifier reads {url}, which is known only when it runs")
            for url in unasked
        }
        return done, [seen[url].model_copy(update=where) for url in self.urls]

    @asynccontextmanager
    async def _restore_copy(self) -> AsyncIterator[WorldPlace]:
        """Start a copy for a block, with restored databases, as in a branch's child, and its services ready."""
        is_stateful = self.world.manifest.is_stateful
        state = await self.world.snapshot(self.name) if is_stateful else None
        try:
            image = await self.place.sandbox.snapshot(self.name)
            async with self.start_copy(image) as (copy, place):
                if state is not None:
                    await copy.restore(state)
                else:
                    await copy.provision()
                    await copy.readiness()
                yield place
        finally:
            await run_to_completion(self.provider.remove_snapshots(self.name))


def judge_url(first: Observation, before: Observation, again: Observation, after: Observation, done: str) -> UrlProof:
    """Return the finding about one URL.

    Args:
        first: Answer before the world was changed.
        before: Answer after it, in the world itself.
        again: The same, once more, with no change in between.
        after: Answer in the copy.
        done: Phrase about the change.
    """
    url = before.url
    if not before.is_comparable:
        return UrlProof(url=url, detail=f"GET {url} shows no state: it answers {format_answer(before)}")
    if by_itself := describe_difference(before, again, where="when it is asked again, with nothing done"):
        return UrlProof(url=url, detail=f"{by_itself}: what changes by itself cannot be compared")
    if lost := describe_difference(before, after):
        return UrlProof(url=url, is_lost=True, detail=lost)
    if is_same(first, before):
        detail = f"GET {url} proves nothing: its answer is what it was before anything was done ({done})"
        return UrlProof(url=url, detail=detail)
    return UrlProof(url=url, is_proven=True, detail=f"GET {url} answers alike in a copy")
