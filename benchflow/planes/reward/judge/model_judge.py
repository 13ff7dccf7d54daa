"""`ModelJudge`: ask a model, retry where that may help, and write a transcript.

A question without a usable answer is an error, never a score.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.contracts.reward import JudgeAnswer, JudgeQuestion, JudgeSettings, Verdict
from benchflow.errors import JudgeError, JudgeUnavailableError
from benchflow.planes.reward.judge.models import JudgeModel, find_credential, make_library_error, resolve_model
from benchflow.planes.reward.judge.transcripts import Transcripts, compute_digest
from benchflow.planes.reward.judge.verdicts import AttemptFailedError, JudgeResponse, NotAVerdictError, read_verdicts
from benchflow.planes.sandbox.timeouts import awake_timeout

if TYPE_CHECKING:
    from benchflow.planes.reward.judge.endpoint import Conversation, JudgeEndpoint

_MAX_PAUSE = 20.0
"""Maximum seconds between two calls, if the endpoint names none."""

_ERROR_LENGTH = 2000


class _CallLimit:
    """Limit of concurrent calls, shared by all judges of one event loop."""

    def __init__(self) -> None:
        self._under_way = 0
        self._left = asyncio.Event()

    @asynccontextmanager
    async def hold_place(self, limit: int) -> AsyncIterator[None]:
        """Hold one of `limit` places while the block runs; wait until one is free."""
        while self._under_way >= limit:
            await self._left.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._left.set()
            self._left = asyncio.Event()


_LIMITS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _CallLimit] = weakref.WeakKeyDictionary()


class ModelJudge:
    """A `Judge` that asks the model of the settings, or of the question."""

    def __init__(
        self,
        settings: JudgeSettings,
        key: str | None,
        transcripts: Path,
        redact: Callable[[str], str] = lambda text: text,
        *,
        earlier: Sequence[Path] = (),
        pause: float = 1.0,
    ) -> None:
        """Make it; nothing is asked yet.

        Args:
            settings: Settings of the job.
            key: API key; None for an endpoint that needs none.
            transcripts: Directory to which transcripts are written. A recorded answer in it is returned without a call.
            redact: Removes secrets from a text.
            earlier: Further directories of transcripts, which are only read.
            pause: Seconds before the first retry, if the endpoint names none. They double with each retry.
        """
        self._settings, self._key, self._pause = settings, key, pause
        self._transcripts = Transcripts(transcripts, earlier, key, redact)
        # A connection can be used only by the event loop that opened it.
        self._endpoints: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, JudgeEndpoint]]
        self._endpoints, self._opening = weakref.WeakKeyDictionary(), threading.Lock()

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """Return the verdicts on all scales of the question: from its transcript if there is one, else from the model.

        Raises:
            JudgeError: The model can't be asked, or gives no usable answer.
            StoreError: The transcript can't be written.
        """
        model = resolve_model(self._settings, question.model)
        digest = compute_digest(question, model)
        recorded = await asyncio.to_thread(self._transcripts.find_recorded, question.id, digest)
        if recorded is not None:
            return recorded
        self._check_key(model)
        endpoint = await self._get_endpoint(model)
        asking = _Asking(question, model, self._settings, self._transcripts, self._pause)
        async with endpoint:
            return await asking.ask(endpoint, digest)

    def _check_key(self, model: JudgeModel) -> None:
        """Raise `JudgeError` if the provider's own endpoint is to be asked without a key."""
        if not self._key and model.is_official:
            variable = find_credential(self._settings, str(model))
            raise JudgeError(
                f"there is no key for {model}",
                key="judge.credential",
                remedy=f"export {variable}=…, or name the variable that holds it: --judge-key",
            )

    async def _get_endpoint(self, model: JudgeModel) -> JudgeEndpoint:
        """Return the endpoint of a model for the running event loop. Raises `JudgeError` if the library is missing."""
        # In a thread: the import of the library and its list of prices takes seconds.
        try:
            return await asyncio.to_thread(self._open_endpoint, asyncio.get_running_loop(), model)
        except ImportError as error:
            raise make_library_error() from error

    def _open_endpoint(self, loop: asyncio.AbstractEventLoop, model: JudgeModel) -> JudgeEndpoint:
        """Return the endpoint of a model for an event loop; it is made at the first use."""
        from benchflow.planes.reward.judge.endpoint import JudgeEndpoint

        with self._opening:
            opened = self._endpoints.setdefault(loop, {})
            if str(model) not in opened:
                opened[str(model)] = JudgeEndpoint(model, self._key)
            return opened[str(model)]


class JudgeByKey:
    """A `Judge` that asks each question through the `ModelJudge` for the key of its model."""

    def __init__(
        self,
        settings: JudgeSettings,
        value: Callable[[str], str | None],
        transcripts: Path,
        redact: Callable[[str], str] = lambda text: text,
        *,
        earlier: Sequence[Path] = (),
    ) -> None:
        """Make it; nothing is asked yet.

        Args:
            settings: Settings of the job.
            value: Returns the value of a variable; None if it is not set.
            transcripts: Directory to which transcripts are written.
            redact: Removes secrets from a text.
            earlier: Further directories of transcripts, which are only read.
        """
        self._settings = settings
        self.value = value
        self._transcripts = transcripts
        self._redact = redact
        self._earlier = earlier
        self._judges: dict[str, ModelJudge] = {}

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """Return the verdicts on all scales of the question; see `ModelJudge.ask`."""
        name = find_credential(self._settings, question.model)
        if name not in self._judges:
            self._judges[name] = ModelJudge(
                self._settings, self.value(name), self._transcripts, self._redact, earlier=self._earlier
            )
        return await self._judges[name].ask(question)


