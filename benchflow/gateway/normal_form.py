"""The normal form of a call: the parts that two runs with the same behaviour have in common.

Some of what an agent sends differs each time without a meaning: identifiers, the date, cache markers, durations of
commands. `normalise.toml` lists it as data, for each agent and each dialect. In the normal form, noise is removed or
replaced by `⟦name⟧`; identifiers are `⟦kind-1⟧`, `⟦kind-2⟧` in the order in which they appear, the same one everywhere
in the body, so that references remain visible. Everything else is unchanged.

A form does not depend on the order of members, and is its own normal form.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from benchflow.contracts.base import Model
from benchflow.gateway.selectors import Selectors, parse_selector

_NAME = re.compile(r"⟦([a-z]+)-\d+⟧")
_TOKEN = re.compile(r"[0-9A-Za-z_-]{8,}")
"""Pattern of an identifier within a text, too long to occur by chance."""

_TEXT_HEAD = 1024
_DATA_SIZE = 4096
"""Length above which a string without blanks in its first `_TEXT_HEAD` characters is an image or a file, not a text."""


class NormalFormRule(Model):
    """One rule of `normalise.toml`, which documents its keys."""

    why: str
    agents: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    flatten: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    rename: str | None = None
    kind: str = Field(default="id", pattern=r"^[a-z]+$")
    replace: str | None = None
    with_: str | None = Field(default=None, alias="with")
    in_: Literal["results"] | None = Field(default=None, alias="in")

    @field_validator("drop", "flatten", "ids")
    @classmethod
    def _are_selectors(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            parse_selector(text)
        return texts

    @field_validator("rename", "replace")
    @classmethod
    def _is_pattern(cls, text: str | None) -> str | None:
        try:
            re.compile(text or "")
        except re.error as error:
            raise ValueError(f"not a pattern: {error}") from error
        return text

    @model_validator(mode="after")
    def _does_one_thing(self) -> NormalFormRule:
        done = [self.drop, self.flatten, self.ids, self.rename, self.replace]
        if sum(bool(one) for one in done) != 1 or (self.replace is None) != (self.with_ is None):
            raise ValueError("a rule does one of drop, flatten, ids, rename, and replace with `with`")
        return self

    def holds(self, agent: str, api: str) -> bool:
        """Return whether the rule is for this agent and this dialect."""
        return (not self.agents or agent.removeprefix("acpx/") in self.agents) and (not self.apis or api in self.apis)


class DialectPlaces(Model):
    """Places in the bodies of one dialect, as selectors; `normalise.toml` documents them."""

    conversation: str
    frame: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class Rules(Model):
    """The content of `normalise.toml`."""

    dialect: dict[str, DialectPlaces]
    """Places, by dialect."""

    rule: tuple[NormalFormRule, ...]
    """All rules, in their order."""


@functools.cache
def all_rules() -> Rules:
    """Return the rules of `normalise.toml`."""
    text = resources.files(__package__).joinpath("normalise.toml").read_text(encoding="utf-8")
    return Rules.model_validate(tomllib.loads(text))


class Normaliser:
    """Computes normal forms of the bodies that one agent sends in one dialect.

    Attributes:
        conversation: Key of the body's conversation; None for a dialect without one.
        frame: Keys that must be equal, too, where one conversation is to begin with another.
    """

    def __init__(self, agent: str, api: str, rules: Rules | None = None) -> None:
        """Make it.

        Args:
            agent: Name of the agent in the registry.
            api: Dialect, as in a request line; for `other` and unknown ones, only rules for all dialects hold.
            rules: The rules; None: those of `normalise.toml`.
        """
        rules = rules or all_rules()
        mine = [rule for rule in rules.rule if rule.holds(agent, api)]
        places = rules.dialect.get(api)
        self.conversation = places.conversation if places else None
        self.frame = places.frame if places else ()
        self._results = Selectors.of(places.results if places else ())
        self._drop = Selectors.of(text for rule in mine for text in rule.drop)
        self._flatten = Selectors.of(text for rule in mine for text in rule.flatten)
        self._ids = [(rule.kind, Selectors.of(rule.ids)) for rule in mine if rule.ids]
        self._replace = [(re.compile(r.replace), r.with_ or "", r.in_) for r in mine if r.replace]
        self._rename = [(re.compile(rule.rename), rule.kind, rule.in_) for rule in mine if rule.rename]

    @classmethod
    def of(cls, agent: str, api: str) -> Normaliser:
        """Return the cached normaliser of an agent and a dialect."""
        return _normaliser(agent, api)

    def __call__(self, body: Any) -> Any:
        """Return the normal form of a parsed body, or of a text. The body is not changed."""
        bare = self._strip(body, self._drop, self._flatten, self._results, False)
        naming = _Naming(self._rename)
        for leaf in self._iter_texts(bare):
            naming.learn(*leaf)
        return self._rename_ids(bare, naming, self._ids, self._results, False, top=True)

    def _strip(self, value: Any, drop: Selectors, flatten: Selectors, results: Selectors, inside: bool) -> Any:
        """Return the value without noise. `inside`: whether it is in the result of a tool."""
        if isinstance(value, str):
            return self._text(value, inside)
        made: list[tuple[Any, Any]] = []
        for key, item in _members(value):
            dropped, drop_below = drop.down(key, item)
            if dropped:
                continue
            flat, flatten_below = flatten.down(key, item)
            result, results_below = results.down(key, item)
            item = self._strip(item, drop_below, flatten_below, results_below, inside or result)
            made.append((key, _flatten_block(item) if flat else item))
        return _rebuild(value, made)

    def _text(self, text: str, inside: bool) -> str:
        """Return a text with its noise replaced. `inside`: whether it is in the result of a tool."""
        if _is_data(text):
            return text
        for pattern, replacement, where in self._replace:
            if where is None or inside:
                text = pattern.sub(replacement, text)
        return text

    def _iter_texts(self, body: Any) -> Iterator[tuple[str, str | None, bool]]:
        """Yield every text in order, its kind if all of it is an identifier, and whether it is in a tool's result."""
        if isinstance(body, str):
            yield body, None, False
        stack = [(body, self._ids, self._results, False, True)]
        while stack:
            value, ids, results, inside, top = stack.pop()
            below: list[Any] = []
            for key, item in _members(value, self.conversation if top else None):
                kind, ids_below = _kind(ids, key, item)
                result, results_below = results.down(key, item)
                if isinstance(item, str):
                    yield item, kind, inside or result
                else:
                    below.append((item, ids_below, results_below, inside or result, False))
            stack += reversed(below)

    def _rename_ids(self, value: Any, naming: _Naming, ids: Any, results: Selectors, inside: bool, *, top: bool) -> Any:
        """Return the value with every learnt identifier renamed."""
        if isinstance(value, str):
            return naming.text(value, inside)
        made: list[tuple[Any, Any]] = []
        for key, item in _members(value, self.conversation if top else None):
            kind, ids_below = _kind(ids, key, item)
            result, results_below = results.down(key, item)
            if isinstance(item, str) and kind:
                made.append((key, naming.whole(item)))
            else:
                made.append(
                    (key, self._rename_ids(item, naming, ids_below, results_below, inside or result, top=False))
                )
        return _rebuild(value, made)


