"""The model gateway's contract: the registration of a rollout, the status of its calls, and the lines of its record.

Every agent that takes a model reaches it through the gateway of its host. The agent's API key is a token of its
rollout; by this token the gateway identifies the rollout. It replaces the token by the real key and records the request
and the response.

The record (`llm_trajectory.jsonl`) has two lines for each call, a `RequestLine` and a `ResponseLine` of the same `id`,
appended when they happen: the lines of concurrent calls may be interleaved. A `RefusedLine` counts requests that are
not passed on. A request without a response is a call that is under way. The record holds neither the token nor the real
key: where an agent or an endpoint sends one of them, its name stands in its place, in brackets.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from benchflow.contracts.base import Model

Api = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
"""The API dialect of calls, as in `contracts.agent.Endpoint.api`."""

RELAY_PORT = 41417
"""TCP port of every sandbox's loopback at which the relay to the gateway listens."""

RELAY_MOUNT = "/run/benchflow/gateway"
"""Directory of a sandbox in which the gateway's socket is mounted, read-only."""

SOCKET_NAME = "gateway.sock"
"""File name of the Unix socket to which agents' calls go."""

STALL_SEC = 600.0
"""Seconds for which an upstream may send nothing, unless the agent's idle timeout is longer."""

TOKEN_PREFIX = "bfg-"
"""Beginning of every token, by which tokens are found in requests and records."""

TOKEN_NAME = "GATEWAY_TOKEN"
"""Name that replaces the token in a record, in brackets."""


def agent_base_url(api: Api, port: int = RELAY_PORT) -> str:
    """Return the base URL that an agent is given for its endpoint: with `/v1` for the two OpenAI dialects.

    Args:
        api: Dialect of the endpoint.
        port: Port of the relay, on the loopback.
    """
    suffix = "/v1" if api in ("openai-chat", "openai-responses") else ""
    return f"http://127.0.0.1:{port}{suffix}"


class ModelLimits(Model):
    """Limits of a rollout's model calls, main and side calls together. None is no limit.

    Once a limit is reached, further calls are refused. Calls under way are completed, so that tokens and cost may
    exceed their limits.
    """

    calls: int | None = Field(default=None, ge=1)
    """Calls sent to the upstream. Token counts and calls that are answered from a record do not count."""

    input_tokens: int | None = Field(default=None, ge=1)
    """Input tokens, cached ones included."""

    output_tokens: int | None = Field(default=None, ge=1)
    """Output tokens, reasoning included."""

    total_tokens: int | None = Field(default=None, ge=1)
    """Sum of input and output tokens."""

    cost_usd: float | None = Field(default=None, gt=0)
    """Cost in USD. The rollout's model must have a known price; calls whose price is unknown are refused."""


LimitName = Literal["calls", "input_tokens", "output_tokens", "total_tokens", "cost_usd"]
"""The field of `ModelLimits` that holds a limit."""


class Sampling(Model):
    """Sampling parameters that the gateway puts into every call of a model, instead of the agent's own values.

    None leaves the agent's value. A parameter that the endpoint's dialect does not have is refused at registration.
    """

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Probability mass of nucleus sampling."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum of output tokens of a call: caps a larger value of the agent's, and is set if the agent gives none."""

    seed: int | None = None
    """Seed of the sampling. The dialects `openai-responses` and `anthropic-messages` have none."""

    @property
    def given(self) -> dict[str, float | int]:
        """Return the parameters that are set, by name."""
        return {name: value for name, value in self if value is not None}


_POLICY = re.compile(r"fail|wait\((\d+(?:\.\d+)?)(s|m|h)?\)")
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def _check_policy(policy: str) -> str:
    if not _POLICY.fullmatch(policy):
        raise ValueError("must be `fail`, or `wait(LIMIT)` with a limit like 90s, 30m or 2h")
    return policy


EndpointPolicy = Annotated[str, AfterValidator(_check_policy)]
"""Policy for a call whose endpoint fails: `fail` retries it for up to four minutes, `wait(LIMIT)` for as long as the
limit says, also if the endpoint refuses the key, the model or the address, because a user may fix these meanwhile."""