class _Asking:
    """One question in progress: its attempts so far, and what they cost."""

    def __init__(
        self,
        question: JudgeQuestion,
        model: JudgeModel,
        settings: JudgeSettings,
        transcripts: Transcripts,
        pause: float,
    ) -> None:
        self.question, self.model, self.settings = question, model, settings
        self.transcripts, self.pause = transcripts, pause
        self.room = _LIMITS.setdefault(asyncio.get_running_loop(), _CallLimit())
        self.attempts: list[dict[str, Any]] = []
        self.answers: list[JudgeResponse] = []
        self.started, self.start = datetime.now(UTC), time.monotonic()

    async def ask(self, endpoint: JudgeEndpoint, digest: str) -> JudgeAnswer:
        """Ask until there is an answer or no retry is left, and write the transcript. Raises `JudgeError`."""
        from benchflow.planes.reward.judge.endpoint import Conversation

        conversation = Conversation(self.question)
        while True:
            try:
                verdicts = await self._attempt(endpoint, conversation)
            except AttemptFailedError as failure:
                pause = self._compute_pause(failure)
                if pause is None:
                    error = self._make_error(failure)
                    await self._write_transcript(digest, None, error)
                    # The failure may quote the key, which `error` does not contain.
                    raise error from None
                await asyncio.sleep(pause)
            else:
                answer = self._make_answer(verdicts)
                return answer.model_copy(update={"transcript": await self._write_transcript(digest, answer, None)})

    async def _attempt(self, endpoint: JudgeEndpoint, conversation: Conversation) -> dict[str, Verdict]:
        """Call the model once and return its verdicts, or object to its answer. Raise `AttemptFailedError`."""
        limit, question = self.question.timeout_sec, self.question
        record: dict[str, Any] = {}
        self.attempts.append(record)
        async with self.room.hold_place(self.settings.concurrency):
            start = time.monotonic()
            try:
                async with awake_timeout(limit):
                    response = await endpoint.request(conversation, limit)
                self.answers.append(response)
                record |= {"text": response.text, "calls": [list(call) for call in response.calls]}
                record |= {"input_tokens": response.input_tokens, "output_tokens": response.output_tokens}
                return read_verdicts(response.calls, response.text, question.scales)
            except NotAVerdictError as error:
                objection = f"{'The answer was cut off. ' if response.is_cut else ''}This is not an answer: {error}."
                conversation.object_to(response, f"{objection} Answer the question again, completely.")
                record["error"] = objection
                raise AttemptFailedError(objection, again=True, wait=0) from error
            except TimeoutError as error:
                record["error"] = f"there was no answer within {limit:g} s"
                raise AttemptFailedError(record["error"], again=True, is_away=True) from error
            except AttemptFailedError as error:
                record["error"] = str(error)
                raise
            finally:
                record["seconds"] = round(time.monotonic() - start, 3)

    def _compute_pause(self, failure: AttemptFailedError) -> float | None:
        """Return the seconds until the next call; None if there is to be none."""
        made = len(self.attempts)
        if not failure.again or made > self.settings.retries:
            return None
        if failure.wait is not None:
            # An endpoint that asks to wait for longer than a call may take counts as unavailable.
            return failure.wait if failure.wait <= self.question.timeout_sec else None
        return min(self.pause * 2.0 ** (made - 1), _MAX_PAUSE) * random.uniform(0.8, 1.2)

    def _make_answer(self, verdicts: dict[str, Verdict]) -> JudgeAnswer:
        """Return the answer, with the calls, tokens and cost of all attempts."""
        costs = [response.cost_usd for response in self.answers]
        answer = JudgeAnswer(
            verdicts=verdicts,
            model=str(self.model),
            transcript="",
            calls=len(self.attempts),
            input_tokens=sum(response.input_tokens for response in self.answers),
            output_tokens=sum(response.output_tokens for response in self.answers),
            cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        )
        # Redacted, so that it equals the one that will be read from its transcript.
        return JudgeAnswer.model_validate(self.transcripts.clean_data(answer.model_dump()))

    def _make_error(self, failure: AttemptFailedError) -> JudgeError:
        """Return the error for a question without an answer: `JudgeUnavailableError` if the endpoint is away."""
        calls = len(self.attempts)
        times = "once" if calls == 1 else f"{calls} times"
        last = self.transcripts.clean(str(failure))[:_ERROR_LENGTH]
        first_line = last.partition("\n")[0]
        return (JudgeUnavailableError if failure.is_away else JudgeError)(
            f"{self.model} at {self.model.endpoint} was asked {times} and gave no usable answer: {first_line}",
            key=self.question.id,
            remedy=failure.remedy or "see that the endpoint answers, then score the rollout again",
            log_tail=last,
        )

    async def _write_transcript(self, digest: str, answer: JudgeAnswer | None, error: JudgeError | None) -> str:
        """Write the transcript, and return its name."""
        content = {
            "id": self.question.id,
            "digest": digest,
            "model": str(self.model),
            "endpoint": self.model.endpoint,
            "asked_at": self.started.isoformat(),
            "seconds": round(time.monotonic() - self.start, 3),
            "question": self.question.model_dump(mode="json", exclude={"id", "model"}),
            "attempts": self.attempts,
            "answer": answer.model_dump(mode="json") if answer else None,
            "error": error.message if error else None,
        }
        return await asyncio.to_thread(self.transcripts.write, self.question.id, digest, content)
