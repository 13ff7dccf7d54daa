"""What calls cost, by the table of prices."""

from __future__ import annotations

import pytest

from benchflow.contracts.gateway import CallUsage
from benchflow.gateway.prices import cost, has_price, price_table


def test_every_price_is_of_a_model_that_no_earlier_row_hides() -> None:
    rows = price_table().price
    for number, row in enumerate(rows):
        earlier = {pattern for other in rows[:number] if other.above is None for pattern in other.models}
        assert not earlier & set(row.models)
        assert 0 < row.cached < row.input < row.output


def test_dated_names_have_the_price_of_their_model_and_others_have_none() -> None:
    usage = CallUsage(input_tokens=1_000_000, output_tokens=1_000_000)
    assert cost("claude-sonnet-4-5-20250929", usage) == cost("claude-sonnet-4-5", usage) == 18.0
    assert cost("claude-opus-4-1-20250805", usage) == 90.0
    assert cost("gpt-4o-mini-2024-07-18", usage) == pytest.approx(0.75)
    assert has_price("claude-3-5-haiku-latest")
    assert cost(None, usage) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "gpt-4o-audio-preview",
            "GPT-4o",
            " gpt-4o",
            "gpt-4o ",
            "gpt-4o\n",
            "ft:gpt-4o:x",
            "gpt-4o-*",
            "gpt-4*",
            "*",
            "",
        ),
        *(
            "gpt-4o-2024-08-06-dear",
            "gpt-4o-20240806x",
            "gpt-4o-2024-8-6",
            "gpt-4o-latest-latest",
            "gpt-4o-\u0662024-08-06",
        ),
        *("claude-haiku-4-5,claude-opus-4-1", "claude-opus-4-5-fast", "gemini-3.1-pro-dear", "models/gemini-2.5-pro"),
    ],
)
def test_a_name_that_only_looks_like_a_priced_one_has_no_price(name: str) -> None:
    assert not has_price(name)


def test_long_prompts_have_their_own_price_and_cache_writes_theirs() -> None:
    short = CallUsage(input_tokens=200_000, output_tokens=0)
    long = CallUsage(input_tokens=200_001, output_tokens=0)
    assert cost("gemini-2.5-pro", short) == pytest.approx(0.25)
    assert cost("gemini-2.5-pro", long) == pytest.approx(0.5, rel=1e-4)
    for_an_hour = CallUsage(input_tokens=1000, cache_write_tokens=600, hour_cache_write_tokens=500)
    assert cost("claude-haiku-4-5", for_an_hour) == pytest.approx((400 * 1.0 + 100 * 1.25 + 500 * 2.0) / 1e6)
    assert cost("gpt-5.5", CallUsage(web_searches=3)) == pytest.approx(0.03)
    written = CallUsage(input_tokens=1000, cached_tokens=300, cache_write_tokens=600)
    assert cost("claude-haiku-4-5", written) == pytest.approx((100 * 1.0 + 300 * 0.1 + 600 * 1.25) / 1e6)
