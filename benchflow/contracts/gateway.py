"""The model gateway's contract: what it is told of a rollout, what it tells, and the lines that it records.

Every agent that takes a model reaches it through the gateway of its host. The agent's API key is a token of its
rollout's; the gateway knows by it whose call it is, puts the real key in its place, and records what was said.

The record (`llm_trajectory.jsonl`) has two lines a call, a `RequestLine` and a `ResponseLine` of the same `id`,
appended when they happen: the lines of calls at the same time may be mixed. A `RefusedLine` tells of requests that are
not passed on. A request without a response is a call that
is under way. Neither the token nor the real key is in it: where an agent or an endpoint said them, their names stand in
brackets.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from benchflow.contracts.base import Model

Api = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
"""The wire formats of calls, as in `contracts.agent.Endpoint.api`."""

RELAY_PORT = 41417
"""Where the gateway is in every sandbox, on its loopback."""

RELAY_MOUNT = "/run/benchflow/gateway"
"""Where a sandbox has the directory with the gateway's socket, read-only."""

SOCKET_NAME = "gateway.sock"

STALL_SEC = 600.0
"""Seconds for which an upstream may send nothing, if its agent may not be silent for longer."""

TOKEN_PREFIX = "bfg-"

TOKEN_NAME = "GATEWAY_TOKEN"
"""What stands for the token in a record, in brackets."""


def agent_base_url(api: Api, port: int = RELAY_PORT) -> str:
    """What an agent is told as its endpoint's base URL: with `/v1` for the two of OpenAI's kind."""
    suffix = "/v1" if api in ("openai-chat", "openai-responses") else ""
    return f"http://127.0.0.1:{port}{suffix}"


class ModelLimits(Model):
    """What a rollout may use up. Main and side calls both count; None is no limit.

    cost_usd needs a known price, and calls of a model without one are refused.
    """

    calls: int | None = Field(default=None, ge=1)
    input_tokens: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    total_tokens: int | None = Field(default=None, ge=1)
    cost_usd: float | None = Field(default=None, gt=0)


LimitName = Literal["calls", "input_tokens", "output_tokens", "total_tokens", "cost_usd"]


