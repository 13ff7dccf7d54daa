"""The first call of a session that was loaded, held against the last one of its parent: equal, or where it differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateway_fixture import APIS, Agent, GatewayFixture, ask

from benchflow.contracts.gateway import Api, GatewayStatus
from benchflow.errors import ConfigError
from benchflow.testing.scripted_model import ScriptedModel

Json = dict[str, Any]

TEXT, COMMAND = "I look.", {"command": "ls /work"}
REPLY: Json = {"thinking": "Hm.", "text": TEXT, "tools": [{"name": "run", "arguments": COMMAND}]}
MEMBER = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic-messages": "messages",
    "gemini": "contents",
}
OTHERS: list[Any] = [REPLY, "Yes.", "Yes.", "Yes."]

each_api = pytest.mark.parametrize("api", APIS)


def repeated(api: Api, text: str = TEXT, given: Json = COMMAND) -> list[Json]:
    """The model's answer and what came of it, as an agent has them in its next call."""
    # Agents spell JSON in their own way.
    arguments = json.dumps(given, indent=1)
    if api == "openai-chat":
        call: Json = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": arguments}}
        said = {"role": "assistant", "content": text, "tool_calls": [call]}
        return [said, {"role": "tool", "tool_call_id": "call_1", "content": "a file"}]
    if api == "openai-responses":
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        call = {"type": "function_call", "name": "run", "arguments": arguments, "call_id": "call_1"}
        output = {"type": "function_call_output", "call_id": "call_1", "output": "a file"}
        return [{"type": "reasoning", "summary": []}, message, call, output]
    if api == "anthropic-messages":
        used = {"type": "tool_use", "id": "call_1", "name": "run", "input": given}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "a file"}
        return [
            {"role": "assistant", "content": [{"type": "text", "text": text}, used]},
            {"role": "user", "content": [result]},
        ]
    made = {"functionCall": {"name": "run", "args": given}}
    back = {"functionResponse": {"name": "run", "response": {"output": "a file"}}}
    return [{"role": "model", "parts": [{"text": text}, made]}, {"role": "user", "parts": [back]}]


def spoken(api: Api, text: str) -> Json:
    return {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}


def later(api: Api, *items: Json, stream: bool = True, **more: Any) -> tuple[str, bytes]:
    """A call that goes on from the first one with these items, and a new prompt."""
    path, body = ask(api, stream=stream, **more)
    body[MEMBER[api]] = [*body[MEMBER[api]], *items, spoken(api, "Go on.")]
    return path, json.dumps(body).encode()


async def child_of(parent: Agent, gateway: GatewayFixture, **options: Any) -> Agent:
    requests = (await gateway.client.status(parent.id)).requests
    given: Json = {"prefix": str(parent.record), "prefix_requests": requests} | options
    api, id = given.pop("api", parent.registration.api), given.pop("id", f"{parent.id}/b/1")
    return await gateway.agent(api, parent.registration.base_url, id, **given)


async def compared(gateway: GatewayFixture, child: Agent, call: tuple[str, bytes]) -> GatewayStatus:
    """How it stands after a call, which must have gone through."""
    assert (await child.post(*call)).status == 200
    await child.answered()
    return await gateway.client.status(child.id)


def base(model: ScriptedModel, api: Api) -> str:
    return model.openai_base_url if api.startswith("openai") else model.base_url


@each_api
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_session_that_goes_on_begins_with_its_parents_last_call_and_its_answer(
    api: Api, stream: bool, gateway: GatewayFixture
) -> None:
    async with ScriptedModel(OTHERS) as model:
        parent = await gateway.agent(api, base(model, api))
        await parent.call(stream=stream)
        await parent.answered()
        child = await child_of(parent, gateway)
        assert (await gateway.client.status(child.id)).prefix == "unchecked"
        status = await compared(gateway, child, later(api, *repeated(api), stream=stream))
        assert (status.prefix, status.prefix_divergence) == ("equal", None)
        assert (await gateway.client.status(parent.id)).prefix is None


WRONG: dict[str, tuple[Callable[[Api], list[Json]], str]] = {
    "without the answer": (lambda api: [], "does not repeat the answer"),
    "with another text": (lambda api: repeated(api, "I looked."), '"I looked."'),
    "with another command": (lambda api: repeated(api, given={"command": "rm"}), '"rm"'),
}


@each_api
@pytest.mark.parametrize("how", WRONG)
async def test_a_session_that_has_another_answer_is_different_and_its_call_is_made(
    api: Api, how: str, gateway: GatewayFixture
) -> None:
    items, says = WRONG[how]
    async with ScriptedModel(OTHERS) as model:
        parent = await gateway.agent(api, base(model, api))
        await parent.call()
        await parent.answered()
        child = await child_of(parent, gateway)
        status = await compared(gateway, child, later(api, *items(api)))
        assert status.prefix == "different"
        assert status.prefix_divergence is not None
        assert (status.prefix_divergence.seq, status.prefix_divergence.recorded) == (0, 0)
        assert says in f"{status.prefix_divergence.message}\n{status.prefix_divergence.diff}"
        ((_, response),) = await child.answered()
        assert response["status"] == 200


