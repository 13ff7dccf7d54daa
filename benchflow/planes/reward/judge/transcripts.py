"""Transcripts of a judge: one file for each question, with all calls and answers, written atomically.

A recorded answer is returned for the very same question ever after. Before it is written, a transcript is redacted: of
the judge's own key, and of the caller's secrets.
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
from benchflow.host_files import write_atomic
from benchflow.planes.reward.judge.models import JudgeModel

_MIN_KEY = 6
"""Minimum length of a key that is redacted. A shorter one is a placeholder, which may be any word of a text."""

_MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a transcript that is read."""


def compute_digest(question: JudgeQuestion, model: JudgeModel) -> str:
    """Return the digest that identifies a question: the model, its endpoint, the prompts and the scales."""
    parts = [str(model), model.endpoint, question.system, question.prompt]
    scales = [scale.model_dump() for scale in question.scales]
    content = json.dumps([*parts, scales], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()


def make_file_name(id: str) -> str:
    """Return the file name of a question's transcript: its id, or a unique name like it if that is not safe."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", id).lstrip(".")[:100]
    if safe != id:
        safe = f"{safe or 'question'}-{hashlib.sha256(id.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"{safe}.json"


class Transcripts:
    """A directory of transcripts, with earlier ones that are only read."""

    def __init__(self, directory: Path, earlier: Sequence[Path], key: str | None, redact: Callable[[str], str]) -> None:
        """Make it.

        Args:
            directory: Directory to which transcripts are written; it need not exist.
            earlier: Further directories that are read.
            key: API key to redact; None for none.
            redact: Removes other secrets from a text.
        """
        self._places = [directory, *earlier]
        self._key = key if key and len(key) >= _MIN_KEY else None
        self._redact = redact

    def clean(self, text: str) -> str:
        """Return a text without the key and other secrets."""
        return self._redact(text.replace(self._key, "[judge key]") if self._key else text)

    def clean_data(self, content: Any) -> Any:
        """Return JSON data with all its texts and keys redacted."""
        if isinstance(content, str):
            return self.clean(content)
        if isinstance(content, dict):
            return {self.clean(str(key)): self.clean_data(inner) for key, inner in content.items()}
        if isinstance(content, list | tuple):
            return [self.clean_data(inner) for inner in content]
        return content

    def find_recorded(self, id: str, digest: str) -> JudgeAnswer | None:
        """Return the recorded answer to a question; None if there is none. One from an earlier directory is copied.

        Args:
            id: Id of the question.
            digest: Its digest by `compute_digest`.
        """
        for place in self._places:
            for name in _make_file_names(id, digest):
                found = _read_transcript(place, name)
                answer = _read_answer(found) if found and found.get("digest") == digest else None
                if found is None or answer is None:
                    continue
                if place != self._places[0]:
                    name = self.write(id, digest, found)
                return answer.model_copy(update={"is_recorded": True, "transcript": name})
        return None

    def write(self, id: str, digest: str, content: dict[str, Any]) -> str:
        """Write a redacted transcript, and return its file name.

        A recorded answer to another question with that id is not overwritten.

        Args:
            id: Id of the question.
            digest: Its digest by `compute_digest`.
            content: Transcript, with the keys `digest` and `answer`.

        Raises:
            StoreError: It can't be written.
        """
        plain, other = _make_file_names(id, digest)
        found = _read_transcript(self._places[0], plain)
        is_taken = found is not None and found.get("digest") != digest and _read_answer(found) is not None
        name = other if is_taken else plain
        if content["answer"] is not None:
            content = content | {"answer": content["answer"] | {"transcript": name}}
        text = json.dumps(self.clean_data(content), indent=2, ensure_ascii=False)
        # A lone surrogate, as in a file name, can't be encoded.
        write_atomic(self._places[0] / name, (text + "\n").encode("utf-8", "replace"))
        return name


def _make_file_names(id: str, digest: str) -> tuple[str, str]:
    """Return the file names that a question's transcript may have: the plain one, and the one if that is taken."""
    name = make_file_name(id)
    return name, f"{name.removesuffix('.json')}-{digest[:8]}.json"


def _read_answer(content: dict[str, Any]) -> JudgeAnswer | None:
    """Return the answer in a transcript; None if there is none."""
    try:
        return JudgeAnswer.model_validate(content.get("answer"))
    except ValidationError:
        return None


def _read_transcript(directory: Path, name: str) -> dict[str, Any] | None:
    """Return a transcript; None if it can't be read, which has it written anew."""
    try:
        content = json.loads(ConfinedPath(directory, name).read(_MAX_BYTES))
    except (OSError, UnsafePathError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