@functools.lru_cache(maxsize=256)
def _normaliser(agent: str, api: str) -> Normaliser:
    return Normaliser(agent, api)


class _Naming:
    """New names for identifiers. First all identifiers are learnt, then each is numbered at its first occurrence."""

    def __init__(self, patterns: Sequence[tuple[re.Pattern[str], str, str | None]]) -> None:
        self._patterns = patterns
        self._kinds: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, text: str, kind: str | None, inside: bool) -> None:
        """Learn an identifier of this kind; of a text without a kind, the identifiers that patterns find in it."""
        if kind:
            self._learn(text, kind)
        elif not _is_data(text):
            for _, _, id_, found in self._find(text, inside):
                self._learn(id_, found)

    def whole(self, id_: str) -> str:
        """Return the new name of a learnt identifier."""
        if id_ not in self._names:
            kind = self._kinds[id_]
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[id_] = f"⟦{kind}-{self._counts[kind]}⟧"
        return self._names[id_]

    def text(self, text: str, inside: bool) -> str:
        """Return the text with every learnt identifier renamed."""
        if _is_data(text):
            return text
        found = [(start, end, id_) for start, end, id_, _ in self._find(text, inside)]
        found += [(m.start(), m.end(), m[0]) for m in _TOKEN.finditer(text) if m[0] in self._kinds]
        parts, at = [], 0
        for start, end, id_ in sorted(found, key=lambda one: (one[0], -one[1])):
            if start >= at:
                parts += [text[at:start], self.whole(id_)]
                at = end
        return "".join([*parts, text[at:]]) if parts else text

    def _learn(self, id_: str, kind: str) -> None:
        named = _NAME.fullmatch(id_)
        self._kinds.setdefault(id_, named[1] if named else kind)

    def _find(self, text: str, inside: bool) -> Iterator[tuple[int, int, str, str]]:
        """Yield start, end, identifier and kind of everything in a text that a pattern matches."""
        for match in _NAME.finditer(text):
            yield match.start(), match.end(), match[0], match[1]
        for pattern, kind, where in self._patterns:
            if where is None or inside:
                group = "id" if "id" in pattern.groupindex else 0
                for match in pattern.finditer(text):
                    if "⟦" not in match[group] and match[group]:
                        yield *match.span(group), match[group], kind