@each_api
async def test_a_session_that_begins_otherwise_is_different(api: Api, gateway: GatewayFixture) -> None:
    async with ScriptedModel(OTHERS) as model:
        parent = await gateway.agent(api, base(model, api))
        await parent.call("Say hello.")
        await parent.answered()
        child = await child_of(parent, gateway)
        path, body = later(api, *repeated(api))
        status = await compared(gateway, child, (path, body.replace(b"Say hello.", b"Say bye.")))
        assert status.prefix == "different"
        assert status.prefix_divergence is not None
        assert "0 of 1 messages" in status.prefix_divergence.message
        assert "Say bye." in status.prefix_divergence.diff


async def test_only_the_first_call_of_the_task_is_looked_at(gateway: GatewayFixture) -> None:
    async with ScriptedModel([REPLY, "Yes.", "Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        await parent.call()
        await parent.answered()
        child = await child_of(parent, gateway, agent="opencode")
        title: Json = {"model": "scripted", "messages": [{"role": "user", "content": "Generate a title"}]}
        system = [{"role": "system", "content": "You are a title generator. You output ONLY a thread title."}]
        await child.post("/chat/completions", json.dumps(title | {"messages": system + title["messages"]}).encode())
        await child.answered()
        assert [request["side"] for request, _ in child.calls()] == [True]
        assert (await gateway.client.status(child.id)).prefix == "unchecked"
        await child.post(*later("openai-chat", *repeated("openai-chat")))
        await child.call("Something else.")
        await child.answered(3)
        assert (await gateway.client.status(child.id)).prefix == "equal"


async def test_what_the_parent_did_afterwards_does_not_count(gateway: GatewayFixture) -> None:
    async with ScriptedModel([REPLY, "Later.", "Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        await parent.call()
        await parent.answered()
        await parent.call("Another thing.")
        await parent.answered(2)
        child = await child_of(parent, gateway, prefix_requests=1)
        status = await compared(gateway, child, later("openai-chat", *repeated("openai-chat")))
        assert status.prefix == "equal"


async def test_a_call_without_an_answer_does_not_count(gateway: GatewayFixture) -> None:
    failed = {"error": {"status": 400, "message": "no"}}
    async with ScriptedModel([REPLY, failed, "Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        await parent.call()
        assert (await parent.call("What it was asked, and has forgotten.")).status == 400
        await parent.answered(2)
        child = await child_of(parent, gateway)
        status = await compared(gateway, child, later("openai-chat", *repeated("openai-chat")))
        assert status.prefix == "equal"


async def test_a_parent_without_an_answer_gives_nothing_to_compare(gateway: GatewayFixture) -> None:
    async with ScriptedModel(["Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        child = await child_of(parent, gateway)
        assert (await compared(gateway, child, later("openai-chat"))).prefix is None


async def test_another_wire_format_is_different(gateway: GatewayFixture) -> None:
    async with ScriptedModel([REPLY, "Yes."]) as model:
        parent = await gateway.agent("anthropic-messages", model.base_url)
        await parent.call()
        await parent.answered()
        child = await child_of(parent, gateway, api="gemini")
        status = await compared(gateway, child, later("gemini", *repeated("gemini")))
        assert status.prefix_divergence is not None
        assert "anthropic-messages" in status.prefix_divergence.message


async def test_the_outcome_outlives_the_gateway(gateway: GatewayFixture) -> None:
    async with ScriptedModel([REPLY, "Yes.", "Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        await parent.call()
        await parent.answered()
        child, other = [await child_of(parent, gateway, id=f"{parent.id}/b/{n}") for n in (1, 2)]
        before = await compared(gateway, child, later("openai-chat"))
        await gateway.kill()
        await gateway.start()
        after = await gateway.client.status(child.id)
        assert (after.prefix, after.prefix_divergence) == ("different", before.prefix_divergence)
        assert (await gateway.client.status(other.id)).prefix == "unchecked"
        status = await compared(gateway, other, later("openai-chat", *repeated("openai-chat")))
        assert status.prefix == "equal"


async def test_the_parents_token_in_a_conversation_is_not_in_the_childs_record(gateway: GatewayFixture) -> None:
    async with ScriptedModel([REPLY, "Yes."]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        token = parent.registration.token
        await parent.call(f"My key is {token}.")
        await parent.answered()
        child = await child_of(parent, gateway)
        path, body = later("openai-chat", *repeated("openai-chat"))
        status = await compared(gateway, child, (path, body.replace(b"Say hello.", f"My key is {token}.".encode())))
        assert status.prefix == "equal"
        assert token not in child.record.read_text()
        assert "My key is [GATEWAY_TOKEN]." in child.record.read_text()


async def test_a_record_that_cannot_be_held_against_is_refused_by_name(gateway: GatewayFixture, tmp_path: Path) -> None:
    async with ScriptedModel([REPLY]) as model:
        parent = await gateway.agent("openai-chat", model.openai_base_url)
        await parent.call()
        await parent.answered()
        broken = tmp_path / "broken.jsonl"
        broken.write_text("{}\n")
        for options, says in (
            ({"prefix": "/not/there"}, "cannot be read"),
            ({"prefix_requests": 9}, "has 1 requests, not 9"),
            ({"prefix": str(broken)}, "is no record"),
        ):
            with pytest.raises(ConfigError, match=says) as caught:
                await child_of(parent, gateway, **options)
            assert caught.value.key == "prefix"
            assert caught.value.file
