"""Whether a turn's model was kept from answering, by the record of its calls."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.gateway import (
    CallError,
    CallTiming,
    CallUsage,
    RefusedLine,
    RequestLine,
    ResponseLine,
    RetryNote,
)
from benchflow.gateway.turn_calls import TurnCalls, TurnEnd

ANSWER = json.dumps({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]})
EMPTY = json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]})


class Record:
    """A record as the gateway writes it, call by call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def append(self, line: dict[str, Any], last: str) -> None:
        # The body is the last member of a line.
        body = line.pop(last, None)
        with self.path.open("a") as file:
            file.write(json.dumps(line | {last: body}) + "\n")

    def ask(self, *, side: bool = False, ago_sec: float = 0.0, model: str = "some-model") -> str:
        """Begin a call."""
        self._number += 1
        began = (datetime.now(UTC) - timedelta(seconds=ago_sec)).isoformat(timespec="milliseconds")
        request = RequestLine(
            id=f"call-{self._number}",
            seq=self._number,
            ts=began.replace("+00:00", "Z"),
            node="n1",
            role="agent",
            turn=0,
            side=side,
            side_reason="title" if side else None,
            api="openai-chat",
            method="POST",
            path="/v1/chat/completions",
            model=model,
            stream=False,
            sampling_applied=None,
            source="live",
        )
        self.append(request.model_dump(exclude={"request_text"}), "request")
        return request.id

    def answer(
        self,
        id_: str,
        status: int | None = 200,
        text: str | None = ANSWER,
        *,
        error: str | None = None,
        waited_sec: float = 0.1,
        began_sec: float | None = None,
        retries: tuple[RetryNote, ...] = (),
        is_waiting: bool = False,
        output_tokens: int | None = None,
        finish: str | None = None,
        content_type: str = "application/json",
    ) -> None:
        """End a call. error: kind of what was wrong; began_sec: when the endpoint began to answer."""
        response = ResponseLine(
            id=id_,
            ts=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            status=status,
            headers={"content-type": content_type},
            finish_reason=finish,
            error=CallError(kind=error, message=f"it is {error}") if error is not None else None,
            retries=list(retries),
            is_waiting=is_waiting,
            usage=CallUsage(output_tokens=output_tokens) if output_tokens is not None else None,
            timing=CallTiming(
                total_ms=1000 * waited_sec, upstream_first_byte_ms=None if began_sec is None else 1000 * began_sec
            ),
            response=text,
        )
        self.append(response.model_dump(exclude={"response_base64"}), "response")

    def refuse(self, path: str) -> None:
        self.append(RefusedLine(method="POST", path=path, count=1, ts="2026-01-01T00:00:00.000Z").model_dump(), "ts")

    def problem(
        self, ended_by: Any = "agent", limit_sec: float = 600.0, *, fails: bool = False, **silent: float
    ) -> str | None:
        """Return the kind of the problem, with the status if there is one. fails: the agent ended by an error."""
        calls = TurnCalls(self.path, 0)
        calls.read()
        found = calls.find_problem(
            TurnEnd(ended_by, limit_sec, fails), {id_.replace("_", "-"): sec for id_, sec in silent.items()}
        )
        return None if found is None else f"{found.kind} {found.status or ''}".strip()


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "llm_trajectory.jsonl")


def failed(record: Record, status: int = 500, message: str = "out of order") -> None:
    body = json.dumps({"error": {"message": message}})
    record.answer(record.ask(), status, body, error="upstream_status")


def test_a_turn_without_calls_says_nothing_against_the_endpoint(record: Record) -> None:
    assert record.problem() is None


def test_a_turn_whose_limit_came_before_its_first_call_has_measured_nothing(record: Record) -> None:
    assert record.problem("idle") == record.problem("wall_clock") == "no_call"


def test_served_calls_are_no_problem(record: Record) -> None:
    failed(record)
    record.answer(record.ask())
    assert record.problem() is None


def test_the_last_calls_decide_where_others_were_served(record: Record) -> None:
    record.answer(record.ask())
    failed(record, 401)
    assert record.problem() == "upstream_status 401"


def test_empty_answers_are_a_problem_only_where_there_are_no_others(record: Record) -> None:
    record.answer(record.ask(), text=EMPTY)
    assert record.problem() == "empty"
    record.answer(record.ask())
    record.answer(record.ask(), text=EMPTY)
    assert record.problem() is None


