"""The way from the gateway to a model's endpoint: where, with which key and headers, again when it is overloaded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from benchflow.contracts.gateway import TOKEN_PREFIX, Registration, RetryNote, RetryPolicy
from benchflow.errors import BenchFlowError
from benchflow.gateway.allowed_requests import is_allowed_header
from benchflow.gateway.endpoint_errors import MAX_WORDS, endpoint_words
from benchflow.gateway.retries import FIXABLE, RETRIED, next_wait, wanted_wait
from benchflow.paths import StatePaths
from benchflow.secrets import Secrets

CONNECT_SEC = 30.0
MAX_RETRY_NOTES = 100
"""Retries of a call that its line in the record names: the first ones, and the last. There may be thousands."""

WORDS_BYTES = 16 * 1024
WORDS_SEC = 5.0
"""The most that is read of an error that is asked again for, and for how long."""

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class NoAnswerError(Exception):
    """The upstream gave no answer. kind: as in `CallError`."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message
        super().__init__(message)


def find_key(paths: StatePaths, registration: Registration) -> tuple[str, str] | None:
    """The name and value of the first credential that is set; None when none is, or none is named."""
    if not registration.credentials:
        return None
    secrets = Secrets.of_job(paths, registration.job_id)
    for name in registration.credentials:
        value = secrets.value(name)
        if value:
            return name, value
    return None


def token_of(headers: Mapping[str, str], url: URL) -> str | None:
    """The token that a request shows, wherever its dialect has keys."""
    bearer = headers.get("Authorization", "")
    scheme, _, given = bearer.partition(" ")
    shown = [given.strip() if scheme.lower() == "bearer" else ""]
    shown += [headers.get("x-api-key", ""), headers.get("x-goog-api-key", ""), url.query.get("key", "")]
    return next((text for text in shown if text.startswith(TOKEN_PREFIX)), None)


def upstream_url(registration: Registration, path: str) -> URL:
    """Return where a path is that is passed on. path: with its query, as in `allowed_requests.Passed`."""
    if registration.api in ("openai-chat", "openai-responses") and path.startswith("/v1/"):
        path = path.removeprefix("/v1")
    return URL(registration.base_url + path, encoded=True)


def upstream_headers(
    given: CIMultiDictProxy[str], registration: Registration, key: tuple[str, str] | None
) -> CIMultiDict[str]:
    """Return the agent's headers that are passed on, with the key.

    No compression is asked for, since what comes is recorded.
    """
    dropped = {name.strip().lower() for name in given.get("Connection", "").split(",")}
    headers = CIMultiDict(
        (name, value)
        for name, value in given.items()
        if is_allowed_header(name.lower()) and name.lower() not in dropped
    )
    headers["Accept-Encoding"] = "identity"
    if key is not None:
        headers.update(_key_header(registration, *key))
    return headers


def _key_header(registration: Registration, name: str, value: str) -> dict[str, str]:
    if registration.api == "gemini":
        return {"x-goog-api-key": value}
    # Anthropic's endpoints take two kinds of keys, and the second one is a bearer's.
    if registration.api == "anthropic-messages" and not name.endswith("_AUTH_TOKEN"):
        return {"x-api-key": value}
    return {"Authorization": f"Bearer {value}"}


@functools.lru_cache(maxsize=256)
def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that this host's environment names for an endpoint."""
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(scheme)


@dataclass
class Attempts:
    """How a call fared at its upstream.

    sent: when the last attempt was made (monotonic). count: of further attempts; retries: notes of them.
    is_waiting: whether no attempt is under way, and another will be
    made. is_last: whether none may be made after the one under way.
    """

    began: float
    sent: float = 0.0
    retries: list[RetryNote] = field(default_factory=list)
    count: int = 0
    is_waiting: bool = False
    is_last: bool = False

    async def wait(
        self, seconds: float, status: int | None, words: str, on_wait: Callable[[float], None] | None
    ) -> None:
        """Wait for the next attempt.

        Args:
            seconds: How long.
            status: HTTP status of the last one; None without an answer.
            words: What the endpoint said.
            on_wait: Called every second with the time at which the last one was sent.
        """
        note = RetryNote(status=status, waited_sec=round(seconds, 3), words=words)
        self.retries = [*self.retries[: MAX_RETRY_NOTES - 1], note]
        self.count += 1
        self.is_waiting = True
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(left if on_wait is None else min(left, 1.0))
            if on_wait is not None:
                on_wait(self.sent)
        self.is_waiting = False


class Outage:
    """How long a rollout's endpoint has served no call, whichever of them asked."""

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        """on_wait: called every second in which a call waits, with the time (monotonic) of its last attempt."""
        self.on_wait = on_wait
        self._since: float | None = None
        self._served: set[str | None] = set()

    def note_failure(self, sent: float) -> float:
        """Record a failed attempt. sent: when (monotonic). Return when the current run of failures began."""
        self._since = sent if self._since is None else self._since
        return self._since

    def note_served(self, model: str | None) -> None:
        """Record that the endpoint serves a model."""
        self._since = None
        self._served.add(model)

    def is_of_all(self, model: str | None) -> bool:
        """Return whether a call that the endpoint refuses is refused to all: no other model was served."""
        return not self._served or model in self._served


