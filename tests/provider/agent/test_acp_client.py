"""Files and terminals that an agent asks of its client: only as its own user may have them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.agent.acp.agent_requests import (
    INVALID_PARAMS,
    MAX_OUTPUT_LIMIT,
    NOT_FOUND,
    TERMINALS,
    Client,
)
from benchflow.planes.agent.acp.dialogue import METHOD_NOT_FOUND, RefusedError
from benchflow.planes.agent.notes import Message
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, asleep, awake, nap

USER = "nobody"


async def refusal(client: Client, method: str, **params: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await client.serve(secrets.randbelow(2**40), method, params)
    return caught.value


async def ask(client: Client, method: str, **params: Any) -> Message:
    return await client.serve(secrets.randbelow(2**40), method, params)


async def run(client: Client, command: str, **params: Any) -> Message:
    """A new terminal, as the parameter that names it."""
    created = await ask(client, "terminal/create", command=command, **params)
    return {"terminalId": created["terminalId"]}


class Served(SandboxFixtures):
    """What holds in the sandboxes of every provider."""

    @pytest_asyncio.fixture
    async def work(self, sandbox: Sandbox) -> str:
        """A directory of the agent's user."""
        directory = f"/work-{secrets.token_hex(4)}"
        made = await sandbox.control('mkdir "$1" && chown "$2" "$1"', directory, USER)
        assert made.return_code == 0
        return directory

    @pytest_asyncio.fixture
    async def client(self, sandbox: Sandbox, work: str) -> AsyncIterator[Client]:
        made = Client(sandbox, user=USER, cwd=work)
        yield made
        await made.aclose()

    async def owner(self, sandbox: Sandbox, path: str) -> str:
        return (await sandbox.control('stat -c %U "$1"', path)).stdout.strip()

    async def test_a_file_is_written_and_read_as_the_agents_user(
        self, sandbox: Sandbox, client: Client, work: str
    ) -> None:
        path = f"{work}/a b/--c'\".txt"
        content = "line 1\nzwei: ä€𝄞\n\nno end"
        assert await ask(client, "fs/write_text_file", path=path, content=content) == {}
        assert await ask(client, "fs/read_text_file", path=path) == {"content": content}
        assert await self.owner(sandbox, path) == USER
        assert await self.owner(sandbox, f"{work}/a b") == USER
        assert await ask(client, "fs/write_text_file", path=path, content="") == {}
        assert await ask(client, "fs/read_text_file", path=path) == {"content": ""}

    async def test_some_lines_of_a_file_can_be_read(self, client: Client, work: str) -> None:
        path = f"{work}/lines"
        await ask(client, "fs/write_text_file", path=path, content="1\n2\n3\n4\n")
        assert await ask(client, "fs/read_text_file", path=path, line=2, limit=2) == {"content": "2\n3\n"}
        assert await ask(client, "fs/read_text_file", path=path, line=3) == {"content": "3\n4\n"}
        assert await ask(client, "fs/read_text_file", path=path, limit=1) == {"content": "1\n"}
        assert await ask(client, "fs/read_text_file", path=path, line=9) == {"content": ""}

    async def test_a_large_file_goes_through_whole_or_is_refused(
        self, sandbox: Sandbox, client: Client, work: str
    ) -> None:
        content = "0123456789abcdef\n" * 300_000
        await ask(client, "fs/write_text_file", path=f"{work}/large", content=content)
        assert (await ask(client, "fs/read_text_file", path=f"{work}/large"))["content"] == content
        await sandbox.control('yes | head -c 30000000 >"$1"', f"{work}/huge")
        refused = await refusal(client, "fs/read_text_file", path=f"{work}/huge")
        assert (refused.code, "too large" in refused.message) == (INVALID_PARAMS, True)
        assert (await ask(client, "fs/read_text_file", path=f"{work}/huge", limit=2)) == {"content": "y\ny\n"}

    async def test_what_the_user_may_not_have_is_refused(self, sandbox: Sandbox, client: Client, work: str) -> None:
        secret = f"/root/secret-{secrets.token_hex(4)}"
        await sandbox.write_file(secret, "secret", mode=0o600)
        await sandbox.control('printf secret >"$1/shut"; chmod 0600 "$1/shut"; ln -s "$2" "$1/link"', work, secret)
        for path in (secret, f"{work}/shut", f"{work}/link", f"{work}/../root/{secret.rpartition('/')[2]}"):
            for more in ({}, {"limit": 1}):
                refused = await refusal(client, "fs/read_text_file", path=path, **more)
                assert refused.code in (INVALID_PARAMS, NOT_FOUND)
            refused = await refusal(client, "fs/write_text_file", path=path, content="mine")
            assert refused.code == INVALID_PARAMS
        assert await sandbox.read_bytes(secret) == await sandbox.read_bytes(f"{work}/shut") == b"secret"

    async def test_links_lead_where_they_lead_the_user(self, sandbox: Sandbox, client: Client, work: str) -> None:
        await sandbox.control('mkdir -p "$1/x/y" && ln -s x/y "$1/link" && chown -R "$2" "$1"', work, USER)
        await ask(client, "fs/write_text_file", path=f"{work}/link/../here", content="beside y")
        assert await sandbox.read_bytes(f"{work}/x/here") == b"beside y"
        assert await ask(client, "fs/read_text_file", path=f"{work}/link/../here") == {"content": "beside y"}

    async def test_nothing_is_left_where_content_was_laid_down(
        self, sandbox: Sandbox, client: Client, work: str
    ) -> None:
        await ask(client, "fs/write_text_file", path=f"{work}/a", content="x")
        await refusal(client, "fs/write_text_file", path="/etc/passwd", content="x")
        left = await sandbox.control('ls "$1" | grep -c write-', TERMINALS)
        assert left.stdout.strip() == "0"

    async def test_the_agent_cannot_change_where_root_lays_content_down(self, client: Client, work: str) -> None:
        await ask(client, "fs/write_text_file", path=f"{work}/a", content="x")
        terminal = await run(client, f"ln -s /etc/passwd {TERMINALS}/write-1; ls {TERMINALS}; mv {TERMINALS} /tmp")
        assert (await ask(client, "terminal/wait_for_exit", **terminal))["exitCode"] != 0
        said = (await ask(client, "terminal/output", **terminal))["output"].lower()
        assert said.count("permission denied") == 3, said

    async def test_what_is_no_file_is_refused(self, client: Client) -> None:
        for path in ("relative", None, "/tmp"):
            assert (await refusal(client, "fs/read_text_file", path=path)).code == INVALID_PARAMS
        assert (await refusal(client, "fs/read_text_file", path="/nothing")).code == NOT_FOUND

    async def test_a_method_that_nobody_knows_is_refused_by_name(self, client: Client) -> None:
        refused = await refusal(client, "fs/remove_everything")
        assert (refused.code, "fs/remove_everything" in refused.message) == (METHOD_NOT_FOUND, True)

    async def test_a_command_runs_as_the_agents_user_in_its_directory(self, client: Client, work: str) -> None:
        script = 'id -un; pwd; echo "$MARK"; echo err >&2; exit 3'
        terminal = await run(client, "sh", args=["-c", script], env=[{"name": "MARK", "value": "a b"}])
        assert await ask(client, "terminal/wait_for_exit", **terminal) == {"exitCode": 3, "signal": None}
        assert await ask(client, "terminal/output", **terminal) == {
            "output": f"{USER}\n{work}\na b\nerr\n",
            "truncated": False,
            "exitStatus": {"exitCode": 3, "signal": None},
        }
        assert await ask(client, "terminal/release", **terminal) == {}

    async def test_a_whole_line_as_a_command_runs(self, client: Client) -> None:
        terminal = await run(client, "echo a | tr a b", cwd="/")
        await ask(client, "terminal/wait_for_exit", **terminal)
        assert (await ask(client, "terminal/output", **terminal))["output"] == "b\n"

    async def test_a_command_that_is_not_there_has_an_exit_status(self, client: Client) -> None:
        terminal = await run(client, "not-there")
        assert (await ask(client, "terminal/wait_for_exit", **terminal))["exitCode"] == 127
        assert "not-there" in (await ask(client, "terminal/output", **terminal))["output"]

    async def test_the_output_limit_keeps_the_end_and_whole_characters(self, client: Client) -> None:
        terminal = await run(client, "printf 'äöü%s' end", outputByteLimit=6)
        await ask(client, "terminal/wait_for_exit", **terminal)
        output = await ask(client, "terminal/output", **terminal)
        assert (output["output"], output["truncated"]) == ("üend", True)

    async def test_of_an_output_without_end_there_is_a_limit(self, client: Client) -> None:
        terminal = await run(client, "yes | head -c 20000000; echo end", outputByteLimit=10**12)
        await ask(client, "terminal/wait_for_exit", **terminal)
        output = await ask(client, "terminal/output", **terminal)
        assert output["truncated"] and len(output["output"]) == MAX_OUTPUT_LIMIT
        assert output["output"].endswith("y\nend\n")

    async def test_a_killed_command_ends_with_what_it_started(self, sandbox: Sandbox, client: Client) -> None:
        inner, outer = nap(), nap()
        terminal = await run(client, f"echo begun; sleep {inner} & sleep {outer}")
        await asleep(sandbox, inner, outer)
        running = await ask(client, "terminal/output", **terminal)
        assert running == {"output": "begun\n", "truncated": False}
        assert await ask(client, "terminal/kill", **terminal) == {}
        await awake(sandbox, inner, outer)
        assert (await ask(client, "terminal/wait_for_exit", **terminal))["exitCode"] != 0
        assert (await ask(client, "terminal/output", **terminal))["output"] == "begun\n"

    async def test_another_client_takes_a_terminal_over(self, sandbox: Sandbox, client: Client, work: str) -> None:
        script = "echo ran >>count; echo 123456789; until [ -e go ]; do sleep 0.02; done; echo done; exit 5"
        terminal = await run(client, script, outputByteLimit=7)
        waiting = asyncio.create_task(ask(client, "terminal/wait_for_exit", **terminal))
        await client.aclose()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        second = Client(sandbox, user=USER, cwd=work)
        assert "exitStatus" not in await ask(second, "terminal/output", **terminal)
        await ask(second, "fs/write_text_file", path=f"{work}/go", content="")
        assert (await ask(second, "terminal/wait_for_exit", **terminal))["exitCode"] == 5
        output = await ask(second, "terminal/output", **terminal)
        await second.aclose()
        assert (output["output"], output["truncated"]) == ("9\ndone\n", True)
        assert await sandbox.read_bytes(f"{work}/count") == b"ran\n"

    async def test_a_request_that_is_served_twice_runs_its_command_once(
        self, sandbox: Sandbox, client: Client, work: str
    ) -> None:
        second = Client(sandbox, user=USER, cwd=work)
        request = f"an id/{secrets.token_hex(4)}"
        for one in (client, second):
            created = await one.serve(request, "terminal/create", {"command": "echo ran >>count"})
            await ask(one, "terminal/wait_for_exit", **created)
        await second.aclose()
        assert await sandbox.read_bytes(f"{work}/count") == b"ran\n"

    async def test_ids_that_look_alike_are_different_terminals(self, client: Client) -> None:
        mark = secrets.token_hex(4)
        for request in (f"{mark}/1", f"{mark}_1", f"{mark}:1"):
            created = await client.serve(request, "terminal/create", {"command": "echo", "args": [request]})
            await ask(client, "terminal/wait_for_exit", **created)
            assert (await ask(client, "terminal/output", **created))["output"] == f"{request}\n"

    async def test_a_terminal_that_is_none_or_has_no_command_is_refused(self, client: Client) -> None:
        for method in ("output", "wait_for_exit", "kill", "release"):
            for name in ("nothing", "../../../etc", ""):
                assert (await refusal(client, f"terminal/{method}", terminalId=name)).code == INVALID_PARAMS
        assert (await refusal(client, "terminal/create", command="")).code == INVALID_PARAMS


@pytest.mark.local
class TestLocally(Served):
    provider_path = "benchflow.planes.sandbox.local.local_driver:LocalDriver"

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls) -> ImageRef:
        return ImageRef(reference="host")


@pytest.mark.docker
@pytest.mark.long
class TestInDocker(Served):
    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls, base_image: str) -> ImageRef:
        return ImageRef(reference=base_image)