class Sampling(Model):
    """Sampling parameters that are put into every call, whatever the agent asks. max_tokens: a cap on what it asks."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None

    @property
    def given(self) -> dict[str, float | int]:
        """The parameters that are set."""
        return {name: value for name, value in self if value is not None}


_POLICY = re.compile(r"fail|wait\((\d+(?:\.\d+)?)(s|m|h)?\)")
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def _check_policy(policy: str) -> str:
    if not _POLICY.fullmatch(policy):
        raise ValueError("must be `fail`, or `wait(LIMIT)` with a limit like 90s, 30m or 2h")
    return policy


EndpointPolicy = Annotated[str, AfterValidator(_check_policy)]
"""Policy for a call whose endpoint fails: `fail` asks again for some minutes, `wait(LIMIT)` for as long as the
limit says, also where the endpoint refuses the key, the model or the address, which somebody may mend meanwhile."""


class RetryPolicy(Model):
    """How often an upstream is asked again before the agent hears of its error: 429, 5xx, no connection.

    The n-th wait is first_wait_sec * 2**(n-1), or what the upstream asks for, at most max_wait_sec; no wait begins that
    would end later than total_sec after the call came.
    """

    max_retries: int = Field(default=5, ge=0)
    first_wait_sec: float = Field(default=1.0, ge=0)
    max_wait_sec: float = Field(default=60.0, ge=0)
    total_sec: float = Field(default=240.0, ge=0)
    waits_for_endpoint: bool = False
    """Whether refusals that somebody may mend (401, 402, 403, 404) are asked again, too, `total_sec` counts from the
    first of the calls that failed in a row, and the waits don't count towards the limits of the agent's turn."""

    @classmethod
    def of(cls, policy: EndpointPolicy) -> RetryPolicy:
        """Return the retries of a policy."""
        wait = _POLICY.fullmatch(policy)
        if wait is None or wait[1] is None:
            return cls()
        limit = float(wait[1]) * _UNITS[wait[2]]
        return cls(max_retries=1_000_000, total_sec=limit, waits_for_endpoint=True)


class Replay(Model):
    """That calls are answered from a record for as long as they match it.

    record: absolute path of the `llm_trajectory.jsonl` to answer from. until: the last node whose calls are answered,
    None for all. strict: a call that does not match is answered by an error, instead of by the upstream.
    """

    record: str
    until: str | None = None
    strict: bool = False


class Divergence(Model):
    """The first call that was not the recorded one. seq: of the call now; recorded: of the one in the record."""

    seq: int
    recorded: int | None = None
    message: str
    diff: str = ""


class ReplayStatus(Model):
    """How far a replay has come. left: recorded calls that were not asked for yet."""

    state: Literal["replaying", "live", "diverged"]
    answered: int = 0
    left: int = 0
    divergence: Divergence | None = None


PrefixState = Literal["unchecked", "equal", "different"]
"""Whether the first call of a session that goes on begins with the last one of its parent."""


RequestName = Annotated[str, Field(pattern=r"^(GET|POST) (/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)+$")]
"""A method and a path, without anything that could be spelled in another way."""


class Registration(Model):
    """One rollout's access to a model.

    id: the rollout's workflow id. token: what its agents have for a key. agent: its name in the registry, for the rules
    about agents. api, base_url, credentials: of the upstream endpoint, as in `contracts.agent.Endpoint`; of the
    credentials, which are names, the first one set counts; none at all is an endpoint without keys. model: as the
    endpoint spells it, where it is known. record: absolute path of the file that calls are appended to. stall_sec: how
    long the upstream may send nothing. prefix: absolute path of the parent's record, where its session goes on; of its
    requests, those of other models included, the first prefix_requests were made before. prefix_replayed: the session
    was driven there, so that the first call to be compared is the first that is in no record. requests: what is passed
    on besides the requests that agents of this api are known to make, as `POST /v1/embeddings`, the path as the agent
    asks for it; each counts as a call. record_limit_bytes: at this size the record is full, and no call is made.
    """

    id: str = Field(min_length=1)
    token: str = Field(pattern=rf"^{TOKEN_PREFIX}[0-9A-Za-z_-]{{32,}}$", repr=False)
    job_id: str
    agent: str
    api: Api
    base_url: str = Field(pattern=r"^https?://[^/\s]+")
    credentials: tuple[str, ...] = ()
    model: str | None = None
    record: str = Field(pattern=r"^/")
    limits: ModelLimits = ModelLimits()
    sampling: Sampling = Sampling()
    retries: RetryPolicy = RetryPolicy()
    stall_sec: float = Field(default=STALL_SEC, gt=0)
    replay: Replay | None = None
    requests: tuple[RequestName, ...] = ()
    record_limit_bytes: int = Field(default=4 * 1024**3, ge=0)
    prefix: str | None = Field(default=None, pattern=r"^/")
    prefix_requests: int = Field(default=0, ge=0)
    prefix_replayed: bool = False

    @field_validator("base_url")
    @classmethod
    def _end_without_slash(cls, value: str) -> str:
        return value.rstrip("/")


class Attribution(Model):
    """Whose calls come now: the node that they lead to, the role that acts, the number of its turn."""

    node: str | None = None
    role: str | None = None
    turn: int | None = None


class CallUsage(Model):
    """What one call used, None where nobody knows.

    input_tokens include the cached and those written to a cache; hour_cache_write_tokens: of those written, the ones
    for an hour. output_tokens include the reasoning. web_searches: by the endpoint's own tool. cost_usd: None without a
    known price. is_estimated: the endpoint did not tell all, also to the gateway when the agent had left, so that
    tokens are guessed by the length of what was said.
    """

    is_estimated: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    hour_cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    web_searches: int = 0
    cost_usd: float | None = None


class UsageTotals(Model):
    """What a rollout has used. calls: let through to the upstream, side calls included, and without those that were
    answered from a record. unmetered: those whose endpoint did not tell the tokens, also because their agent had left,
    so that they are estimated.
    unpriced: of models without a known price, which cost_usd leaves out; it is None when nothing has a price.
    token_counts: requests that only ask how many tokens a text has; they are no calls.
    """

    calls: int = 0
    side_calls: int = 0
    token_counts: int = 0
    replayed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    unmetered: int = 0
    unpriced: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class RefusedRequest(Model):
    """A request that is not passed on, and reached nobody: no known one, or one whose price is not known."""

    method: str | None
    """The method; None for all requests beyond those that are named."""
    path: str | None
    """The path without its query, shortened, other characters than a path's replaced; None as for the method."""
    count: int
    """How often it was made. After a restart of the gateway it may be too low, by half at most."""
    unpriced: str | None = None
    """What has no known price of what it asked for, where that is the reason: its model, an option or a tool."""


