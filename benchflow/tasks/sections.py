"""Read the body of a task.md: one instruction, or prompts below reserved level-2 headings.

Headings inside fenced code are text. `prompts/*.md` beside task.md override the sections of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchflow.contracts.base import Model
from benchflow.user_files.problems import ProblemError, Problems
from benchflow.user_files.user_document import read_text

_RESERVED = re.compile(r"##[ \t]+(prompt|user-persona|role:\s*(.+?)|scene:\s*(.+?))[ \t]*#*[ \t]*", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Prompts(Model):
    """Prompts of a document's body and of `prompts/`, without surrounding whitespace."""

    base: str = ""
    """Instruction: the section `## prompt`, else the text before the first reserved heading."""

    roles: dict[str, str] = {}
    """Prompts by role, from `## role:<name>`."""

    scenes: dict[str, str] = {}
    """Prompts by scene, from `## scene:<name>`."""

    persona: str | None = None
    """Persona of the simulated user, from `## user-persona`; None without this section."""


def read_prompts(body: str, file: Path, problems: Problems, *, overrides: Path | None = None) -> Prompts:
    """Return the prompts of a document's body.

    Args:
        body: The document without its frontmatter.
        file: Path of the document, for problems.
        problems: Receives duplicate headings, unused text, and files of `overrides` that are unusable.
        overrides: Directory of prompt files, which replace the sections of the same name.
    """
    sections = _split_sections(body, file, problems)
    if overrides is not None:
        sections |= _read_overrides(overrides, problems)
    return Prompts(
        base=sections.get("prompt", ""),
        roles={key[5:]: text for key, text in sections.items() if key.startswith("role:")},
        scenes={key[6:]: text for key, text in sections.items() if key.startswith("scene:")},
        persona=sections.get("user-persona"),
    )


def has_reserved_heading(text: str) -> bool:
    """Return whether `text` has a reserved heading, at which the body of a task.md would be split."""
    return any(key is not None for _, key in _classify_lines(text))


def _split_sections(body: str, file: Path, problems: Problems) -> dict[str, str]:
    """Return the section texts by `prompt`, `user-persona`, `role:<name>`, `scene:<name>`."""
    found: dict[str, list[str]] = {}
    preamble: list[str] = []
    current = preamble
    for line, key in _classify_lines(body):
        if key is None:
            current.append(line)
            continue
        if key in found:
            problems.error("parse", file, f"the heading `## {key}` is given twice", suggestion="merge the two sections")
        current = found.setdefault(key, [])
    texts = {key: "\n".join(lines).strip() for key, lines in found.items()}
    before = "\n".join(preamble).strip()
    if "prompt" not in texts:
        texts["prompt"] = before
    elif before and not _is_title(before):
        problems.warn(
            "value",
            file,
            "the text before the first reserved heading belongs to no prompt and is not used",
            suggestion="move it under `## prompt`",
        )
    return texts


def _is_title(text: str) -> bool:
    return "\n" not in text and text.startswith("# ")


def _classify_lines(body: str) -> Iterator[tuple[str, str | None]]:
    """Yield each line with the key of the section that it opens; None for a line that opens none."""
    fence: str | None = None
    for line in body.split("\n"):
        marks = _FENCE.match(line)
        if fence is not None:
            if marks and marks[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
            yield line, None
            continue
        if marks:
            fence = marks[1]
        heading = _RESERVED.fullmatch(line)
        yield line, _make_section_key(heading) if heading else None


def _make_section_key(heading: re.Match[str]) -> str:
    """Return the key of a section, as in `_split_sections`, for a match of `_RESERVED`."""
    if heading[2] is not None:
        return f"role:{heading[2]}"
    if heading[3] is not None:
        return f"scene:{heading[3]}"
    return heading[1].lower()


def _read_overrides(directory: Path, problems: Problems) -> dict[str, str]:
    """Return the texts of a directory's prompt files by the keys of the sections that they replace."""
    texts: dict[str, str] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        kind, _, name = path.name.removesuffix(".md").partition(".")
        if path.name == "user-persona.md":
            key = "user-persona"
        elif path.suffix == ".md" and kind in ("role", "scene") and name:
            key = f"{kind}:{name}"
        else:
            problems.warn(
                "unknown-key",
                path,
                "is not a prompt file and is not used",
                suggestion="name it role.<name>.md, scene.<name>.md or user-persona.md",
            )
            continue
        try:
            texts[key] = read_text(path).strip()
        except ProblemError as error:
            problems.extend([error.problem])
    return texts
