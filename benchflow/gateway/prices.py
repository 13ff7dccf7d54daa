"""What a call costs, from the table of published prices beside this file."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import CallUsage

_VERSION = re.compile(r"-(?:20\d{6}|20\d\d-\d\d-\d\d|latest)", re.ASCII)
"""The endings of names that providers give to versions of a model, which cost what the model does."""


class Price(Model):
    """One row of `prices.toml`, in USD per million tokens; the file says what its columns are."""

    models: tuple[str, ...] = Field(min_length=1)
    input: float = Field(ge=0)
    cached: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_write: float | None = Field(default=None, ge=0)
    above: int | None = None


class PriceTable(Model):
    """The whole of `prices.toml`."""

    web_search: float = Field(ge=0)
    """USD for a thousand searches of the web by the endpoint's own tool."""
    hour_cache_write: float = Field(ge=0)
    """The price of input written to a cache for an hour, in prices of other input."""
    price: tuple[Price, ...]
    """The rows, in the order in which they are tried."""


@functools.cache
def price_table() -> PriceTable:
    """Return the table of published prices."""
    text = resources.files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    return PriceTable.model_validate(tomllib.loads(text))


def _rows(model: str) -> tuple[Price, ...]:
    return tuple(row for row in price_table().price if any(_is_version(model, name) for name in row.models))


def _is_version(model: str, name: str) -> bool:
    # Agents choose the names that they ask with: one that only begins with a priced name may be a dearer model's.
    return model.startswith(name) and (model == name or _VERSION.fullmatch(model, len(name)) is not None)


def has_price(model: str) -> bool:
    """Return whether the table has a price of a model. model: exactly as the endpoint is asked for it."""
    return bool(_rows(model))


def cost(model: str | None, usage: CallUsage) -> float | None:
    """USD of one call; None for a model without a known price."""
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
