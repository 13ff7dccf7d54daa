"""One call of a judge's model by pydantic-ai, which only this module knows; it is imported at the first call.

Each failure of the library, and of the endpoint, becomes an `AttemptFailedError`, which tells whether a retry may help.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from benchflow.contracts.reward import JudgeQuestion
from benchflow.planes.reward.judge.models import JudgeModel
from benchflow.planes.reward.judge.verdicts import (
    TOOL,
    AttemptFailedError,
    JudgeResponse,
    format_task,
    make_tool_schema,
)

_AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which a retry may help."""

_NO_KEY = "none"
"""Placeholder for a missing key, which the client libraries require."""

_REMEDIES: tuple[tuple[type[ModelAPIError], str], ...] = (
    (ModelAuthenticationError, "check the key: the provider's variable, or the one that --judge-key names"),
    (ModelNotFoundError, "check --judge-model and --judge-base-url"),
    (ModelContextWindowExceededError, "have it judge fewer files: `files` of the criteria; or choose another model"),
    (ModelQuotaExceededError, "the account has nothing left: top it up, or name another key"),
)
"""Remedies by the class of the error."""


class Conversation:
    """A question as messages; after an invalid answer, with that answer and the objection to it."""

    def __init__(self, question: JudgeQuestion) -> None:
        """Make it for a question."""
        prompt = f"{question.prompt}\n\n{format_task(question.scales)}"
        self._first = ModelRequest(parts=[UserPromptPart(content=prompt)], instructions=question.system)
        self._last: list[ModelMessage] = []
        self._system = question.system
        tool = ToolDefinition(
            name=TOOL, description="Gives the verdict.", parameters_json_schema=make_tool_schema(question.scales)
        )
        self.parameters = ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)

    @property
    def messages(self) -> Sequence[ModelMessage]:
        """Return the messages to send next."""
        return [self._first, *self._last]

    def object_to(self, said: JudgeResponse, objection: str) -> None:
        """Append an invalid answer and the objection to it. Only the last answer is sent again.

        Args:
            said: Invalid answer. An empty one is left out, and the question asked anew.
            objection: Reason, as text for the model.
        """
        parts: list[ModelRequestPart] = [
            ToolReturnPart(tool_name=part.tool_name, content=objection, tool_call_id=part.tool_call_id)
            for part in said.response.parts
            if isinstance(part, ToolCallPart)
        ]
        if not said.response.parts:
            self._last = []
            return
        reply = ModelRequest(parts=parts or [UserPromptPart(content=objection)], instructions=self._system)
        self._last = [said.response, reply]


class JudgeEndpoint:
    """A model at its endpoint. Enter it around calls: they share connections, which close with the last exit."""

    def __init__(self, model: JudgeModel, key: str | None) -> None:
        """Make it, without a connection.

        Args:
            model: Model, with its endpoint.
            key: API key; None for an endpoint that needs none.
        """
        self._model = _connect(model, key or _NO_KEY)

    async def __aenter__(self) -> Self:
        """Open the connections, unless they are open."""
        await self._model.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections after the last exit."""
        await self._model.__aexit__(kind, error, trace)

    async def request(self, conversation: Conversation, timeout_sec: float) -> JudgeResponse:
        """Call the model once, and return its answer.

        Args:
            conversation: Messages to send.
            timeout_sec: Seconds that the call may take.

        Raises:
            AttemptFailedError: The call failed; the error tells whether a retry may help.
        """
        try:
            response = await model_request(
                self._model,
                conversation.messages,
                model_settings={"max_retries": 0, "timeout": timeout_sec},
                model_request_parameters=conversation.parameters,
                instrument=False,
            )
        except ModelHTTPError as error:
            again = error.status_code >= 500 or error.status_code in _AGAIN
            again = again and not isinstance(error, ModelQuotaExceededError)
            message = f"the endpoint answered with status {error.status_code}: {_body(error)}"
            raise AttemptFailedError(
                message, again=again, is_away=again, wait=_wait(error), remedy=_remedy(error)
            ) from error
        except ModelAPIError as error:
            raise AttemptFailedError(
                _words(error), again=True, is_away=True, wait=error.retry_after, remedy=_remedy(error)
            ) from error
        except UnexpectedModelBehavior as error:
            raise AttemptFailedError(_words(error), again=True) from error
        except UserError as error:
            raise AttemptFailedError(
                _words(error), again=False, remedy="choose another model: --judge-model"
            ) from error
        return _said(response)


def _connect(model: JudgeModel, key: str) -> Model:
    if model.provider == "openai":
        return OpenAIChatModel(model.name, provider=OpenAIProvider(base_url=model.base_url, api_key=key))
    return AnthropicModel(model.name, provider=AnthropicProvider(base_url=model.base_url, api_key=key))


def _said(response: ModelResponse) -> JudgeResponse:
    usage = response.usage
    try:
        cost: float | None = float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        cost = None
    return JudgeResponse(
        text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
        calls=[(part.tool_name, _arguments(part)) for part in response.parts if isinstance(part, ToolCallPart)],
        is_cut=response.finish_reason == "length",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=cost,
        response=response,
    )


def _arguments(call: ToolCallPart) -> str | dict[str, Any]:
    return call.args if isinstance(call.args, str) else dict(call.args or {})


def _wait(error: ModelHTTPError) -> float | None:
    """Return the seconds of the `retry-after` header; None if there is none. The library reads whole numbers only."""
    if error.retry_after is not None:
        return error.retry_after
    try:
        wait = float((error.headers or {}).get("retry-after", ""))
    except ValueError:
        return None
    return wait if 0 <= wait < 1e6 else None


def _body(error: ModelAPIError) -> str:
    """Return the error message in a response, by the format of either API; else the whole body."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", body) if isinstance(inner, dict) else inner
    return str(body)


def _remedy(error: ModelAPIError) -> str | None:
    return next((remedy for kind, remedy in _REMEDIES if isinstance(error, kind)), None)


def _words(error: Exception) -> str:
    """Return an error's message with those of its causes: libraries wrap the network's errors."""
    reasons = [str(error) or type(error).__name__]
    cause = error.__cause__
    while cause is not None:
        reasons.append(str(cause) or type(cause).__name__)
        cause = cause.__cause__
    return ": ".join(dict.fromkeys(reasons))