def test_a_model_that_ends_at_once_has_spoken(record: Record) -> None:
    record.answer(record.ask(), text=EMPTY, output_tokens=1)
    assert record.problem() is None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"tool_calls": []}, "empty"),
        ({"tool_calls": [{"function": {"name": "run"}}]}, None),
        ({"reasoning": "I think."}, None),
        ({"refusal": "I will not."}, None),
        ({"refusal": None, "content": None}, "empty"),
    ],
)
def test_what_an_answer_has_beside_a_text_counts(record: Record, message: dict[str, Any], problem: str | None) -> None:
    record.answer(record.ask(), text=json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}))
    assert record.problem() == problem


def test_an_answer_without_its_end_was_said(record: Record) -> None:
    record.answer(record.ask(), error="incomplete")
    assert record.problem() is None


def test_a_conversation_that_became_too_long_is_the_agents_own_failure(record: Record) -> None:
    failed(record, 400, "This model's maximum context length is 8192 tokens")
    assert record.problem() == "upstream_status 400"
    record.answer(record.ask())
    failed(record, 400, "This model's maximum context length is 8192 tokens")
    assert record.problem() is None


@pytest.mark.parametrize("kind", ["budget_exhausted", "replay_diverged"])
def test_limits_have_errors_of_their_own(record: Record, kind: str) -> None:
    record.answer(record.ask(), 402, None, error=kind)
    assert record.problem() is None


@pytest.mark.parametrize("kind", ["stalled", "truncated", "unreachable", "missing_secret", "unusable"])
def test_an_answer_that_is_none_is_a_problem(record: Record, kind: str) -> None:
    record.answer(record.ask())
    record.answer(record.ask(), 200, "half", error=kind)
    assert record.problem() == kind


def left(record: Record, waited_sec: float, began_sec: float | None = None, **more: Any) -> None:
    record.answer(record.ask(), None, None, error="client_closed", waited_sec=waited_sec, began_sec=began_sec, **more)


def test_one_call_that_the_agent_left_is_its_own_business_where_others_were_served(record: Record) -> None:
    record.answer(record.ask())
    left(record, 300)
    assert record.problem() is None


def test_calls_that_the_agent_left_one_after_another_are_a_problem(record: Record) -> None:
    record.answer(record.ask())
    left(record, 20)
    left(record, 20)
    assert record.problem() == "unanswered"
    record.answer(record.ask())
    assert record.problem() is None


def test_an_agent_that_served_nothing_but_left_its_calls_has_measured_nothing(record: Record) -> None:
    left(record, 5)
    assert record.problem() == "unanswered"
    # It may have died for another reason.
    assert record.problem(fails=True) is None
    left(record, 40)
    assert record.problem(fails=True) == "unanswered"


def test_an_agent_that_dies_in_a_healthy_stream_is_not_its_models_failure(record: Record) -> None:
    record.answer(record.ask())
    left(record, 45, began_sec=1)
    assert record.problem(fails=True) is None


def test_what_the_gateway_tried_before_the_agent_left_counts(record: Record) -> None:
    retries = (RetryNote(status=None, waited_sec=1), RetryNote(status=429, waited_sec=1, words="slow down"))
    left(record, 3, retries=retries, is_waiting=True)
    assert record.problem() == "upstream_status 429"


def test_an_attempt_that_is_served_after_a_retry_is_no_failure(record: Record) -> None:
    record.answer(record.ask())
    left(record, 40, began_sec=2, retries=(RetryNote(status=429, waited_sec=1, words="slow down"),))
    assert record.problem("wall_clock", 3600) is None


@pytest.mark.parametrize(("limit_sec", "problem"), [(600, "unanswered"), (3600, None)])
@pytest.mark.parametrize("ended_by", ["idle", "wall_clock"])
def test_a_call_without_a_word_for_half_of_the_limit_is_a_problem(
    record: Record, ended_by: str, limit_sec: float, problem: str | None
) -> None:
    record.answer(record.ask())
    left(record, 310)
    assert record.problem(ended_by, limit_sec) == problem


@pytest.mark.parametrize(("silent_sec", "problem"), [(2, None), (310, "unanswered")])
def test_a_call_under_way_counts_by_the_silence_of_its_endpoint(
    record: Record, silent_sec: float, problem: str | None
) -> None:
    record.answer(record.ask(ago_sec=1000))
    record.ask(ago_sec=900)
    assert record.problem("wall_clock", 600, call_2=silent_sec) == problem


