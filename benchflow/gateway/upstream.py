"""The client of model endpoints: address, key, headers, and retries while an endpoint is overloaded."""

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
from benchflow.gateway.upstream_retries import FIXABLE, RETRIED, next_wait, parse_retry_after
from benchflow.paths import StatePaths
from benchflow.secrets import Secrets

CONNECT_SEC = 30.0
MAX_RETRY_NOTES = 100
"""Maximum of retries that a call's line in the record names: the first ones, and the last. There may be thousands."""

WORDS_BYTES = 16 * 1024
WORDS_SEC = 5.0
"""Maximum of bytes, and of seconds, for which the error of a retried attempt is read."""

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers of a single connection, which are not forwarded."""


class NoAnswerError(Exception):
    """The upstream gave no answer."""

    def __init__(self, kind: str, message: str) -> None:
        """Make it. `kind` is as in `CallError`."""
        self.kind, self.message = kind, message
        super().__init__(message)


def find_key(paths: StatePaths, registration: Registration) -> tuple[str, str] | None:
    """Return name and value of a registration's first credential among its job's secrets; None if there is none."""
    if not registration.credentials:
        return None
    secrets = Secrets.of_job(paths, registration.job_id)
    for name in registration.credentials:
        value = secrets.value(name)
        if value:
            return name, value
    return None


def find_token(headers: Mapping[str, str], url: URL) -> str | None:
    """Return the token that a request holds, wherever a dialect has its key; None if there is none."""
    bearer = headers.get("Authorization", "")
    scheme, _, given = bearer.partition(" ")
    shown = [given.strip() if scheme.lower() == "bearer" else ""]
    shown += [headers.get("x-api-key", ""), headers.get("x-goog-api-key", ""), url.query.get("key", "")]
    return next((text for text in shown if text.startswith(TOKEN_PREFIX)), None)


def upstream_url(registration: Registration, path: str) -> URL:
    """Return the endpoint's URL for a forwarded path, which has its query, as in `allowed_requests.Forwarding`."""
    if registration.api in ("openai-chat", "openai-responses") and path.startswith("/v1/"):
        path = path.removeprefix("/v1")
    return URL(registration.base_url + path, encoded=True)


def upstream_headers(
    given: CIMultiDictProxy[str], registration: Registration, key: tuple[str, str] | None
) -> CIMultiDict[str]:
    """Return the agent's headers that are forwarded, with the key.

    No compression is requested, since the response is recorded.

    Args:
        given: The agent's headers.
        registration: The rollout, whose dialect decides on the header of the key.
        key: Name and value of the key; None for none.
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
    """Return the header that holds the key."""
    if registration.api == "gemini":
        return {"x-goog-api-key": value}
    # Anthropic's endpoints accept two kinds of keys, and the second one is a bearer token.
    if registration.api == "anthropic-messages" and not name.endswith("_AUTH_TOKEN"):
        return {"x-api-key": value}
    return {"Authorization": f"Bearer {value}"}


@functools.lru_cache(maxsize=256)
def _proxy(scheme: str, host: str) -> str | None:
    """Return the proxy that this host's environment names for an endpoint; None for none."""
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(scheme)


@dataclass
class Attempts:
    """The attempts of a call at its upstream."""

    began: float
    """Monotonic time at which the call began."""

    sent: float = 0.0
    """Monotonic time of the last attempt."""

    retries: list[RetryNote] = field(default_factory=list)
    """Notes of the first retries and of the last."""

    count: int = 0
    """Number of retries."""

    is_waiting: bool = False
    """Whether no attempt is in flight, and a retry waits."""

    is_last: bool = False
    """Whether the attempt in flight must not be retried."""

    async def wait(
        self, seconds: float, status: int | None, words: str, on_wait: Callable[[float], None] | None
    ) -> None:
        """Note a failed attempt, and wait for the next one.

        Args:
            seconds: Seconds to wait.
            status: HTTP status of the failed attempt; None without an answer.
            words: The endpoint's message.
            on_wait: Called every second with the time at which the failed attempt was sent.
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
    """Tracks since when a rollout's endpoint has served none of its calls."""

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        """Make it. `on_wait` is called each second in which a call waits, with its last attempt's monotonic time."""
        self.on_wait = on_wait
        self._since: float | None = None
        self._served: set[str | None] = set()

    def note_failure(self, sent: float) -> float:
        """Note a failed attempt that was sent at a monotonic time. Return when the current run of failures began."""
        self._since = sent if self._since is None else self._since
        return self._since

    def note_served(self, model: str | None) -> None:
        """Note that the endpoint serves a model."""
        self._since = None
        self._served.add(model)

    def is_of_all(self, model: str | None) -> bool:
        """Return whether a refusal of this model concerns the whole endpoint: it has served this model, or none."""
        return not self._served or model in self._served


