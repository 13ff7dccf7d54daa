"""Values are taken out of whatever an agent says, however it is written and wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchflow.secrets import Redactor


def test_a_line_of_json_stays_one_whatever_is_taken_out() -> None:
    redact = Redactor({"NUMBER": "12345678", "TEXT": 'with "quotes"'})
    line = json.dumps(
        {"n": 12345678, "12345678": ["12345678", 123456789, None, True], "nested": '{"t": "with \\"quotes\\""}'}
    )
    assert json.loads(redact.line(line)) == {
        "n": "[NUMBER]",
        "[NUMBER]": ["[NUMBER]", "[NUMBER]9", None, True],
        "nested": '{"t": "[TEXT]"}',
    }
    assert redact.line('{"n":  1}') == '{"n":  1}'


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_value_is_found_in_json_within_json(depth: int) -> None:
    content: Any = 'a line\nwith "quotes" and ünïcode'
    redact = Redactor({"TEXT": content})
    for _ in range(depth):
        content = json.dumps({"inner": content})
    assert "[TEXT]" in redact(content) and "code" not in redact(content)


def test_each_line_of_a_key_in_a_file_of_credentials_is_a_value() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    redact = Redactor({"~/.acme/login.json": json.dumps({"private_key": pem})})
    assert redact("read: hkiG9w0BAQEFAASC") == "read: [~/.acme/login.json]"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("of-the-key, and more", "[KEY], and more"),
        ("and the-first-half-of…", "and [KEY]…"),
        ("the-first-half-of-the-key", "[KEY]"),
        ("the key", "the key"),
    ],
)
def test_half_a_value_is_found_at_the_ends_of_what_was_cut(text: str, cleaned: str) -> None:
    assert Redactor({"KEY": "the-first-half-of-the-key"}).cut(text) == cleaned
