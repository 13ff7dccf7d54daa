"""Options of a command that are made from the fields of a model: a field is declared once, and so is its help."""

from __future__ import annotations

import ast
import inspect
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union, get_args, get_origin

import typer

from benchflow.cli.command import BenchCommand

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_NONE_CLAUSE = re.compile(r"[;.] (?:None|Empty)(?: for|:) (.+?)(?:\.(?= |$)|$)")
"""Clause of a field's docstring with the meaning of None, or of an empty list."""


@dataclass(frozen=True)
class OptionFacts:
    """Facts about a field's option that only the command line has; all others are the model's."""

    metavar: str | None = None
    """Placeholder of the value; None for one that is made from the field's type or name."""

    flags: str | None = None
    """Spellings, separated by spaces, the long one last; None for one that is made from the field's name."""

    help: str | None = None
    """Help text; None for the field's docstring."""

    def spellings(self, key: str) -> list[str]:
        """Return the spellings of the option for the field `key`, the long one last."""
        return self.flags.split() if self.flags else ["--" + re.sub("[_.]", "-", key.removesuffix("_sec"))]


Panels = Mapping[str | None, Mapping[str, OptionFacts]]
"""Facts by heading of the help text, with None for the general one, and by field: `a.b` is the field `b` of the model
that is the field `a`."""


class ModelCommand(BenchCommand):
    """A command with an option for each field of a model, beside the parameters of its function.

    The function finds the given values in `typer.Context.obj`, by field.
    """

    panels: ClassVar[Panels]
    """Facts about the options, in the order of the help text."""

    other_panel: ClassVar[str]
    """Heading for the fields that are not in `panels`. They have an option, too, unless they are models themselves."""

    no_options: ClassVar[frozenset[str]] = frozenset()
    """Fields without an option."""

    @abstractmethod
    def model(self) -> type[BaseModel]:
        """Return the model. Called only when the command itself runs, because the import takes long."""

    @cached_property
    def _facts(self) -> dict[str, tuple[str | None, OptionFacts]]:
        """Return the heading and the facts of each option, by field."""
        model = self.model()
        facts = {key: (panel, each) for panel, fields in self.panels.items() for key, each in fields.items()}
        others = [key for key in model.model_fields if key not in self.no_options and _is_plain(model, key)]
        return facts | {key: (self.other_panel, OptionFacts()) for key in others if key not in facts}

    @cached_property
    def _options(self) -> dict[str, Any]:
        """Return the options by field, without their help texts."""
        parameters = [_make_parameter(self.model(), key, each, panel) for key, (panel, each) in self._facts.items()]

        def function() -> None: ...

        # Typer has no other public way to make options.
        vars(function)["__signature__"] = inspect.Signature(parameters)
        app = typer.Typer(add_completion=False)
        app.command()(function)
        return dict(zip(self._facts, typer.main.get_command(app).params, strict=True))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the model's fields, and the parameters of the function."""
        return [*self._options.values(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, move the values of the model's fields into `ctx.obj`, and return what is left."""
        rest = super().parse_args(ctx, args)
        values = {key: ctx.params.pop(option.name) for key, option in self._options.items()}
        ctx.obj = {
            key: not value if self._options[key].opts[-1].startswith("--no-") else value
            for key, value in values.items()
            if value not in (None, (), [])
        }
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help. Only now are docstrings read, which takes longer than many a command."""
        for key, option in self._options.items():
            option.help = _make_help(self.model(), key, self._facts[key][1].help)
        super().format_help(ctx, formatter)


def set_keys(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Set values by key, in place. A key `a.b` is the key `b` of the table `a`, whose other keys stay."""
    for key, value in given.items():
        table, _, name = key.rpartition(".")
        before = values.get(table)
        values |= {table: (before if isinstance(before, dict) else {}) | {name: value}} if table else {key: value}


def _find_field(model: type[BaseModel], key: str) -> tuple[type[BaseModel], FieldInfo, Any]:
    """Return the model that has a field, the field, and its type without None."""
    *tables, name = key.split(".")
    for table in tables:
        model = _find_field(model, table)[2]
    field = model.model_fields[name]
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    return model, field, kind


@cache
def _read_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the fields that a class declares.

    Pydantic's `use_attribute_docstrings` would read the source at each import of the model, in every process.
    """
    (tree,) = ast.parse(inspect.getsource(model)).body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(docstring.value).split())
        for field, docstring in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ())
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr)
    }


def _is_plain(model: type[BaseModel], key: str) -> bool:
    """Return whether a field's value can be written as an option without more ado."""
    kind = _find_field(model, key)[2]
    return kind in (bool, int, float, str, Path, list[str]) or get_origin(kind) is Literal


def _make_parameter(model: type[BaseModel], key: str, facts: OptionFacts, panel: str | None) -> inspect.Parameter:
    """Return the parameter of a function from which typer makes the option of a field."""
    _, field, kind = _find_field(model, key)
    flags, metavar = facts.spellings(key), facts.metavar
    # All other values are texts, which the model parses.
    value_type: Any = kind if kind in (bool, int, float) else list[str] if get_origin(kind) in (list, dict) else str
    limits = {}
    if kind is bool:
        flags = [re.sub("^--", "--no-", flag) for flag in flags] if field.default is True else flags
    elif kind is int:
        limits = {
            name: getattr(limit, name) for limit in field.metadata for name in ("ge", "le") if hasattr(limit, name)
        }
        metavar = metavar or "N"
    else:
        choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else None
        metavar = metavar or choices or re.split("[_.]", key)[-1].upper()
    option = typer.Option(
        None,
        *flags,
        metavar=metavar,
        min=limits.get("ge"),
        max=limits.get("le"),
        rich_help_panel=panel,
    )
    name = key.replace(".", "__")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=value_type | None)


def _make_help(model: type[BaseModel], key: str, text: str | None) -> str:
    """Return the help text of the option of a field: its docstring, or `text` in place of that, and the default."""
    model, field, kind = _find_field(model, key)
    if text is None:
        name = key.split(".")[-1]
        text = _read_docstrings(next(owner for owner in model.__mro__ if name in inspect.get_annotations(owner)))[name]
    text = text.replace("`", "").replace("[", r"\[").removeprefix("Whether ")
    default = None if isinstance(field.default, bool | list | dict) else field.default
    if clause := _NONE_CLAUSE.search(text):
        default = clause[1]
        text = f"{text[: clause.start()]}.{text[clause.end() :]}"
    text = f"{text[:1].upper()}{text[1:]}{' Repeatable.' if get_origin(kind) in (list, dict) else ''}"
    if not isinstance(default, str | int | float | Path):
        return text
    return f"{text} [dim]\\[default: {f'{default:g}' if isinstance(default, float) else default}][/dim]"