class GatewayStatus(Model):
    """How it stands with one rollout's calls.

    in_flight: calls that are under way, and that an agent waits for; waiting: calls that are held back. held: whether
    new calls are held. requests: lines of requests in the record. budget_exhausted: the limit for which a call was
    refused. failure: why calls could not be recorded. prefix: None where no parent's call is to be compared;
    prefix_divergence: where the first call of the task begins otherwise. refused: what the agent asked for that is not
    passed on.
    """

    id: str
    in_flight: int = 0
    waiting: int = 0
    held: bool = False
    requests: int = 0
    attribution: Attribution = Attribution()
    usage: UsageTotals = UsageTotals()
    budget_exhausted: LimitName | None = None
    replay: ReplayStatus | None = None
    prefix: PrefixState | None = None
    prefix_divergence: Divergence | None = None
    failure: str | None = None
    refused: tuple[RefusedRequest, ...] = ()
    blocked: tuple[tuple[float, float], ...] = ()
    """When calls waited for the gateway itself: for the disk of their record, or for its process, which was frozen or
    away. Begin and end of each, of this host's monotonic clock; one that goes on is told up to the last second."""

    silent: dict[str, float] = {}
    """For how many seconds the endpoint has said nothing, by the ids of calls under way; also of calls whose agent has
    left."""

    @property
    def quiet(self) -> bool:
        return self.in_flight == 0


class CallError(Model):
    """Why a call did not end as it should.

    kind: `upstream_status` (it answered with an error), `unreachable`, `stalled`, `truncated` (it closed early),
    `incomplete` (it ended without what ends an answer in its dialect), `client_closed`, `gateway_stopped`,
    `gateway_restarted`, `budget_exhausted`, `replay_diverged`, `missing_secret`, `unreadable` (a body that is no JSON
    object, or that two parsers could read in two ways), `too_large`, `too_slow` (a body), `too_many` (token counts,
    bodies that cannot be read), `too_many_values` (an answer that would take too much memory to parse), `record_full`,
    `not_allowed` (no request that is passed on), `unpriced` (money is limited, and nobody knows what the call costs),
    `unusable` (the upstream answered with a redirect, another protocol, or a body that cannot be unpacked).
    """

    kind: str
    message: str


class RetryNote(Model):
    """An attempt that was not the last. status: None when there was no connection."""

    status: int | None = None
    waited_sec: float
    words: str = ""
    """The endpoint's own words, shortened."""


class CallTiming(Model):
    """Milliseconds since the request was there, None for what did not happen. first_byte_ms: of the body, to the agent.
    upstream_first_byte_ms: since the last attempt was sent.
    """

    first_byte_ms: float | None = None
    total_ms: float
    upstream_first_byte_ms: float | None = None


class RequestLine(Model):
    """What an agent asked. It has `request` (JSON as it was sent) or `request_text` (what is no JSON).

    seq: from 0, in the record. node, role, turn: as told last when it came. side, side_reason: whether it is no part of
    the task: a rule of `side_calls.toml`, `token_count`, or `additional` (the registration's own requests). api:
    `other` for what is no call of a dialect. path: as it was passed on, with its query. stream: whether the answer is
    to be streamed. sampling_applied: what the gateway changed in the body before it went on.
    """

    type: Literal["request"] = "request"
    id: str
    seq: int
    ts: str
    node: str | None
    role: str | None
    turn: int | None
    side: bool
    side_reason: str | None
    api: Api | Literal["other"]
    method: str
    path: str
    model: str | None
    stream: bool
    sampling_applied: dict[str, Any] | None
    source: Literal["live", "replay"]
    request: Any = None
    request_text: str | None = None


class RefusedLine(RefusedRequest):
    """A request that is not passed on. Written for the first of its kind, and whenever their number has doubled."""

    type: Literal["refused"] = "refused"
    """Which kind of line this is."""
    ts: str
    """When it was written, in UTC."""


class ResponseLine(Model):
    """What the agent was given. It has `response` (the exact text) or `response_base64` (what is no UTF-8).

    status: None when the agent was given nothing. headers: the content type, and what the upstream calls the request.
    usage, finish_reason, token_ids, logprobs: as far as the answer tells.
    """

    type: Literal["response"] = "response"
    id: str
    ts: str
    status: int | None
    headers: dict[str, str] = {}
    usage: CallUsage | None = None
    finish_reason: str | None = None
    token_ids: list[Any] | None = None
    logprobs: Any = None
    error: CallError | None = None
    retries: list[RetryNote] = []
    is_waiting: bool = False
    """Whether the agent left while another attempt was waited for."""
    timing: CallTiming
    response: str | None = None
    response_base64: str | None = None
