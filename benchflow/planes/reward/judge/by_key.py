"""A judge for questions to models of more than one provider: each is asked with its own key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchflow.contracts.reward import JudgeAnswer, JudgeQuestion, JudgeSettings
from benchflow.planes.reward.judge.model_judge import ModelJudge
from benchflow.planes.reward.judge.models import credential_of


class JudgeByKey:
    """A `Judge`. value: of a variable, by its name. The rest is as in `ModelJudge`."""

    def __init__(
        self,
        settings: JudgeSettings,
        value: Callable[[str], str | None],
        transcripts: Path,
        redact: Callable[[str], str] = lambda text: text,
        *,
        earlier: Sequence[Path] = (),
    ) -> None:
        self._settings = settings
        self.value = value
        self._transcripts = transcripts
        self._redact = redact
        self._earlier = earlier
        self._judges: dict[str, ModelJudge] = {}

    async def ask(self, question: JudgeQuestion) -> JudgeAnswer:
        """As in `ModelJudge`."""
        name = credential_of(self._settings, question.model)
        if name not in self._judges:
            self._judges[name] = ModelJudge(
                self._settings, self.value(name), self._transcripts, self._redact, earlier=self._earlier
            )
        return await self._judges[name].ask(question)