@dataclass(frozen=True)
class RetryContext:
    """The data on which the retries of one call depend."""

    outage: Outage
    """Outage of the rollout's endpoint."""
    cover: Callable[[str], str]
    """Covers the key in a text."""
    model: str | None
    """Model of a generation call; None for another request."""

    def is_repeated(self, response: aiohttp.ClientResponse, policy: RetryPolicy) -> bool:
        """Return whether a call is retried after this response."""
        if policy.waits_for_endpoint and response.status in FIXABLE:
            return self.model is not None and self.outage.is_of_all(self.model)
        if policy.waits_for_endpoint and response.status in RETRIED:
            return True
        return response.status in RETRIED and response.headers.get("x-should-retry") != "false"

    def note_served(self, response: aiohttp.ClientResponse) -> None:
        """Note a response that the agent gets."""
        if response.status < 300 and self.model is not None:
            self.outage.note_served(self.model)


class Upstream:
    """The HTTP client with the connections to all endpoints."""

    def __init__(self) -> None:
        """Open it. Needs a running event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            # Streams are long and have long lines.
            read_bufsize=256 * 1024,
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def ask(
        self,
        registration: Registration,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes,
        attempts: Attempts,
        retry_context: RetryContext,
    ) -> aiohttp.ClientResponse:
        """Send a request, retry it as the policy says, and return the response, of which only the head was read.

        Args:
            registration: The rollout, with its policy and timeout.
            method: HTTP method.
            url: URL.
            headers: Headers, with the key.
            body: Body.
            attempts: Records the attempts.
            retry_context: Data on which the retries depend.

        Raises:
            NoAnswerError: The last attempt got no response.
        """
        policy, outage = registration.retries, retry_context.outage
        lost = False
        while True:
            attempts.sent = time.monotonic()
            status: int | None = None
            retry_after: float | None = None
            failure: NoAnswerError | None = None
            response: aiohttp.ClientResponse | None = None
            try:
                response = await self._request(registration, method, url, headers, body)
            except aiohttp.SocketTimeoutError as error:
                failure = NoAnswerError("stalled", f"nothing came for {registration.stall_sec:g} s")
                if not policy.waits_for_endpoint:
                    raise failure from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, TimeoutError) as error:
                # A reused connection may have been closed just now, which is no failure: retry at once.
                is_kept = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError) and not lost
                lost, retry_after = True, 0.0 if is_kept else None
                failure = NoAnswerError("unreachable", _reason(error))
            except (aiohttp.ClientError, ValueError) as error:
                raise NoAnswerError("unreachable", _reason(error)) from error
            if response is not None:
                if not retry_context.is_repeated(response, policy):
                    retry_context.note_served(response)
                    return response
                status, retry_after = response.status, parse_retry_after(response.headers)
            # The call's own age counts, too: other calls may have been served meanwhile, which ends the outage.
            began = attempts.began
            if policy.waits_for_endpoint:
                began = min(began, outage.note_failure(attempts.sent))
            wait = next_wait(policy, attempts.count, time.monotonic() - began, retry_after)
            if wait is None or attempts.is_last:
                if failure is not None:
                    raise failure
                assert response is not None
                return response
            words = await read_words(response, retry_context.cover) if response is not None else str(failure)
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
            # A redirect would take the key to another address.
            allow_redirects=False,
            timeout=timeout,
            proxy=_proxy(url.scheme, url.host or ""),
        )


async def read_beginning(response: aiohttp.ClientResponse, size: int, seconds: float) -> bytes:
    """Return about the first `size` bytes of a response's body that come in time, and close the connection."""
    body = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(seconds):
            while len(body) < size and (data := await response.content.readany()):
                body += data
    response.close()
    return body


async def read_words(response: aiohttp.ClientResponse, cover: Callable[[str], str]) -> str:
    """Return the endpoint's message in an error that the agent does not get, and close the connection.

    Args:
        response: The error, whose head was read.
        cover: Covers the key in a text, before it is shortened: a part of a key would not be found.
    """
    body = await read_beginning(response, WORDS_BYTES, WORDS_SEC)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        # A key in a compressed text would not be found.
        return ""
    words = endpoint_words(cover(body.decode("utf-8", "replace")))
    target = redirect_target(response, cover)
    return f"it redirects to {target}; {words}".rstrip("; ") if target else words


def redirect_target(response: aiohttp.ClientResponse, cover: Callable[[str], str]) -> str | None:
    """Return the address of a redirect, which the gateway does not follow with a key; None for none.

    Query and user are left out, in which some addresses have a key.
    """
    location = response.headers.get("Location")
    return cover(location.partition("?")[0].rpartition("@")[2])[:MAX_WORDS] if location else None


def _reason(error: BaseException) -> str:
    """Return the message of a connection error, or only its type if the message could hold the key."""
    # Errors of other layers may quote a header, one of which holds the key.
    if isinstance(error, BenchFlowError | OSError | aiohttp.ServerDisconnectedError):
        return str(error) or type(error).__name__
    return type(error).__name__