@dataclass(frozen=True)
class Asking:
    """Holds what the retries of one call depend on."""

    outage: Outage
    """The rollout's."""
    cover: Callable[[str], str]
    """Takes the key out of a text."""
    model: str | None
    """The model of a generation; None for another request."""

    def is_repeated(self, response: aiohttp.ClientResponse, policy: RetryPolicy) -> bool:
        """Return whether the call is made again after this answer."""
        if policy.waits_for_endpoint and response.status in FIXABLE:
            return self.model is not None and self.outage.is_of_all(self.model)
        if policy.waits_for_endpoint and response.status in RETRIED:
            return True
        return response.status in RETRIED and response.headers.get("x-should-retry") != "false"

    def note_served(self, response: aiohttp.ClientResponse) -> None:
        """Record an answer that the agent gets."""
        if response.status < 300 and self.model is not None:
            self.outage.note_served(self.model)


class Upstream:
    """The connections to all endpoints."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            # Long streams of long lines; the body is not parsed.
            read_bufsize=256 * 1024,
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        registration: Registration,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes,
        attempts: Attempts,
        asking: Asking,
    ) -> aiohttp.ClientResponse:
        """Return the upstream's answer, of which nothing but the head was read; ask again as the policy says.

        asking: what is known of the call. Raises `NoAnswerError`.
        """
        policy, outage = registration.retries, asking.outage
        lost = False
        while True:
            attempts.sent = time.monotonic()
            status: int | None = None
            wanted: float | None = None
            failure: NoAnswerError | None = None
            response: aiohttp.ClientResponse | None = None
            try:
                response = await self._request(registration, method, url, headers, body)
            except aiohttp.SocketTimeoutError as error:
                failure = NoAnswerError("stalled", f"nothing came for {registration.stall_sec:g} s")
                if not policy.waits_for_endpoint:
                    raise failure from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, TimeoutError) as error:
                # A connection that was kept open may have been closed just now, which is nobody's trouble.
                is_kept = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError) and not lost
                lost, wanted = True, 0.0 if is_kept else None
                failure = NoAnswerError("unreachable", _reason(error))
            except (aiohttp.ClientError, ValueError) as error:
                raise NoAnswerError("unreachable", _reason(error)) from error
            if response is not None:
                if not asking.is_repeated(response, policy):
                    asking.note_served(response)
                    return response
                status, wanted = response.status, wanted_wait(response.headers)
            # The call's own age bounds it, too: others may be served meanwhile.
            began = attempts.began
            if policy.waits_for_endpoint:
                began = min(began, outage.note_failure(attempts.sent))
            wait = next_wait(policy, attempts.count, time.monotonic() - began, wanted)
            if wait is None or attempts.is_last:
                if failure is not None:
                    raise failure
                assert response is not None
                return response
            words = await read_words(response, asking.cover) if response is not None else str(failure)
            await attempts.wait(wait, status, words, outage.on_wait if policy.waits_for_endpoint else None)

    async def _request(
        self, registration: Registration, method: str, url: URL, headers: CIMultiDict[str], body: bytes
    ) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SEC, sock_read=registration.stall_sec)
        return await self._session.request(
            method,
            url,
            headers=headers,
            data=io.BytesIO(body) if body else None,
            # A key goes where it was meant to go.
            allow_redirects=False,
            timeout=timeout,
            proxy=_proxy(url.scheme, url.host or ""),
        )


async def read_beginning(response: aiohttp.ClientResponse, size: int, seconds: float) -> bytes:
    """Return the beginning of an answer's body, about as much as `size`, and close the connection."""
    body = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(seconds):
            while len(body) < size and (data := await response.content.readany()):
                body += data
    response.close()
    return body


async def read_words(response: aiohttp.ClientResponse, cover: Callable[[str], str]) -> str:
    """Return what an endpoint says in an error that its caller does not get, and close the connection.

    cover: takes the key out of a text, before it is shortened: a part of a key would not be found.
    """
    body = await read_beginning(response, WORDS_BYTES, WORDS_SEC)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        # A key in a packed text would not be found.
        return ""
    said = endpoint_words(cover(body.decode("utf-8", "replace")))
    target = redirect_target(response, cover)
    return f"it redirects to {target}; {said}".rstrip("; ") if target else said


def redirect_target(response: aiohttp.ClientResponse, cover: Callable[[str], str]) -> str | None:
    """Return the address that an answer redirects to, which the gateway does not follow with a key; None for none.

    Without a query or a user, in which some addresses have a key.
    """
    location = response.headers.get("Location")
    return cover(location.partition("?")[0].rpartition("@")[2])[:MAX_WORDS] if location else None


def _reason(error: BaseException) -> str:
    # An error of another layer may quote a header, and one of them holds the key.
    if isinstance(error, BenchFlowError | OSError | aiohttp.ServerDisconnectedError):
        return str(error) or type(error).__name__
    return type(error).__name__