def _kind(
    ids: list[tuple[str, Selectors]], key: str | int, item: Any
) -> tuple[str | None, list[tuple[str, Selectors]]]:
    """Return the kind of the value if it is an identifier, else None, and the selectors that remain below it."""
    kind: str | None = None
    below = []
    for name, selectors in ids:
        meant, rest = selectors.down(key, item)
        kind = kind or (name if meant else None)
        below.append((name, rest))
    return kind, below


def _members(value: Any, last: str | None = None) -> list[tuple[Any, Any]]:
    """Return members in the order of their names, or items in theirs. `last`: the member to put last."""
    if isinstance(value, dict):
        return sorted(value.items(), key=lambda member: (member[0] == last, member[0]))
    return list(enumerate(value)) if isinstance(value, list) else []


def _rebuild(value: Any, made: list[tuple[Any, Any]]) -> Any:
    """Return the made members as an object or an array, like the value; the value itself if it is neither."""
    if isinstance(value, dict):
        return dict(made)
    return [item for _, item in made] if isinstance(value, list) else value


def _flatten_block(value: Any) -> Any:
    """Return the text of a list that holds one text block and nothing else; any other value as it is."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and set(value[0]) == {"type", "text"}:
        return value[0]["text"] if value[0]["type"] == "text" else value
    return value


def _is_data(text: str) -> bool:
    """Return whether a string is an image or a file, not a text."""
    head = text[:_TEXT_HEAD]
    return len(text) > _DATA_SIZE and not any(space in head for space in " \n\t")


def canonical(form: Any) -> bytes:
    """Serialise a normal form: equal forms have equal bytes."""
    text = json.dumps(form, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    # Some agents cut an emoji in half: a lone surrogate cannot be encoded otherwise.
    return text.encode("utf-8", "surrogatepass")


def digest(form: Any) -> str:
    """Return the hex sha256 of a normal form."""
    return hashlib.sha256(canonical(form)).hexdigest()


def call_form(line: Mapping[str, Any], body: Any, agent: str) -> dict[str, Any]:
    """Return the normal form of a whole call.

    Args:
        line: The request line, as `RequestLine`.
        body: The body in the line, or as received if the line has none.
        agent: Name of the agent in the registry.
    """
    path = str(line["path"]).partition("?")[0]
    return {"call": f"{line['method']} {path}", "body": Normaliser.of(agent, str(line["api"]))(body)}
