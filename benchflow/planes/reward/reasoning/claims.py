"""Find claims in an answer: files that were written, and tests that pass.

Only plain claims count; sentences that deny, ask, plan or quote something are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_EXTENSIONS = (
    r"bash|bat|bib|bin|c|cc|cfg|cjs|conf|cpp|cs|css|csv|db|diff|docx|env|gif|go|gz|h|hpp|html|ini|ipynb|java|"
    r"jpeg|jpg|js|json|jsonl|jsx|kt|lock|log|lua|md|mjs|ods|odt|parquet|patch|pdf|php|pl|png|pptx|ps1|py|pyi|r|"
    r"rb|rs|rst|scala|sh|sql|sqlite|svg|swift|tar|tex|toml|ts|tsv|tsx|txt|vue|wav|xlsx|xml|yaml|yml|zip"
)
_FILE = rf"(?:~?/|\.{{1,2}}/)?(?:[\w.+@-]+/)*[\w+@-][\w.+@-]*\.(?:{_EXTENSIONS})\b|(?:/[\w.+@-]+){{2,}}"
_SITE = r"(?!\S*\.(?:com|org|net|io|dev|edu|gov|ai)/)"
_PATH = rf"[`'\"*]{{0,3}}(?<![\w/:.@-]){_SITE}({_FILE})(?![\w/(-]|\.\w|://)[`'\"*]{{0,3}}"
_DID = (
    r"(?:created|wrote|written|added|updated|changed|modified|edited|saved|generated|produced|rewrote|rewritten|"
    r"renamed|fixed|patched|stored|exported)"
)
# A path after one of these words is no file that was written.
_AROUND = r"\b(?:for|from|per|like|see|using|with|by|via|against|than|described|according|based|mentioned)\b"
_CLAIMED = re.compile(rf"\b{_DID}\b(?:(?!{_AROUND})[^.`/\n]){{0,60}}?(?:{_PATH}(?:,? and |, |,)?)+", re.IGNORECASE)
_PASSIVE = re.compile(rf"{_PATH}[^.\n]{{0,30}}\b(?:is|are|was|were|been|now)\b(?: \w+){{0,2}} {_DID}\b", re.IGNORECASE)
_HEADING = re.compile(rf"\b{_DID}\b[^\n]{{0,60}}:[*_ ]*$", re.IGNORECASE)
_ITEM = re.compile(rf"^\s*(?:[-*•+]|\d+[.)]) +{_PATH}", re.IGNORECASE)
_EACH = re.compile(_PATH, re.IGNORECASE)

_PASS = r"(?:pass|passes|passed|passing|succeed|succeeds|succeeded|succeeding|green)"
_TESTS = re.compile(
    rf"\btests?(?: suites?| cases?)?(?: (?:now|all|both|still|again|are|is|have|has|successfully)){{0,3}}"
    rf" {_PASS}\b|\b(?:all|every|both) (?:of )?(?:the )?(?:\d+ )?\w* ?tests?\b[^.\n]{{0,25}}\b{_PASS}\b"
    rf"|\ball (?:\d+ )?pass(?:ed|ing)?\b|\b\d+ (?:of|/) ?\d+ tests? {_PASS}\b",
    re.IGNORECASE,
)
_NOT_SO = re.compile(
    r"\b(?:not|never|no|none|cannot|without|unable|if|unless|whether|once|until|when|should|would|could|might|may|must|"
    r"will|shall|let me|make sure|ensure|needs? to|has to|have to|want|wanted|try|tried|in order|so that|before|"
    r"instead|unlike|you)\b|n['’]t\b|\?",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"```.*?(?:```|\Z)|^[ \t]*>[^\n]*$", re.DOTALL | re.MULTILINE)
_LONGEST = 50_000
_LONGEST_LINE = 2_000


def _lines(answer: str) -> list[str]:
    """Return the lines of an answer without quotations and code blocks."""
    return [line[:_LONGEST_LINE] for line in _QUOTED.sub("", answer[-_LONGEST:]).splitlines()]


def claimed_files(answer: str) -> list[str]:
    """Return the paths of the files that an answer claims to have written, in order, without duplicates."""
    found: dict[str, None] = {}
    listing = False
    for line in _lines(answer):
        if listing and (item := _ITEM.match(line)):
            found[item[1]] = None
            continue
        listing = (listing and not line.strip()) or (bool(_HEADING.search(line)) and not _NOT_SO.search(line))
        for sentence in _sentences(line):
            if not _NOT_SO.search(sentence):
                found.update(dict.fromkeys(_in_sentence(sentence)))
    return list(found)


def _in_sentence(sentence: str) -> Iterator[str]:
    """Yield the paths that a sentence claims to have written."""
    for claim in _CLAIMED.finditer(sentence):
        yield from (path[1] for path in _EACH.finditer(claim[0]))
    for claim in _PASSIVE.finditer(sentence):
        yield claim[1]


def _sentences(line: str) -> list[str]:
    # A period within a name does not end a sentence.
    return re.split(r"(?<=[.!;])\s+|(?<=\?)", line)


def claimed_success(answer: str) -> str | None:
    """Return the first sentence of an answer that claims that tests pass; None if there is none."""
    for line in _lines(answer):
        for sentence in _sentences(line):
            if _TESTS.search(sentence) and not _NOT_SO.search(sentence) and not re.search(r"\bfail", sentence):
                return sentence.strip()
    return None
