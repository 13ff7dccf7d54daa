"""The check of a model before a job starts: each way to be refused has its own sentence, in every dialect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.failing_endpoints import NOBODY
from support.gateway_fixture import APIS
from support.raw_upstream import Visit, answer, raw_upstream

from benchflow.contracts.gateway import Api
from benchflow.gateway import model_probe
from benchflow.gateway.endpoint_errors import CallProblem, endpoint_error
from benchflow.paths import StatePaths
from benchflow.testing.scripted_model import Reply, ScriptedModel

KEY_NAME = "BF_TEST_PREFLIGHT_KEY"
KEY = "the-key-of-the-preflight"
MODEL = "scripted"

REFUSALS = {
    (401, "nothing is known of this key"): "the endpoint refuses",
    (400, "API key not valid. Please pass a valid API key."): "the endpoint refuses",
    (404, "the model `x` does not exist"): "the endpoint does not know the model 'scripted'",
    (404, "page not found"): "the endpoint has nothing at the address",
    (429, "You exceeded your current quota, please check your plan"): "the quota of",
    (400, "Your credit balance is too low"): "the quota of",
}
"""What an endpoint answers, and what the error says."""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    # Three attempts take seconds otherwise.
    monkeypatch.setattr(model_probe, "FIRST_WAIT_SEC", 0.01)


async def ask(tmp_path: Path, api: Api, base_url: str) -> CallProblem | None:
    return await model_probe.probe(StatePaths(tmp_path), "job/x", api, base_url, (KEY_NAME,), MODEL)


def address(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_answers_is_asked_for_one_token_with_the_key(tmp_path: Path, api: Api) -> None:
    with ScriptedModel({"replies": []}) as model:
        assert await ask(tmp_path, api, address(model, api)) is None
    [call] = model.calls
    shown = [call.headers.get(name, "") for name in ("authorization", "x-api-key", "x-goog-api-key")]
    assert any(KEY in value for value in shown)
    assert call.dialect is not None
    # `max_tokens`, `max_output_tokens`, `maxOutputTokens`.
    caps = re.findall(r"'max\w*okens': (\d+)", str(call.body))
    assert caps == [str(model_probe.MAX_TOKENS[api])]


async def test_a_redirect_is_told_with_its_target_and_without_the_key_in_its_query(tmp_path: Path) -> None:
    async def send_elsewhere(visit: Visit) -> None:
        place = f"https://me:secret@example.invalid/v2/{KEY}?key=another".encode()
        await visit.send(b"HTTP/1.1 307 Temporary\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n")

    async with raw_upstream(send_elsewhere) as upstream:
        problem = await ask(tmp_path, "openai-chat", upstream.base_url)
    assert problem is not None
    said = endpoint_error(problem, upstream.base_url, [KEY_NAME]).message
    assert "answered 307: it redirects to example.invalid/v2/" in said
    assert not any(word in said for word in (KEY, "secret", "another"))


@pytest.mark.parametrize("body", ['{"status": 503, "text": "unavailable"}', "<html>unavailable: log in</html>", ""])
async def test_a_page_or_a_proxys_excuse_with_a_good_status_is_no_answer(tmp_path: Path, body: str) -> None:
    async with raw_upstream(lambda visit: visit.send(answer(body.encode()))) as upstream:
        problem = await ask(tmp_path, "openai-chat", upstream.base_url)
    assert problem is not None
    said = endpoint_error(problem, upstream.base_url, [KEY_NAME]).message
    assert "answered 200 with what is no answer of a model" in said
    assert ("unavailable" in said) == bool(body)


@pytest.mark.parametrize(("answer", "sentence"), REFUSALS.items(), ids=[str(i) for i in range(len(REFUSALS))])
@pytest.mark.parametrize("api", APIS)
async def test_each_refusal_has_its_sentence(tmp_path: Path, api: Api, answer: tuple[int, str], sentence: str) -> None:
    status, message = answer
    refused = Reply(error={"status": status, "message": message}, times="always")
    with ScriptedModel({"replies": [refused], "side": {"without_tools": False}}) as model:
        base_url = address(model, api)
        problem = await ask(tmp_path, api, base_url)
    assert problem is not None
    assert problem.is_refusal
    error = endpoint_error(problem, base_url, [KEY_NAME])
    assert error.message.startswith(sentence)
    assert message in error.message
    assert error.remedy


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_trouble_that_passes_is_no_refusal(tmp_path: Path, status: int) -> None:
    busy = Reply(error={"status": status, "message": "come back later"}, times="always")
    with ScriptedModel({"replies": [busy], "side": {"without_tools": False}}) as model:
        problem = await ask(tmp_path, "openai-chat", model.openai_base_url)
    assert problem is not None
    assert not problem.is_refusal
    assert len(model.calls) == 3


async def test_trouble_that_has_passed_is_none(tmp_path: Path) -> None:
    busy = Reply(error={"status": 503, "message": "come back later"})
    with ScriptedModel({"replies": [busy, "Hi"], "side": {"without_tools": False}}) as model:
        assert await ask(tmp_path, "openai-chat", model.openai_base_url) is None


async def test_an_address_at_which_nobody_listens_is_named(tmp_path: Path) -> None:
    problem = await ask(tmp_path, "openai-chat", f"{NOBODY}/v1")
    assert problem is not None
    assert problem.kind == "unreachable"
    assert NOBODY in endpoint_error(problem, f"{NOBODY}/v1", []).message


async def test_a_question_that_an_endpoint_does_not_like_says_nothing_of_the_model(tmp_path: Path) -> None:
    wrong = Reply(error={"status": 400, "message": "max_tokens is too small"}, times="always")
    with ScriptedModel({"replies": [wrong], "side": {"without_tools": False}}) as model:
        assert await ask(tmp_path, "openai-chat", model.openai_base_url) is None


async def test_an_endpoint_that_says_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_probe, "ANSWER_SEC", 0.5)

    async def hang(visit: Visit) -> None:
        await visit.gone.wait()

    async with raw_upstream(hang) as upstream:
        problem = await ask(tmp_path, "openai-chat", upstream.base_url)
    assert problem is not None
    assert problem.kind == "stalled"


async def test_a_key_that_is_not_set_where_workers_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_NAME)
    problem = await ask(tmp_path, "openai-chat", f"{NOBODY}/v1")
    assert problem is not None
    assert KEY_NAME in endpoint_error(problem, f"{NOBODY}/v1", [KEY_NAME]).message