def test_a_call_that_the_agent_left_long_ago_is_not_why_the_turn_ended(record: Record) -> None:
    record.answer(record.ask(ago_sec=1000))
    record.ask(ago_sec=900)
    record.answer(record.ask(ago_sec=10))
    assert record.problem("wall_clock", 600) is None
    assert record.problem() is None


def test_side_calls_count_only_where_there_are_no_others(record: Record) -> None:
    record.answer(record.ask(side=True), 401, "{}", error="upstream_status")
    assert record.problem() == "upstream_status 401"
    record.answer(record.ask())
    record.answer(record.ask(side=True), 401, "{}", error="upstream_status")
    assert record.problem() is None


def test_an_agent_whose_calls_offer_no_tools_is_judged_like_any_other(record: Record) -> None:
    record.answer(record.ask(side=True))
    assert record.problem("wall_clock") is record.problem("idle") is record.problem() is None
    record.answer(record.ask(side=True), 400, '{"error": {"message": "too long"}}', error="upstream_status")
    assert record.problem() is None
    record.answer(record.ask(side=True), 503, "{}", error="upstream_status")
    assert record.problem() == "upstream_status 503"


def test_requests_that_are_not_passed_on_are_named_where_there_are_no_calls(record: Record) -> None:
    record.refuse("/v1/realtime")
    assert record.problem() == "not_allowed"
    record.answer(record.ask())
    assert record.problem() is None


def test_calls_of_earlier_turns_do_not_count(record: Record) -> None:
    record.answer(record.ask())
    calls = TurnCalls(record.path, record.path.stat().st_size)
    failed(record, 503)
    calls.read()
    found = calls.find_problem(TurnEnd())
    assert found is not None
    assert (found.status, found.words, found.model) == (503, "out of order", "some-model")


def test_half_a_line_is_left_to_the_next_time(record: Record) -> None:
    failed(record)
    whole = record.path.read_bytes()
    record.path.write_bytes(whole[:-20])
    calls = TurnCalls(record.path, 0)
    calls.read()
    assert calls.failing_sec == 0
    record.path.write_bytes(whole)
    calls.read()
    assert calls.find_problem(TurnEnd()) is not None


@pytest.mark.parametrize("kind", ["unpriced", "unreadable", "too_large"])
def test_what_the_gateway_refuses_of_an_agent_is_the_agents_own_failure(record: Record, kind: str) -> None:
    record.answer(record.ask(), 400, None, error=kind)
    assert record.problem() == kind
    record.answer(record.ask())
    record.answer(record.ask(), 400, None, error=kind)
    assert record.problem() is None


def test_calls_fail_for_as_long_as_at_least_two_did_in_a_row(record: Record) -> None:
    def failing_sec() -> float:
        calls = TurnCalls(record.path, 0)
        calls.read()
        return calls.failing_sec

    record.answer(record.ask(ago_sec=300), 500, "{}", error="upstream_status")
    assert failing_sec() == 0
    record.answer(record.ask(ago_sec=10), 500, "{}", error="upstream_status")
    assert 299 < failing_sec() < 310
    record.ask(ago_sec=5)
    record.answer(record.ask())
    assert failing_sec() == 0
    record.answer(record.ask(ago_sec=0), 400, "{}", error="upstream_status")
    record.answer(record.ask(ago_sec=0), 400, "{}", error="upstream_status")
    assert failing_sec() == 0


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_agent_cannot_avoid_its_score_by_a_wrong_request(record: Record, status: int) -> None:
    record.answer(record.ask())
    failed(record, status, "what is this?")
    assert record.problem() is None


def test_an_agent_cannot_avoid_its_score_by_asking_for_another_model(record: Record) -> None:
    record.answer(record.ask())
    body = json.dumps({"error": {"message": "the model other does not exist"}})
    for status in (404, 503):
        record.answer(record.ask(model="other"), status, body, error="upstream_status")
        assert record.problem() is None
    record.answer(record.ask(), 404, body, error="upstream_status")
    assert record.problem() == "upstream_status 404"


def test_a_session_that_does_not_open_has_asked_for_what_it_needs(record: Record) -> None:
    record.answer(record.ask(side=True), None, None, error="client_closed", waited_sec=5)
    assert record.problem("opening") == "unanswered"
    record.answer(record.ask(), None, None, error="client_closed", waited_sec=5)
    assert record.problem("opening") == "unanswered"
    record.answer(record.ask())
    assert record.problem("opening") is None


