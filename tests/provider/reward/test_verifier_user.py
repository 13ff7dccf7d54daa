"""Who a verifier is that the task names no user for: the image's, unless that is the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import AGENT, InDocker, InLocal, sh, verifier

from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.reward.hardening import take_baseline

ASKS = "#!/bin/sh\nid -un; echo 1 >/logs/verifier/reward.txt\n"


class ActsAs:
    @pytest.mark.parametrize(
        ("named", "agent", "user"),
        [
            (None, AGENT, "nobody"),
            (None, "root", "nobody"),
            (None, "nobody", "root"),
            (None, 65534, "root"),
            ("daemon", "nobody", "daemon"),
            ("root", AGENT, "root"),
        ],
    )
    async def test_it_is_the_images_user_unless_another_is_named_or_that_is_the_agent(
        self, own: Sandbox, tmp_path: Path, named: str | None, agent: str | int, user: str
    ) -> None:
        baseline = await take_baseline(own, agent=agent, verifier=named, default="nobody:nogroup")
        config = {"user": named, "collect": [{"command": "id -un"}]}
        one = verifier(tmp_path / "v", {"test.sh": ASKS}, baseline=baseline, config=config, trusted=True)
        (tmp_path / "logs").mkdir()
        assert (await one.run(own, tmp_path / "logs")).reward == 1.0
        said = [(tmp_path / "logs" / name).read_text().strip() for name in ("test-stdout.txt", "collect-0.txt")]
        assert said == [user, "root" if agent in ("nobody", 65534) else "nobody"]

    async def test_a_user_that_the_image_does_not_have_is_nobody(self, own: Sandbox) -> None:
        assert (await take_baseline(own, agent=AGENT, default="no-such-user")).user is None

    async def test_an_agent_without_an_account_yet_is_another(self, own: Sandbox) -> None:
        assert (await take_baseline(own, agent="no-such-user", default="nobody")).user == "nobody"

    async def test_a_look_as_the_images_user_is_closed_to_the_agent(self, own: Sandbox, tmp_path: Path) -> None:
        baseline = await take_baseline(own, agent=AGENT, default="nobody")
        looks = "#!/bin/sh\nstat -c %U:%a /tests /logs/verifier; echo 1 >/logs/verifier/reward.txt\n"
        one = verifier(tmp_path / "v", {"test.sh": looks}, baseline=baseline, key="soft-1")
        await one.run_soft(own, tmp_path / "logs")
        assert (tmp_path / "logs" / "test-stdout.txt").read_text().split() == ["nobody:700"] * 2
        assert await sh(own, "ls -d /tests 2>/dev/null || true") == ""


@pytest.mark.local
class TestActsAs(ActsAs, InLocal):
    pass


@pytest.mark.docker
@pytest.mark.long
class TestActsAsInDocker(ActsAs, InDocker):
    pass