class RetryPolicy(Model):
    """Policy by which the gateway retries a call at its upstream before the agent receives the error.

    Retried are connections that fail, and the statuses 429, 500, 502, 503, 504 and 529, unless the upstream sends
    `x-should-retry: false`. The n-th wait is `first_wait_sec` * 2**(n-1), or as long as `retry-after` says, in both
    cases `max_wait_sec` at most. A call whose reused connection was lost is first retried at once.
    """

    max_retries: int = Field(default=5, ge=0)
    """Maximum of retries of one call; 0 for none."""

    first_wait_sec: float = Field(default=1.0, ge=0)
    """Seconds before the first retry, unless the upstream asks for another wait."""

    max_wait_sec: float = Field(default=60.0, ge=0)
    """Maximum of seconds before any retry, also if the upstream asks for a longer wait."""

    total_sec: float = Field(default=240.0, ge=0)
    """Seconds since the call arrived after which it is not retried: no wait begins that would end later."""

    waits_for_endpoint: bool = False
    """Whether calls also wait for an endpoint that a user may have to fix. Then statuses 401, 402, 403 and 404 are
    retried unless the endpoint has served other models only, and so are stalled calls and answers with
    `x-should-retry: false`; `total_sec` counts from the first of the rollout's calls that failed in a row, if that was
    earlier; and the waits do not count towards the limits of the agent's turn."""

    @classmethod
    def of(cls, policy: EndpointPolicy) -> RetryPolicy:
        """Return the retry policy that an endpoint policy stands for.

        For `wait(LIMIT)` the limit is `total_sec`, and the number of retries is practically unlimited.
        """
        wait = _POLICY.fullmatch(policy)
        if wait is None or wait[1] is None:
            return cls()
        limit = float(wait[1]) * _UNITS[wait[2]]
        return cls(max_retries=1_000_000, total_sec=limit, waits_for_endpoint=True)


class ReplaySettings(Model):
    """Settings of a replay: calls are answered from a record for as long as they match it."""

    record: str
    """Absolute path of the `llm_trajectory.jsonl` from which calls are answered."""

    until: str | None = None
    """Id of the last node whose calls are answered, or `seq` of the last call, in decimal; None for the whole record.
    Later calls are sent to the upstream."""

    strict: bool = False
    """Whether a call that does not match the record is refused (`replay_diverged`) instead of sent to the upstream."""


class Divergence(Model):
    """A call that differs from the recorded one that a replay, or the check of a resumed session, expected."""

    seq: int
    """`RequestLine.seq` of the differing call, in the rollout's own record."""

    recorded: int | None = None
    """`RequestLine.seq` of the recorded call with which it was compared; None if it was compared with none."""

    message: str
    """Description of the difference, for a person."""

    diff: str = ""
    """Shortened diff of the recorded and the actual content, in normal form; empty if contents were not compared."""


class ReplayStatus(Model):
    """Progress of a replay."""

    state: Literal["replaying", "live", "diverged"]
    """`replaying`: calls are matched with the record; `live`: its end, or `until`, is reached and calls go to the
    upstream; `diverged`: a call did not match, so that this and all later ones are refused (strict) or go live."""

    answered: int = 0
    """Calls that were answered from the record, repeated side calls included."""

    left: int = 0
    """Recorded main calls that were not requested yet."""

    divergence: Divergence | None = None
    """The first main call that did not match the record; None unless `state` is `diverged`."""


PrefixState = Literal["unchecked", "equal", "different"]
"""Whether the first main call of a resumed session begins with its parent's last call. `unchecked`: not made yet."""


RequestName = Annotated[str, Field(pattern=r"^(GET|POST) (/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)+$")]
"""A method and a path in canonical form: without percent-encoding, `.`, `..`, doubled or trailing slashes and query."""


