"""Between the agent's last action and the reward on a local sandbox: agents that try to reach over, by what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_sandboxes import AGENT, OverTheHost

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import VerifierConfig
from benchflow.errors import RewardMissingError
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.testing.sandbox_conformance.sandbox_fixtures import leave, nap, napping

pytestmark = pytest.mark.local

REWARD = "/logs/verifier/reward.txt"

STOLEN = "/logs/agent/stolen"

CHECK = f"""#!/bin/sh
sleep 0.3
[ -e {STOLEN} ] && stolen=1 || stolen=0
[ -e {REWARD} ] || echo $stolen >{REWARD}
"""

# Waits for what it looks for.
CAUGHT = CHECK.replace("sleep 0.3", f"for n in $(seq 600); do [ -e {STOLEN} ] && break; sleep 0.05; done")

STEAL = f"while :; do cp /tests/test.sh {STOLEN}; done"
FORGE = f"while :; do echo 1 >{REWARD}; done"

CHEATS = {
    "steals": ["sh", "-c", f"setsid sh -c '{STEAL}' >/dev/null 2>&1 &"],
    "forges": ["sh", "-c", f"(env -i setsid sh -c '{FORGE}' >/dev/null 2>&1 &)"],
    "stops-itself": ["sh", "-c", f"setsid sh -c 'kill -STOP $$; {FORGE}' >/dev/null 2>&1 &"],
    "plants": ["sh", "-c", f"mkdir -p /tests && echo 'echo 1 >{REWARD}' >/tests/test.sh; echo 1 >{REWARD}"],
    "lays-a-link": ["sh", "-c", "rm -rf /tests && ln -s /etc /tests"],
}


def verifier(root: Path, script: str = CHECK, trusted: bool = False) -> ScriptVerifier:
    root.mkdir()
    (root / "test.sh").write_text(script)
    (root / "test.sh").chmod(0o755)
    config = VerifierConfig(timeout_sec=300)
    return ScriptVerifier(
        config=config, document=None, sources=[root], target="/tests", key="verify-0", env={}, trusted=trusted
    )


class TestVerifying(OverTheHost):
    @pytest.mark.parametrize("user", [None, pytest.param(AGENT, marks=pytest.mark.long)], ids=["root", "agent"])
    @pytest.mark.parametrize(
        "cheat",
        [
            *("steals", "forges", "lays-a-link"),
            *(pytest.param(cheat, marks=pytest.mark.long) for cheat in ("stops-itself", "plants")),
        ],
    )
    async def test_nothing_that_the_agent_left_running_or_lying_reaches_the_reward(
        self, own: Sandbox, tmp_path: Path, cheat: str, user: int | None
    ) -> None:
        await own.mark_baseline()
        await own.exec(CHEATS[cheat], user=user, cwd="/")
        await own.exec_once("turn-0", CHEATS[cheat], user=user, cwd="/")
        result = await verifier(tmp_path / "tests").run(own, tmp_path / "logs")
        assert result.reward == 0.0
        assert (await own.exec(["test", "-e", STOLEN])).return_code == 1

    async def test_only_what_the_oracle_leaves_running_goes_on(self, own: Sandbox, tmp_path: Path) -> None:
        await own.exec(CHEATS["steals"])
        assert (await verifier(tmp_path / "tests", CAUGHT, trusted=True).run(own, tmp_path / "logs")).reward == 1.0

    async def test_a_service_of_the_world_lives_through_it(self, own: Sandbox, tmp_path: Path) -> None:
        await leave(own, length := nap())
        await own.mark_baseline()
        await leave(own, agents := nap())
        await verifier(tmp_path / "tests").run(own, tmp_path / "logs")
        assert await napping(own, length, agents) == [length]

    @pytest.mark.long
    async def test_a_link_in_place_of_a_reward_is_no_reward(self, own: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "one").write_text("1")
        script = f"#!/bin/sh\nln -s {tmp_path}/one {REWARD}\n"
        with pytest.raises(RewardMissingError):
            await verifier(tmp_path / "tests", script).run(own, tmp_path / "logs")
