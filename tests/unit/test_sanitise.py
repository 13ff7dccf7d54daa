"""What is left of a text before a terminal, a log or the Web UI shows it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile_text import HOSTILE, RAW

from benchflow.sanitise import (
    MAX_MARKS,
    SUBSTITUTE,
    dump_sanitised_json,
    sanitise,
    sanitise_line,
    sanitise_log,
    sanitise_markdown,
)

ODD = "".join(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))) + (
    "\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\u206a"
    "\u2800\u3164\ufe0f\ufeff\uffa0\ufff9\ud800\udfff\U000e0001\U000e0041\U000e0100"
)
TEXTS = st.text(
    st.one_of(
        st.characters(), st.characters(categories=["Cs", "Cf", "Cc", "Mn"]), st.sampled_from(ODD + "a[;m]\\1❤👩🏽बم")
    )
)
EVERY = [sanitise, sanitise_line, sanitise_log, sanitise_markdown]

PROPERTIES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
"""The same examples in every run: a test of this lane is no search."""


def is_shown(char: str) -> bool:
    """Return whether a character may stand anywhere in what a terminal receives."""
    kind = unicodedata.category(char)
    return char in "\n\t" or (kind not in ("Cc", "Cs", "Zl", "Zp") and RAW.match(char) is None)


@pytest.mark.parametrize("function", EVERY)
@PROPERTIES
@given(text=TEXTS)
def test_no_control_is_left_and_nothing_changes_when_it_is_done_again(function, text: str) -> None:  # type: ignore[no-untyped-def]
    found = function(text)
    assert all(map(is_shown, found)), found
    assert sanitise(found) == found
    if function in (sanitise_line, sanitise_markdown):
        assert len(found.splitlines()) <= 1


@PROPERTIES
@given(text=TEXTS)
def test_a_character_stands_for_a_character(text: str) -> None:
    assert len(sanitise(text)) == len(sanitise_line(text)) == len(text)
    assert len(sanitise_log(text)) <= 2 * len(text)


@PROPERTIES
@given(text=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_letters_digits_punctuation_and_symbols_of_every_script_are_unchanged(text: str) -> None:
    text = "".join(char for char in text if char not in "\u115f\u1160\u3164\uffa0")
    assert sanitise(text) == sanitise_line(text) == sanitise_log(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "שלום, مرحبا بالعالم",
        "می‌خواهم",
        "क्‍ष श्री",
        "ไม่มีปัญหา",
        "👨‍👩‍👧 ❤️‍🔥 1️⃣ 👍🏽 🇪🇺",
        "日本語 ｶﾞ 葛󠄀",
        "naïve \u0065\u0301 ✓ │ ├─",
    ],
)
def test_ordinary_text_with_joiners_selectors_and_marks_is_unchanged(text: str) -> None:
    assert sanitise(text) == text


def test_what_was_replaced_can_be_seen() -> None:
    assert sanitise("\x1b]0;t\x07\x00\x7f") == "␛]0;t␇␀␡"
    for char in "\x9b\x85\u061c\u200e\u202e\u2066\u2028\u2029\u200b\ufeff\u2060\u00ad\u3164\ud800\U000e0041":
        assert sanitise(f"a{char}b") == f"a{SUBSTITUTE}b"


def test_a_raw_byte_of_c1_is_replaced_however_it_was_decoded() -> None:
    for text in (b"\x9b31m".decode("latin-1"), b"\x9b31m".decode(errors="surrogateescape"), b"\xc2\x9b31m".decode()):
        assert sanitise(text) == f"{SUBSTITUTE}31m"


def test_an_invisible_character_makes_no_second_name_that_looks_the_same() -> None:
    for char in "\u200c\u200d\ufe0f\U000e0100":
        assert sanitise(f"pass{char}ed") == f"pass{SUBSTITUTE}ed"


def test_combining_marks_do_not_pile_up() -> None:
    assert sanitise("e" + "\u0301" * 50) == "e" + "\u0301" * MAX_MARKS + SUBSTITUTE * (50 - MAX_MARKS)


def test_a_line_shows_its_line_ends() -> None:
    assert sanitise_line("a\nb\r\nc\td") == "a␤b␍␤c d"


def test_the_log_of_colours_and_of_a_progress_bar_stays_readable() -> None:
    assert sanitise_log("\x1b[1;31mFAILED\x1b[0m one\r\n10%\r\x1b[2K20%\rdone\n") == "␛FAILED␛ one\n10%␍\n␛20%␍\ndone\n"
    # Removing one sequence must not make another of what is around it.
    assert sanitise_log("\x1b[\x1b[31m31m") == "␛[␛31m"


@PROPERTIES
@given(value=st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_json_is_the_same_data_without_a_control(value: object) -> None:
    for indent in (None, 2):
        text = dump_sanitised_json(value, indent=indent)
        assert json.loads(text) == value
        assert RAW.search(text) is None
        text.encode()


def test_json_of_any_script_stays_readable() -> None:
    assert dump_sanitised_json({"ä": "日本語 שלום"}) == '{"ä": "日本語 שלום"}'


@pytest.mark.parametrize(
    "text",
    [
        "[here](https://evil.example)",
        "<img src=x onerror=alert(1)>",
        "https://evil.example",
        "www.evil.example",
        "WWW.evil.example",
        "me@evil.example",
        "`<b>` | **x**",
        "a\n\n# forged\n| x |",
        HOSTILE,
    ],
)
def test_in_markdown_nothing_is_interpreted(text: str) -> None:
    found = sanitise_markdown(text)
    assert found[0] == found[-1] == "`"
    assert not set("`|\n") & set(found[1:-1])


def test_a_plain_name_in_markdown_is_itself() -> None:
    for text in ("archive-newsletters", "org/name 3", "step 2 of 4: done", ""):
        assert sanitise_markdown(text) == text