STREAM = "text/event-stream"
TOLD_ERRORS = {
    "chat": ("application/json", '{"error": {"message": "overloaded", "code": 503}}'),
    "text": ("application/json", '{"error": "overloaded"}'),
    "choice": ("application/json", '{"choices": [{"finish_reason": "error", "error": {"message": "overloaded"}}]}'),
    "chat-stream": (
        STREAM,
        'data: {"choices": [{"delta": {"content": "I"}}]}\n\ndata: {"error": {"message": "overloaded"}}\n\n',
    ),
    "anthropic": (STREAM, 'event: error\ndata: {"type": "error", "error": {"message": "overloaded"}}\n\n'),
    "responses": (STREAM, 'data: {"type": "response.failed", "response": {"error": {"message": "overloaded"}}}\n\n'),
}
"""Answers with status 200 that hold an error, as their content type and text."""


@pytest.mark.parametrize("answer", TOLD_ERRORS.values(), ids=TOLD_ERRORS)
def test_an_error_in_the_place_of_an_answer_is_a_problem_in_its_own_words(
    record: Record, answer: tuple[str, str]
) -> None:
    content_type, text = answer
    record.answer(record.ask())
    record.answer(record.ask(), text=text, finish="error", content_type=content_type)
    calls = TurnCalls(record.path, 0)
    calls.read()
    found = calls.find_problem(TurnEnd())
    assert found is not None
    assert (found.kind, found.words.partition(" (")[0]) == ("told_error", "overloaded")


@pytest.mark.parametrize("finish", ["abort", "network_error", "insufficient_system_resource", "failed"])
def test_an_answer_that_the_server_broke_off_is_a_problem_in_any_turn(record: Record, finish: str) -> None:
    for _ in range(2):
        record.answer(record.ask(), text=EMPTY, finish=finish)
        assert record.problem() == "told_error"
        record.answer(record.ask())
        assert record.problem() is None


def test_an_empty_answer_with_an_end_that_nobody_knows_is_empty(record: Record) -> None:
    record.answer(record.ask(), text=EMPTY, finish="who_knows")
    assert record.problem() == "empty"


NO_ANSWERS = [
    {"status": 503, "text": "Service Unavailable"},
    {"code": 50001, "success": False, "content": "upstream overloaded"},
    {"ok": False, "errors": [{"text": "model is loading"}]},
    {"error_msg": "bad gateway", "request": {"messages": [{"content": "hello", "tool_calls": [{"id": "1"}]}]}},
    {"message": "forbidden", "output": "", "response": "no"},
]


@pytest.mark.parametrize("body", NO_ANSWERS, ids=[str(number) for number in range(len(NO_ANSWERS))])
def test_what_has_not_the_form_of_an_answer_is_none_whatever_texts_it_has(record: Record, body: Any) -> None:
    record.answer(record.ask(), text=json.dumps(body), error="incomplete")
    assert record.problem() == "incomplete 200" or record.problem() == "incomplete"
    record.answer(record.ask())
    record.answer(record.ask(), text=json.dumps(body), error="incomplete")
    assert record.problem() is not None


def test_blanks_are_no_content(record: Record) -> None:
    blank = {"choices": [{"message": {"content": " \n "}, "finish_reason": "stop"}]}
    record.answer(record.ask(), text=json.dumps(blank), finish="stop")
    assert record.problem() == "empty"


@pytest.mark.parametrize(("status", "body"), [(404, "<html>404 Not Found</html>"), (405, "no healthy backend")])
def test_a_proxy_that_has_lost_the_endpoint_is_no_wrong_request_of_the_agents(
    record: Record, status: int, body: str
) -> None:
    record.answer(record.ask())
    record.answer(record.ask(), status, body, error="upstream_status")
    assert record.problem() == f"upstream_status {status}"
    record.answer(record.ask())
    record.answer(record.ask(), status, json.dumps({"error": {"message": "no such response"}}), error="upstream_status")
    assert record.problem() is None


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal", "max_tokens"])
def test_an_answer_that_a_filter_or_a_limit_ended_is_the_models_own(record: Record, finish: str) -> None:
    record.answer(record.ask(), text=EMPTY, finish=finish)
    assert record.problem() is None
