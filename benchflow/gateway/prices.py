"""The cost of a call, from the table of published prices in `prices.toml`."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import CallUsage

_VERSION = re.compile(r"-(?:20\d{6}|20\d\d-\d\d-\d\d|latest)", re.ASCII)
"""Suffixes that providers give to versions of a model, which cost the same as the model."""


class Price(Model):
    """One row of `prices.toml`, in USD per million tokens."""

    models: tuple[str, ...] = Field(min_length=1)
    """Models that the row prices, with their versions."""

    input: float = Field(ge=0)
    """Input tokens that are neither read from nor written to a cache."""

    cached: float = Field(ge=0)
    """Input tokens read from a cache."""

    output: float = Field(ge=0)
    """Output tokens."""

    cache_write: float | None = Field(default=None, ge=0)
    """Input tokens written to a cache; None: the price of `input`."""

    above: int | None = None
    """Number of input tokens of a call above which the row holds; None for any number."""


class PriceTable(Model):
    """The content of `prices.toml`."""

    web_search: float = Field(ge=0)
    """USD for a thousand searches by the endpoint's own web search tool."""
    hour_cache_write: float = Field(ge=0)
    """Price of input written to a cache for an hour, as a multiple of the price of other input."""
    price: tuple[Price, ...]
    """Rows, in the order in which they are tried."""


@functools.cache
def price_table() -> PriceTable:
    """Return the table of published prices."""
    text = resources.files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    return PriceTable.model_validate(tomllib.loads(text))


def _rows(model: str) -> tuple[Price, ...]:
    """Return the rows that price a model."""
    return tuple(row for row in price_table().price if any(_is_version(model, name) for name in row.models))


def _is_version(model: str, name: str) -> bool:
    """Return whether a model is the named one, or a version of it."""
    # Agents choose the model's name: one that only begins with a priced name may be that of a dearer model.
    return model.startswith(name) and (model == name or _VERSION.fullmatch(model, len(name)) is not None)


def has_price(model: str) -> bool:
    """Return whether the table has a price of a model. `model` is the name exactly as the endpoint is asked for it."""
    return bool(_rows(model))


def cost(model: str | None, usage: CallUsage) -> float | None:
    """Return the cost of one call in USD; None if the model is None or has no known price."""
    table = price_table()
    for row in _rows(model) if model else ():
        if row.above is None or usage.input_tokens > row.above:
            write = row.input if row.cache_write is None else row.cache_write
            fresh = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
            spent = fresh * row.input + usage.cached_tokens * row.cached + usage.cache_write_tokens * write
            spent += usage.hour_cache_write_tokens * (table.hour_cache_write * row.input - write)
            spent += usage.web_searches * table.web_search * 1e3
            return (spent + usage.output_tokens * row.output) / 1e6
    return None
