"""The normal form of a call: what two runs that do the same have in common.

Some of what an agent sends is different each time and means nothing: identifiers, the day, marks for caches, how long a
command took. `normalise.toml` has it as data, for each agent and each dialect. In the normal form, noise is removed, or
stands as `⟦name⟧`; identifiers are `⟦kind-1⟧`, `⟦kind-2⟧` in the order in which they appear, the same one everywhere in
the body, so that who answers whom can still be seen. Everything else is as it was.

A form is the same whatever the order of members, and is its own normal form.
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
"""What an identifier looks like where it stands in a text, too long to be there by chance."""

_TEXT_HEAD = 1024
_DATA_SIZE = 4096
"""A string of this length without a space in its first characters is an image or a file, not a text."""


class Rule(Model):
    """One rule of `normalise.toml`, which says what its keys are."""

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
    def _does_one_thing(self) -> Rule:
        done = [self.drop, self.flatten, self.ids, self.rename, self.replace]
        if sum(bool(one) for one in done) != 1 or (self.replace is None) != (self.with_ is None):
            raise ValueError("a rule does one of drop, flatten, ids, rename, and replace with `with`")
        return self

    def holds(self, agent: str, api: str) -> bool:
        return (not self.agents or agent.removeprefix("acpx/") in self.agents) and (not self.apis or api in self.apis)


class DialectPlaces(Model):
    """Where things are in the bodies of one dialect; `normalise.toml` says what its keys are."""

    conversation: str
    frame: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class Rules(Model):
    """All of `normalise.toml`."""

    dialect: dict[str, DialectPlaces]
    rule: tuple[Rule, ...]


@functools.cache
def all_rules() -> Rules:
    """What lies beside this file."""
    text = resources.files(__package__).joinpath("normalise.toml").read_text(encoding="utf-8")
    return Rules.model_validate(tomllib.loads(text))


class Normaliser:
    """Makes normal forms of the bodies that one agent sends in one dialect.

    agent: its name in the registry. api: as in a request line; of `other` and of what is unknown, only identifiers and
    the like are known.
    """

    def __init__(self, agent: str, api: str, rules: Rules | None = None) -> None:
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
        """The same one each time."""
        return _normaliser(agent, api)

    def __call__(self, body: Any) -> Any:
        """The normal form of a parsed body, or of a text. The body itself stays as it is."""
        bare = self._bare(body, self._drop, self._flatten, self._results, False)
        naming = _Naming(self._rename)
        for leaf in self._leaves(bare):
            naming.learn(*leaf)
        return self._named(bare, naming, self._ids, self._results, False, top=True)

    def _bare(self, value: Any, drop: Selectors, flatten: Selectors, results: Selectors, inside: bool) -> Any:
        """Without noise. inside: whether this is in the result of a tool."""
        if isinstance(value, str):
            return self._text(value, inside)
        made: list[tuple[Any, Any]] = []
        for key, item in _members(value):
            dropped, drop_below = drop.down(key, item)
            if dropped:
                continue
            flat, flatten_below = flatten.down(key, item)
            result, results_below = results.down(key, item)
            item = self._bare(item, drop_below, flatten_below, results_below, inside or result)
            made.append((key, _flat(item) if flat else item))
        return _like(value, made)

    def _text(self, text: str, inside: bool) -> str:
        if _is_data(text):
            return text
        for pattern, replacement, where in self._replace:
            if where is None or inside:
                text = pattern.sub(replacement, text)
        return text

    def _leaves(self, body: Any) -> Iterator[tuple[str, str | None, bool]]:
        """Every text in its order: itself, of which kind an identifier it is as a whole, whether a result has it."""
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

    def _named(self, value: Any, naming: _Naming, ids: Any, results: Selectors, inside: bool, *, top: bool) -> Any:
        if isinstance(value, str):
            return naming.text(value, inside)
        made: list[tuple[Any, Any]] = []
        for key, item in _members(value, self.conversation if top else None):
            kind, ids_below = _kind(ids, key, item)
            result, results_below = results.down(key, item)
            if isinstance(item, str) and kind:
                made.append((key, naming.whole(item)))
            else:
                made.append((key, self._named(item, naming, ids_below, results_below, inside or result, top=False)))
        return _like(value, made)


@functools.lru_cache(maxsize=256)
def _normaliser(agent: str, api: str) -> Normaliser:
    return Normaliser(agent, api)


class _Naming:
    """New names for identifiers. First all are learnt, then each gets its number where it appears first."""

    def __init__(self, patterns: Sequence[tuple[re.Pattern[str], str, str | None]]) -> None:
        self._patterns = patterns
        self._kinds: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, text: str, kind: str | None, inside: bool) -> None:
        if kind:
            self._learn(text, kind)
        elif not _is_data(text):
            for _, _, id_, found in self._found(text, inside):
                self._learn(id_, found)

    def whole(self, id_: str) -> str:
        """The name of an identifier."""
        if id_ not in self._names:
            kind = self._kinds[id_]
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[id_] = f"⟦{kind}-{self._counts[kind]}⟧"
        return self._names[id_]

    def text(self, text: str, inside: bool) -> str:
        """The text with every identifier renamed."""
        if _is_data(text):
            return text
        found = [(start, end, id_) for start, end, id_, _ in self._found(text, inside)]
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

    def _found(self, text: str, inside: bool) -> Iterator[tuple[int, int, str, str]]:
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
    """Of which kind an identifier the value is, if it is one, and what may be one below it."""
    kind: str | None = None
    below = []
    for name, selectors in ids:
        meant, rest = selectors.down(key, item)
        kind = kind or (name if meant else None)
        below.append((name, rest))
    return kind, below


def _members(value: Any, last: str | None = None) -> list[tuple[Any, Any]]:
    """Members in the order of their names, items in theirs. last: the member that comes after the others."""
    if isinstance(value, dict):
        return sorted(value.items(), key=lambda member: (member[0] == last, member[0]))
    return list(enumerate(value)) if isinstance(value, list) else []


def _like(value: Any, made: list[tuple[Any, Any]]) -> Any:
    if isinstance(value, dict):
        return dict(made)
    return [item for _, item in made] if isinstance(value, list) else value


def _flat(value: Any) -> Any:
    """The text of a list with one block of nothing but text."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and set(value[0]) == {"type", "text"}:
        return value[0]["text"] if value[0]["type"] == "text" else value
    return value


def _is_data(text: str) -> bool:
    head = text[:_TEXT_HEAD]
    return len(text) > _DATA_SIZE and not any(space in head for space in " \n\t")


def canonical(form: Any) -> bytes:
    """A normal form as bytes: equal forms, equal bytes."""
    text = json.dumps(form, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    # Half a character, which some agents cut an emoji to, is no text in any encoding.
    return text.encode("utf-8", "surrogatepass")


def digest(form: Any) -> str:
    """What stands for a normal form."""
    return hashlib.sha256(canonical(form)).hexdigest()


def call_form(line: Mapping[str, Any], body: Any, agent: str) -> dict[str, Any]:
    """The normal form of a whole call. line: as `RequestLine`; body: as in the line, or what came, if it has none."""
    path = str(line["path"]).partition("?")[0]
    return {"call": f"{line['method']} {path}", "body": Normaliser.of(agent, str(line["api"]))(body)}
