"""A copy of a world, as a child of a branch begins in one, held against the world itself by the answers of services.

The comparison counts only where it could have failed: something is done in the world first, by the task's oracle or by
requests that the user gives, and a URL whose answer has not changed by that proves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from benchflow.contracts.environment import Observation
from benchflow.contracts.images import ImageRef
from benchflow.contracts.provider import SandboxProvider
from benchflow.planes.environment.environment import ManifestEnvironment, Place
from benchflow.planes.environment.observing import answer_words, difference, is_same, observe
from benchflow.planes.environment.proofs import UrlProof
from benchflow.planes.environment.verifier_urls import OPEN_END
from benchflow.planes.sandbox.cancellation import see_through

StartCopy = Callable[[ImageRef], AbstractAsyncContextManager[tuple[ManifestEnvironment, Place]]]
"""Starts a sandbox from a snapshot, with its world not started yet, and removes it in the end."""


@dataclass(frozen=True)
class Comparison:
    """Compares a world with a copy of it.

    world, place: of the sandbox that is copied; it is ready. provider: of the sandboxes. urls: to ask. act: changes the
    state by way of the services, and says what was done. name: of the snapshot. image: that the sandbox was started
    from.
    """

    world: ManifestEnvironment
    place: Place
    provider: SandboxProvider
    urls: Sequence[str]
    act: Callable[[], Awaitable[str]]
    start_copy: StartCopy
    name: str
    image: str

    async def run(self) -> tuple[str, list[UrlProof]]:
        """Return what was done in the world, and what was seen of each URL. Raises what sandboxes and worlds do."""
        urls = [url for url in self.urls if OPEN_END not in url]
        first = await observe(self.place.keeper, urls, with_bodies=True)
        done = await self.act()
        before = await observe(self.place.keeper, urls, with_bodies=True)
        again = await observe(self.place.keeper, urls, with_bodies=True)
        async with self._copied() as copy:
            after = await observe(copy.keeper, urls, with_bodies=True)
        told = zip(first, before, again, after, strict=True)
        seen = {answers[0].url: judge(*answers, done) for answers in told}
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
    async def _copied(self) -> AsyncIterator[Place]:
        """Start a copy, with the databases put back as in a child, and its services ready."""
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
            await see_through(self.provider.remove_snapshots(self.name))


def judge(first: Observation, before: Observation, again: Observation, after: Observation, done: str) -> UrlProof:
    """Return what the answers of one URL show.

    Args:
        first: Before anything was done.
        before: After it, in the world itself.
        again: The same, at once.
        after: In the copy.
        done: What was done, in words.
    """
    url = before.url
    if not before.is_comparable:
        return UrlProof(url=url, detail=f"GET {url} shows no state: it answers {answer_words(before)}")
    if by_itself := difference(before, again, where="when it is asked again, with nothing done"):
        return UrlProof(url=url, detail=f"{by_itself}: what changes by itself cannot be compared")
    if lost := difference(before, after):
        return UrlProof(url=url, is_lost=True, detail=lost)
    if is_same(first, before):
        detail = f"GET {url} proves nothing: its answer is what it was before anything was done ({done})"
        return UrlProof(url=url, detail=detail)
    return UrlProof(url=url, is_proven=True, detail=f"GET {url} answers alike in a copy")
