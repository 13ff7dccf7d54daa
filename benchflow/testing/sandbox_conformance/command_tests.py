"""Commands: their surroundings and their results."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import SandboxError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import (
    PATIENCE,
    SandboxFixtures,
    Start,
    asleep,
    nap,
    napping,
)

ODD = ["a b", "", "$HOME", "'\"", "new\nline", "*", "-n", "ü€", "\\n", "tail\n", "x" * 100_000]
"""Arguments that a shell, or a careless quoting of them, would change."""


class CommandTests(SandboxFixtures):
    """Tests of `exec`."""

    async def test_a_command_returns_its_status_and_both_outputs(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.return_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert not result.timed_out and not result.truncated

    async def test_arguments_reach_the_program_as_they_are(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["printf", "[%s]", *ODD])
        assert result.stdout == "".join(f"[{text}]" for text in ODD)

    async def test_a_command_has_the_environment_it_is_given_and_the_sandboxs(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", 'echo "$WORLD-$MINE"'], env={"MINE": "a\nb='ü'"})
        assert result.stdout == "one two-a\nb='ü'\n"

    async def test_a_commands_own_environment_goes_before_and_stays_its_own(self, sandbox: Sandbox) -> None:
        said = await sandbox.exec(["sh", "-c", 'echo "$WORLD"'], env={"WORLD": "mine", "MINE": "x"})
        assert said.stdout == "mine\n"
        assert (await sandbox.exec(["sh", "-c", 'echo "$WORLD$MINE"'])).stdout == "one two\n"

    async def test_a_command_finds_programs_and_its_users_home(self, sandbox: Sandbox) -> None:
        show = ["sh", "-c", 'echo "$HOME"; command -v useradd >/dev/null']
        said = await sandbox.exec(show)
        assert (said.return_code, said.stdout) == (0, "/root\n")
        assert (await sandbox.exec(show, user="nobody", cwd="/")).stdout == "/nonexistent\n"

    async def test_a_command_runs_in_the_workspace_or_where_it_is_told(self, start: Start) -> None:
        sandbox = await start(workdir="/place/deep")
        assert sandbox.ref.workdir == "/place/deep"
        assert (await sandbox.exec(["pwd"])).stdout == "/place/deep\n"
        assert (await sandbox.exec(["pwd"], cwd="/tmp")).stdout == "/tmp\n"

    async def test_a_command_starts_in_its_place_even_if_its_user_may_not_enter_it(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["sh", "-c", "mkdir -p /private/place && chmod 700 /private"])).return_code == 0
        said = await sandbox.exec(["sh", "-c", "id -un; ls -d ."], user="nobody", cwd="/private/place")
        assert (said.return_code, said.stdout) == (0, "nobody\n.\n")

    async def test_a_command_runs_as_root_unless_a_user_is_named(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["id", "-u"])).stdout == "0\n"
        assert (await sandbox.exec(["id", "-un"], user="nobody", cwd="/")).stdout == "nobody\n"
        assert (await sandbox.exec(["id", "-u"], user=4321, cwd="/")).stdout == "4321\n"
        assert (await sandbox.exec(["id", "-u"], user="4321", cwd="/")).stdout == "4321\n"

    async def test_another_users_output_and_status_arrive_too(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 4"], user="nobody", cwd="/")
        assert (result.return_code, result.stdout, result.stderr) == (4, "out\n", "err\n")

    async def test_another_user_may_do_only_what_it_may(self, sandbox: Sandbox) -> None:
        probe = "cat /etc/shadow || touch /etc/mine || kill -0 1 || mknod /tmp/n c 1 3"
        assert (await sandbox.exec(["sh", "-c", probe], user="nobody", cwd="/")).return_code != 0
        status = (await sandbox.exec(["grep", "CapEff", "/proc/self/status"], user=4321, cwd="/")).stdout
        assert int(status.split()[1], 16) == 0

    async def test_a_user_and_a_group_added_later_count(self, sandbox: Sandbox) -> None:
        late, crew = f"late{nap()}", f"crew{nap()}"
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"], user=late)
        add = f"useradd -m {late} && groupadd {crew} && usermod -aG {crew} {late}"
        assert (await sandbox.exec(["sh", "-c", add])).return_code == 0
        said = await sandbox.exec(["sh", "-c", "id -un; id -Gn; cd && pwd"], user=late, cwd="/")
        assert said.stdout.split() == [late, late, crew, f"/home/{late}"]

    async def test_an_unknown_user_is_an_error_that_names_it(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="ghost") as caught:
            await sandbox.exec(["true"], user="ghost")
        assert caught.value.remedy

    async def test_a_missing_program_is_a_result_not_an_error(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["no-such-program"])
        assert result.return_code == 127
        assert "no-such-program" in result.stderr

    async def test_a_file_that_is_no_program_is_a_result_too(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["/etc/passwd"])
        assert result.return_code == 126
        assert "/etc/passwd" in result.stderr

    async def test_a_missing_directory_is_a_result_that_says_so(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["true"], cwd="/no/such/place")
        assert result.return_code == 126
        assert "/no/such/place" in result.stderr

    async def test_a_command_that_a_signal_ends_has_its_status(self, sandbox: Sandbox) -> None:
        for signal, code in (("KILL", 137), ("TERM", 143), ("SEGV", 139)):
            result = await sandbox.exec(["sh", "-c", f"echo here; kill -{signal} $$"])
            assert (result.return_code, result.stdout, result.timed_out) == (code, "here\n", False)

    async def test_a_command_has_no_input(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["cat"], timeout=PATIENCE)).return_code == 0

    async def test_a_command_inherits_nothing_of_the_engine(self, sandbox: Sandbox) -> None:
        probe = "import os; print(sorted(os.listdir('/proc/self/fd')), oct(os.umask(0)))"
        assert (await sandbox.exec(["python3", "-c", probe])).stdout == "['0', '1', '2', '3'] 0o22\n"
        said = await sandbox.exec(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
        # Signals 32 and 33 are the C library's own, which no program can set.
        own = 1 << 31 | 1 << 32
        assert [int(line.split()[1], 16) & ~own for line in said.stdout.splitlines()] == [0, 0]

    async def test_big_outputs_keep_their_head_and_their_tail(self, sandbox: Sandbox) -> None:
        noise = "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last"
        result = await sandbox.exec(["sh", "-c", f"({noise}); ({noise}) >&2"])
        assert result.truncated
        for output in (result.stdout, result.stderr):
            assert output.startswith("first\n") and output.endswith("\nlast\n")
            assert 64 * 1024 < len(output) < 11 * 1024 * 1024

    async def test_outputs_within_the_limit_are_whole(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "seq 1 200000; seq 1 100000 >&2"])
        assert not result.truncated
        assert result.stdout.split() == [str(n) for n in range(1, 200_001)]
        assert result.stderr.count("\n") == 100_000

    async def test_output_that_is_not_text_does_not_break_the_result(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "printf '\\377\\000ok'"])
        assert result.stdout == "�\0ok"

    async def test_a_server_left_behind_neither_holds_the_command_nor_dies(self, sandbox: Sandbox) -> None:
        length = nap()
        serve = f"(while :; do echo tick; sleep 0.2; done) & sleep {length} & echo started"
        # A provider that waits for the server waits forever.
        result = await asyncio.wait_for(sandbox.exec(["sh", "-c", serve]), PATIENCE)
        assert result.return_code == 0 and "started\n" in result.stdout
        await asleep(sandbox, length)
        await asyncio.sleep(0.5)
        assert await napping(sandbox, length) == [length]
        await sandbox.kill_processes(keep="nothing")

    async def test_many_commands_at_the_same_time_do_not_mix(self, sandbox: Sandbox) -> None:
        script = ["sh", "-c", 'echo "$1"; echo "e$1" >&2; exit "$1"', "sh"]
        results = await asyncio.gather(*(sandbox.exec([*script, str(n)]) for n in range(1, 13)))
        seen = [(r.return_code, r.stdout, r.stderr) for r in results]
        assert seen == [(n, f"{n}\n", f"e{n}\n") for n in range(1, 13)]


class ControlTests(SandboxFixtures):
    """Tests of `control`."""

    async def test_a_script_gets_its_arguments_and_gives_its_status_and_outputs(self, sandbox: Sandbox) -> None:
        odd = [text for text in ODD if len(text) < 1000]
        result = await sandbox.control('printf "[%s]" "$@"; echo err >&2; exit 5', *odd)
        assert result.stdout == "".join(f"[{text}]" for text in odd)
        assert (result.return_code, result.stderr) == (5, "err\n")

    async def test_a_script_is_roots_and_has_no_input(self, sandbox: Sandbox) -> None:
        assert (await sandbox.control("id -u; cat", timeout=PATIENCE)).stdout == "0\n"

    async def test_a_script_of_the_engine_runs_no_program_of_the_images_own_path(self, start: Start) -> None:
        sandbox = await start(env={"PATH": "/planted:/usr/bin:/bin", "LD_LIBRARY_PATH": "/planted"})
        await sandbox.write_file("/planted/find", "#!/bin/sh\necho planted\n", mode=0o755)
        assert (await sandbox.exec(["find"])).stdout == "planted\n"
        said = (await sandbox.control('command -v find; echo "[$LD_LIBRARY_PATH]"')).stdout.split()
        assert said[0].startswith(("/usr/", "/bin/")) and said[1] == "[]"

    async def test_a_script_that_takes_too_long_is_a_result_that_says_so(self, sandbox: Sandbox) -> None:
        result = await sandbox.control("sleep 30", timeout=0.5)
        assert result.timed_out and result.return_code == 124
        assert (await sandbox.control("echo again")).stdout == "again\n"

    async def test_many_scripts_at_the_same_time_do_not_mix(self, sandbox: Sandbox) -> None:
        script = 'echo "$1"; echo "e$1" >&2; exit "$1"'
        results = await asyncio.gather(*(sandbox.control(script, str(n)) for n in range(40)))
        seen = [(r.return_code, r.stdout, r.stderr) for r in results]
        assert seen == [(n, f"{n}\n", f"e{n}\n") for n in range(40)]

    async def test_scripts_work_after_all_processes_were_killed(self, sandbox: Sandbox) -> None:
        assert (await sandbox.control("echo one")).stdout == "one\n"
        await sandbox.kill_processes(keep="nothing")
        assert (await sandbox.control("echo two")).stdout == "two\n"


class StreamTests(SandboxFixtures):
    """Tests of `exec_stream`."""

    async def test_a_stream_yields_output_as_it_comes_and_then_the_status(self, sandbox: Sandbox, room: str) -> None:
        await sandbox.exec(["mkfifo", f"{room}/gate"])
        script = f"echo one; read x <{room}/gate; echo two >&2; exit 5"
        seen: list[tuple[str, bytes | int | None]] = []
        async for chunk in sandbox.exec_stream(["sh", "-c", script]):
            seen.append((chunk.stream, chunk.return_code if chunk.stream == "exit" else chunk.data))
            if chunk.data == b"one\n":
                await sandbox.exec(["sh", "-c", f"echo go >{room}/gate"])
        assert seen == [("stdout", b"one\n"), ("stderr", b"two\n"), ("exit", 5)]

    async def test_a_streamed_command_has_its_environment_place_and_user(self, sandbox: Sandbox) -> None:
        script = 'echo "$WORLD $MINE $(pwd) $(id -un)"'
        stream = sandbox.exec_stream(["sh", "-c", script], env={"MINE": "x"}, cwd="/tmp", user="nobody")
        chunks = [chunk async for chunk in stream]
        assert b"".join(chunk.data for chunk in chunks) == b"one two x /tmp nobody\n"
        assert [chunk.return_code for chunk in chunks][-1] == 0

    async def test_a_stream_carries_every_byte(self, sandbox: Sandbox) -> None:
        script = "import sys; [sys.stdout.buffer.write(bytes(range(256)) * 4096) for _ in range(20)]"
        said = bytearray()
        async for chunk in sandbox.exec_stream(["python3", "-c", script]):
            said += chunk.data
        assert bytes(said) == bytes(range(256)) * 4096 * 20

    async def test_a_streamed_command_that_cannot_start_ends_with_its_status(self, sandbox: Sandbox) -> None:
        chunks = [chunk async for chunk in sandbox.exec_stream(["no-such-program"])]
        assert chunks[-1].stream == "exit" and chunks[-1].return_code in (126, 127)

    async def test_leaving_a_stream_early_kills_its_command(self, sandbox: Sandbox) -> None:
        length = nap()
        stream = sandbox.exec_stream(["sh", "-c", f"setsid sleep {length} & echo here; wait"])
        async for chunk in stream:
            assert chunk.data == b"here\n"
            break
        await asleep(sandbox, length)
        await stream.aclose()  # type: ignore[attr-defined]
        assert await napping(sandbox, length) == []