class Registration(Model):
    """A rollout's registration with the gateway of its host: its token, endpoint, record and limits.

    Sent by the worker before an agent starts. A further registration of the same id replaces the earlier one.
    """

    id: str = Field(min_length=1)
    """Workflow id of the rollout."""

    token: str = Field(pattern=rf"^{TOKEN_PREFIX}[0-9A-Za-z_-]{{32,}}$", repr=False)
    """Token that the rollout's agents have as their API key; left out of the repr, which may reach a log."""

    job_id: str
    """Workflow id of the job, among whose secrets the API key is looked up."""

    agent: str
    """Name of the agent in the registry, by which the rules for side calls and for normal forms are chosen."""

    api: Api
    """Dialect of the upstream endpoint."""

    base_url: str = Field(pattern=r"^https?://[^/\s]+")
    """URL of the upstream endpoint as its own clients take it: with `/v1` for the two OpenAI dialects. A trailing slash
    is removed."""

    credentials: tuple[str, ...] = ()
    """Names of the secrets that may hold the endpoint's API key; the first one that is set is used. Empty for an
    endpoint without keys."""

    model: str | None = None
    """Name of the rollout's model as the endpoint spells it, which prices calls that name none; None if unknown."""

    record: str = Field(pattern=r"^/")
    """Absolute path of the `llm_trajectory.jsonl` to which the calls are appended."""

    limits: ModelLimits = ModelLimits()
    """Limits of the rollout's calls; none by default."""

    sampling: Sampling = Sampling()
    """Sampling parameters that are put into the calls; none by default."""

    retries: RetryPolicy = RetryPolicy()
    """Policy for calls that fail at the upstream."""

    stall_sec: float = Field(default=STALL_SEC, gt=0)
    """Seconds for which the upstream may send nothing before a call ends as `stalled`. Also the most for which a
    response is read on after its agent has left."""

    replay: ReplaySettings | None = None
    """Replay that answers the calls; None if all go to the upstream."""

    requests: tuple[RequestName, ...] = ()
    """Additional requests that are passed on, as `POST /v1/embeddings`, besides those that agents of this dialect are
    known to make. The path is the one that the agent requests. Each counts as a call."""

    record_limit_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Size of the record, in bytes, from which on calls are refused (`record_full`), so that no agent fills the
    disk."""

    prefix: str | None = Field(default=None, pattern=r"^/")
    """Absolute path of the parent's record if the agent resumes its parent's session: its first call must begin with
    the parent's last one. None for no such check."""

    prefix_requests: int = Field(default=0, ge=0)
    """Number of requests, of all models, at the beginning of the parent's record that precede the checkpoint; 0 for no
    check."""

    prefix_replayed: bool = False
    """Whether the session is restored by a replay, so that the check takes the first call that is not answered from a
    record."""

    @field_validator("base_url")
    @classmethod
    def _end_without_slash(cls, value: str) -> str:
        return value.rstrip("/")


class Attribution(Model):
    """The turn to which a rollout's calls are attributed from now on. Set by the worker when a turn begins."""

    node: str | None = None
    """Id of the node to which the turn leads; None before the first turn, and in a turn of the parent's that is
    replayed."""

    role: str | None = None
    """Role that acts in the turn; None before the first turn."""

    turn: int | None = None
    """Index of the turn's step, from 0; None before the first turn."""


class CallUsage(Model):
    """Tokens and cost of one call. A count that the endpoint does not report is 0."""

    is_estimated: bool = False
    """Whether tokens are estimated, at four bytes of the request and four characters of the response each, because the
    endpoint's report is missing, incomplete or implausible. Where it reports more, its count stands."""

    input_tokens: int = 0
    """Input tokens, including those read from and written to a cache."""

    output_tokens: int = 0
    """Output tokens, including reasoning."""

    cached_tokens: int = 0
    """Input tokens that were read from a cache."""

    cache_write_tokens: int = 0
    """Input tokens that were written to a cache."""

    hour_cache_write_tokens: int = 0
    """Those of `cache_write_tokens` that were written for an hour, which cost more; 0 except for Anthropic."""

    reasoning_tokens: int = 0
    """Output tokens of reasoning; 0 for Anthropic, which does not report them separately."""

    web_searches: int = 0
    """Searches by the endpoint's own web search tool, which are charged in addition."""

    cost_usd: float | None = None
    """Cost in USD by the gateway's price table: the price of the requested model, or of the answering one if it is
    higher. None if the requested model has no known price."""


class UsageTotals(Model):
    """Usage of a rollout so far: the calls, and the sums of their tokens and cost.

    A call under way counts as a call at once; its tokens are added when it ends, or as an estimate when its agent
    leaves. Calls that are answered from a record count in `replayed` only.
    """

    calls: int = 0
    """Calls sent to the upstream, side calls included."""

    side_calls: int = 0
    """Those of `calls` that are no part of the task, such as requests for titles."""

    token_counts: int = 0
    """Requests for the number of tokens of a text, which are no calls and cost nothing."""

    replayed: int = 0
    """Calls answered from a record."""

    input_tokens: int = 0
    """Input tokens, including those read from and written to a cache."""

    output_tokens: int = 0
    """Output tokens, including reasoning."""

    cached_tokens: int = 0
    """Input tokens that were read from a cache."""

    cache_write_tokens: int = 0
    """Input tokens that were written to a cache."""

    reasoning_tokens: int = 0
    """Output tokens of reasoning, as far as endpoints report them."""

    cost_usd: float | None = None
    """Cost in USD of the calls that have a known price; None if none has."""

    unmetered: int = 0
    """Calls whose tokens are estimated or unknown, because the endpoint did not report them."""

    unpriced: int = 0
    """Calls without a known price, which `cost_usd` leaves out."""

    @property
    def total_tokens(self) -> int:
        """Return the sum of input and output tokens."""
        return self.input_tokens + self.output_tokens


