"""A judge for questions to models of several providers, each of which has its own key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchflow.contracts.reward import JudgeAnswer, JudgeQuestion, JudgeSettings
from benchflow.planes.reward.judge.model_judge import ModelJudge
from benchflow.planes.reward.judge.models import credential_of


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
        name = credential_of(self._settings, question.model)
        if name not in self._judges:
            self._judges[name] = ModelJudge(
                self._settings, self.value(name), self._transcripts, self._redact, earlier=self._earlier
            )
        return await self._judges[name].ask(question)
