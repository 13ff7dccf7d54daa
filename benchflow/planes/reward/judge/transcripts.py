"""The transcripts of a judge: one file for each question, with all that was said, whole or not there at all.

An answer that one holds is the answer to the very same question ever after. What is written is cleaned first: of the
judge's own key, and of what the caller takes out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import JudgeAnswer, JudgeQuestion
from benchflow.errors import UnsafePathError
from benchflow.planes.reward.judge.models import JudgeModel
from benchflow.store import write_atomic

_SHORTEST_KEY = 6
"""A key of fewer letters is a placeholder, which may be any word of a text."""

_LARGEST = 64 * 1024 * 1024


def digest_of(question: JudgeQuestion, model: JudgeModel) -> str:
    """What makes two questions the same: who is asked, and everything that is said and wanted."""
    parts = [str(model), model.endpoint, question.system, question.prompt]
    scales = [scale.model_dump() for scale in question.scales]
    content = json.dumps([*parts, scales], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()


def file_name(id: str) -> str:
    """The transcript's name: the id where that can be a file's name, else like it, and different for another id."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", id).lstrip(".")[:100]
    if safe != id:
        safe = f"{safe or 'question'}-{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"{safe}.json"


class Transcripts:
    """A directory of transcripts, and earlier ones that are only read."""

    def __init__(self, directory: Path, earlier: Sequence[Path], key: str | None, redact: Callable[[str], str]) -> None:
        self._places = [directory, *earlier]
        self._key = key if key and len(key) >= _SHORTEST_KEY else None
        self._redact = redact

    def clean(self, text: str) -> str:
        """A text without what nobody may read."""
        return self._redact(text.replace(self._key, "[judge key]") if self._key else text)

    def cleaned(self, content: Any) -> Any:
        """The same of data, at whatever depth."""
        if isinstance(content, str):
            return self.clean(content)
        if isinstance(content, dict):
            return {self.clean(str(key)): self.cleaned(inner) for key, inner in content.items()}
        if isinstance(content, list | tuple):
            return [self.cleaned(inner) for inner in content]
        return content

    def recorded(self, id: str, digest: str) -> JudgeAnswer | None:
        """The answer to the question of that digest, None when there is none yet."""
        for place in self._places:
            for name in _names(id, digest):
                found = _read(place, name)
                answer = _answer(found) if found and found.get("digest") == digest else None
                if found is None or answer is None:
                    continue
                if place != self._places[0]:
                    name = self.write(id, digest, found)
                return answer.model_copy(update={"is_recorded": True, "transcript": name})
        return None

    def write(self, id: str, digest: str, content: dict[str, Any]) -> str:
        """Write a transcript, cleaned; its name. The answer to another question of that id stays.

        Raises `StoreError`.
        """
        plain, other = _names(id, digest)
        found = _read(self._places[0], plain)
        is_taken = found is not None and found.get("digest") != digest and _answer(found) is not None
        name = other if is_taken else plain
        if content["answer"] is not None:
            content = content | {"answer": content["answer"] | {"transcript": name}}
        text = json.dumps(self.cleaned(content), indent=2, ensure_ascii=False)
        # A lone surrogate of somebody's file name can't be written.
        write_atomic(self._places[0] / name, (text + "\n").encode("utf-8", "replace"))
        return name


def _names(id: str, digest: str) -> tuple[str, str]:
    name = file_name(id)
    return name, f"{name.removesuffix('.json')}-{digest[:8]}.json"


def _answer(content: dict[str, Any]) -> JudgeAnswer | None:
    try:
        return JudgeAnswer.model_validate(content.get("answer"))
    except ValidationError:
        return None


def _read(directory: Path, name: str) -> dict[str, Any] | None:
    """Return a transcript, None where there is none that can be read: it is then written anew."""
    try:
        content = json.loads(ConfinedPath(directory, name).read(_LARGEST))
    except (OSError, UnsafePathError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