class RefusedRequest(Model):
    """A kind of request that the gateway refused, with the number of times.

    It is on no list of allowed requests, its price is unknown while the cost is limited, or the rollout has sent too
    many bodies that cannot be read.
    """

    method: str | None
    """HTTP method; None for all requests beyond the first 20 kinds, which are counted together."""

    path: str | None
    """Path without its query, shortened, with characters that no path has replaced by `?`; None as for `method`."""

    count: int
    """Number of requests. After a restart of the gateway it may be too low, by half at most."""

    unpriced: str | None = None
    """The requested model, option or tool whose unknown price is the reason; empty for a request that names no model,
    None for another reason."""


class GatewayStatus(Model):
    """Status of one rollout's calls, as the gateway reports it."""

    id: str
    """Workflow id of the rollout."""

    in_flight: int = 0
    """Calls under way for which an agent waits."""

    waiting: int = 0
    """Calls that are held back; they are not in flight."""

    held: bool = False
    """Whether new calls are held back, as during a checkpoint or a verifier's run."""

    requests: int = 0
    """Request lines in the record, of all models and side calls included."""

    attribution: Attribution = Attribution()
    """Turn to which new calls are attributed."""

    usage: UsageTotals = UsageTotals()
    """Usage so far."""

    budget_exhausted: LimitName | None = None
    """Limit because of which a call was last refused; None if none was."""

    replay: ReplayStatus | None = None
    """Progress of the replay; None without one."""

    prefix: PrefixState | None = None
    """Result of comparing the first main call with the parent's last one; None if there is none to compare with."""

    prefix_divergence: Divergence | None = None
    """Difference that the comparison found; None unless `prefix` is `different`."""

    failure: str | None = None
    """Reason why calls could not be made or recorded, such as a full record; None if all were."""

    refused: tuple[RefusedRequest, ...] = ()
    """Requests that were refused, in the order in which each kind first came."""

    blocked: tuple[tuple[float, float], ...] = ()
    """Intervals that do not count towards the limits of the agent's turn: a call waited for the record's disk, for the
    gateway's process, which was frozen or down, or for a failed endpoint under `wait(LIMIT)`. Begin and end in seconds
    of this host's monotonic clock; an interval that has not ended yet is reported up to the last second."""

    silent: dict[str, float] = {}
    """Seconds since the endpoint last sent anything, or since it was first sent the request, by the ids of the calls
    under way there; also of calls whose agent has left."""

    @property
    def quiet(self) -> bool:
        """Return whether no agent waits for a call that is under way."""
        return self.in_flight == 0


class CallError(Model):
    """The reason why a call failed, was cut off or was refused."""

    kind: str
    """Of the upstream: `upstream_status` (an error status), `unreachable` (no connection), `stalled` (nothing came for
    `stall_sec`), `truncated` (the connection closed early), `incomplete` (the answer lacks the end that its dialect
    has), `unusable` (a redirect, another protocol, or a body that cannot be unpacked), `too_many_values` (parsing the
    answer would take too much memory).
    Of a call that was cut off: `client_closed` (the agent left), `gateway_stopped`, `gateway_restarted` (the gateway
    ended during the call).
    Of a call that was refused: `budget_exhausted` (a limit is reached), `replay_diverged`, `missing_secret` (no
    credential is set), `unreadable` (the body is no JSON object, or two parsers could read it in two ways),
    `too_large` (the body; also an answer), `too_slow` (the body), `too_many` (token counts, or bodies that cannot be
    read), `record_full`, `not_recorded` (the record cannot be written), `not_allowed` (no request that is passed on),
    `unpriced` (the cost is limited and the price unknown), `unknown_token` (of no rollout; not in any record)."""

    message: str
    """Description for a person; also the error message that the agent receives if the gateway refuses the call."""


