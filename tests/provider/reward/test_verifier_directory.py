"""The directory in which a verifier starts: the workspace, unless its document or its table says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import HardeningConfig, VerifierConfig
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening import HardeningBaseline, harden, make_verifier_env, take_baseline
from benchflow.planes.reward.verify import ScriptVerifier

WHERE = '#!/bin/sh\npwd; echo "$0"; ls\necho 1 >/logs/verifier/reward.txt\n'
RELATIVE = "#!/bin/sh\n[ -e answer.txt ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"


def own_verifier(root: Path, script: str = WHERE, **options: Any) -> ScriptVerifier:
    return verifier(root / "tests", {"test.sh": script}, **options)


def printed(logs: Path) -> list[str]:
    return (logs / "test-stdout.txt").read_text().split()


class StartsIn:
    async def test_test_sh_starts_in_the_workspace_and_is_named_by_its_path(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, f"echo >{own.ref.workdir}/made-by-the-agent")
        await own_verifier(tmp_path).run(own, tmp_path / "logs")
        directory, script, *files = printed(tmp_path / "logs")
        assert (directory, script) == (own.ref.workdir, "/tests/test.sh")
        assert "made-by-the-agent" in files

    async def test_a_relative_path_of_the_oracle_and_of_test_sh_is_one_file(self, own: Sandbox, tmp_path: Path) -> None:
        # As an oracle runs: in the workspace.
        await own.exec(["sh", "-c", "echo >answer.txt"])
        result = await own_verifier(tmp_path, RELATIVE, trusted=True).run(own, tmp_path / "logs")
        assert result.reward == 1.0

    async def test_a_verifier_of_another_user_starts_there_too(self, own: Sandbox, tmp_path: Path) -> None:
        # Its user may have no right to the directory.
        await sh(own, f"chmod 700 {own.ref.workdir}")
        asks = "#!/bin/sh\npwd -P; id -u; echo 1 >/logs/verifier/reward.txt\n"
        result = await own_verifier(tmp_path, asks, config={"user": AGENT}, trusted=True).run(own, tmp_path / "logs")
        assert result.reward == 1.0
        assert printed(tmp_path / "logs") == [own.ref.workdir, str(AGENT)]

    async def test_a_look_starts_there_too(self, own: Sandbox, tmp_path: Path) -> None:
        await own_verifier(tmp_path, key="soft-1").run_soft(own, tmp_path / "logs")
        assert printed(tmp_path / "logs")[:2] == [own.ref.workdir, "/tests/test.sh"]

    async def test_the_table_may_choose_the_verifiers_directory(self, own: Sandbox, tmp_path: Path) -> None:
        await own_verifier(tmp_path, config={"workdir": "verifier"}).run(own, tmp_path / "logs")
        assert printed(tmp_path / "logs") == ["/tests", "/tests/test.sh", "test.sh"]

    async def test_a_declared_command_starts_in_the_verifiers_directory(self, own: Sandbox, tmp_path: Path) -> None:
        strategy = {"type": "script", "command": "./test.sh"}
        await own_verifier(tmp_path, strategy=strategy).run(own, tmp_path / "logs")
        assert printed(tmp_path / "logs") == ["/tests", "./test.sh", "test.sh"]

    async def test_without_a_workspace_of_the_images_it_starts_in_the_root(self, own: Sandbox, tmp_path: Path) -> None:
        await own_verifier(tmp_path, starts_in_root=True).run(own, tmp_path / "logs")
        assert printed(tmp_path / "logs")[0] == "/"

    async def test_what_collects_for_it_starts_there_too(self, own: Sandbox, tmp_path: Path) -> None:
        config = {"collect": [{"command": "pwd"}]}
        for name, in_root, where in (("root", True, "/"), ("workspace", False, own.ref.workdir)):
            logs = tmp_path / name
            logs.mkdir()
            await own_verifier(tmp_path, config=config, starts_in_root=in_root, key=name).settle(own, logs)
            assert (logs / "collect-0.txt").read_text().strip() == where

    async def test_a_script_of_another_user_needs_no_bit_of_the_tasks(self, own: Sandbox, tmp_path: Path) -> None:
        alone = own_verifier(tmp_path, config={"user": AGENT}, trusted=True)
        (tmp_path / "tests" / "test.sh").chmod(0o644)
        result = await alone.run(own, tmp_path / "logs")
        assert result.reward == 1.0

    @pytest.mark.parametrize(
        "left",
        ["rm -rf {ws}", "rm -rf {ws}; echo >{ws}", "rm -rf {ws}; ln -s /nowhere {ws}"],
        ids=["gone", "file", "link"],
    )
    async def test_a_workspace_that_is_gone_is_made_again_by_the_hardening(
        self, own: Sandbox, tmp_path: Path, left: str
    ) -> None:
        baseline = await take_baseline(own, agent=AGENT)
        await sh(own, left.format(ws=own.ref.workdir))
        report = await harden(own, baseline, HardeningConfig(), trusted=False)
        told = [(finding.action, finding.path) for finding in report.findings if finding.item == "own_workspace"]
        assert told == [("replaced", own.ref.workdir)]
        result = await own_verifier(tmp_path, RELATIVE, baseline=baseline).run(own, tmp_path / "logs")
        assert result.reward == 0.0

    async def test_a_workspace_that_is_gone_is_an_error_that_names_it(self, own: Sandbox, tmp_path: Path) -> None:
        await sh(own, f"rm -rf {own.ref.workdir}; echo >{own.ref.workdir}")
        with pytest.raises(VerifierError, match="cannot be started") as caught:
            await own_verifier(tmp_path, RELATIVE).run(own, tmp_path / "logs")
        assert own.ref.workdir in caught.value.message
        assert caught.value.category == "verifier"
        assert caught.value.remedy

    async def test_what_python_would_take_first_in_the_root_is_taken_away(self, own: Sandbox) -> None:
        baseline = await take_baseline(own)
        await sh(own, "echo >/json.py; mkdir -p /email; echo >/email/__init__.py; echo >/mine.py")
        await harden(own, baseline, HardeningConfig())
        assert await sh(own, "ls -d /json.py /email/* /mine.py 2>/dev/null || true") == "/mine.py\n"

    async def test_uv_takes_no_settings_from_where_it_starts(self, own: Sandbox) -> None:
        def pinned(baseline: HardeningBaseline) -> str | None:
            env = make_verifier_env(baseline, VerifierConfig(), target="/tests", workspace=own.ref.workdir)
            return env.get("UV_NO_CONFIG")

        assert pinned(await take_baseline(own)) == "1"
        # Of an image that has settings of its own, these are meant.
        await sh(own, "mkdir -p /etc/uv; echo >/etc/uv/uv.toml")
        assert pinned(await take_baseline(own)) is None


@pytest.mark.docker
@pytest.mark.long
class TestStartsInDocker(StartsIn, InDocker):
    pass


@pytest.mark.local
class TestStartsIn(StartsIn, InLocal):
    pass