class RetryNote(Model):
    """A failed attempt of a call that the gateway retried."""

    status: int | None = None
    """HTTP status of the attempt; None if the upstream gave no answer."""

    waited_sec: float
    """Seconds that the gateway set out to wait before the next attempt."""

    words: str = ""
    """The endpoint's error message, shortened, or the reason why there was no answer; empty if the message cannot be
    read."""


class CallTiming(Model):
    """Times of a call, in milliseconds; None for an event that did not happen."""

    first_byte_ms: float | None = None
    """From the request's arrival to the first byte of the body that the agent was sent."""

    total_ms: float
    """From the request's arrival to the end of the call; 0 if the gateway was restarted during it."""

    upstream_first_byte_ms: float | None = None
    """From the last attempt's start to the upstream's first byte of a body, blanks excepted."""


class RequestLine(Model):
    """The line of a record for an agent's request, written before the call goes out.

    It has either `request` or `request_text`.
    """

    type: Literal["request"] = "request"
    """Type of the line."""

    id: str
    """Random id of the call, which its `ResponseLine` has, too."""

    seq: int
    """Number of the request among the rollout's recorded requests, from 0."""

    ts: str
    """Time of the request's arrival, in UTC."""

    node: str | None
    """Node to which the call leads, by the attribution when it arrived; None before the first turn."""

    role: str | None
    """Role that acts, by the same attribution."""

    turn: int | None
    """Index of the turn's step, by the same attribution."""

    side: bool
    """Whether the call is no part of the task. Side calls count towards limits all the same."""

    side_reason: str | None
    """Reason of `side`: that of a rule of `side_calls.toml` (`title`, `suggestion`, `no_tools`), `token_count`, or
    `additional` (of `Registration.requests`); None for a main call."""

    api: Api | Literal["other"]
    """Dialect of the call; `other` for a request that asks no model for an answer."""

    method: str
    """HTTP method."""

    path: str
    """Path and query that the upstream receives, in canonical form."""

    model: str | None
    """Model that the request names; None if it names none."""

    stream: bool
    """Whether the agent asks for a streamed response."""

    sampling_applied: dict[str, Any] | None
    """Values that the gateway put into the body, by their dotted paths in it; None if it changed nothing."""

    source: Literal["live", "replay"]
    """`replay` if the call is answered from a record, else `live`."""

    request: Any = None
    """JSON body as the agent sent it, unpacked. None for an empty body, for one that cannot be unpacked, and for a call
    that is refused as `budget_exhausted`, `too_many` or `unpriced`, so that the record does not grow by it."""

    request_text: str | None = None
    """Body that is no JSON."""


class RefusedLine(RefusedRequest):
    """The line of a record for refused requests of one kind, written at the first and whenever their number doubles."""

    type: Literal["refused"] = "refused"
    """Type of the line."""

    ts: str
    """Time at which the line was written, in UTC."""


class ResponseLine(Model):
    """The line of a record for the response that the agent received.

    It has either `response` or `response_base64`. These, and the fields read from them, hold what the agent received;
    only `usage` also covers what the upstream sent after the agent had left.
    """

    type: Literal["response"] = "response"
    """Type of the line."""

    id: str
    """Id of the call, as in its `RequestLine`."""

    ts: str
    """Time at which the call ended, in UTC."""

    status: int | None
    """HTTP status that the agent received; None if it received none."""

    headers: dict[str, str] = {}
    """Headers by lower-case name: content type and encoding, `retry-after`, and the upstream's ids of the request."""

    usage: CallUsage | None = None
    """Usage of the call; None if the answer reports none and no model can have read the request. That of a replayed
    call is the recorded answer's, and counts for nothing."""

    finish_reason: str | None = None
    """Finish reason in the endpoint's own word, or `error` if the answer holds an error; None if it has no end."""

    token_ids: list[Any] | None = None
    """Token ids of the answer, which some servers of `openai-chat` report; None otherwise."""

    logprobs: Any = None
    """Log probabilities of the answer's tokens in the form of its dialect; None if the answer has none."""

    error: CallError | None = None
    """Reason why the call did not end as it should; None if it did."""

    retries: list[RetryNote] = []
    """Attempts that were retried: the first 99 and the last."""

    is_waiting: bool = False
    """Whether the call ended, as when the agent left, while the gateway waited to retry it."""

    timing: CallTiming
    """Times of the call."""

    response: str | None = None
    """Body that the agent received, exactly."""

    response_base64: str | None = None
    """The same body in Base64, if it is no UTF-8 or has a content encoding."""
