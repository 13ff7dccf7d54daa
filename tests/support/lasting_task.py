"""Tasks with a part that lasts as long as a test wants, and writes a line in each of its rounds.

A part has a fixed number of rounds, two a second, and from when it is told, as fast as it can: so what it leaves is the
same, however long it took, but for the times. A part that was started twice, or not finished, leaves something
else.
"""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import tomlkit
from support.counted_task import BASE_IMAGE, enough

from benchflow.contracts.job import AgentSpec
from benchflow.paths import RolloutPaths
from benchflow.testing import demo_agent
from benchflow.testing.scripted_model import ModelRequest, ScriptedModel
from benchflow.trajectories.journal import read_journal

Json = dict[str, Any]
Part = Literal["turn", "solution", "verifier"]

AGENT = "lasting"
PART, LAST_ROUNDS = "/tmp/lasts", "/tmp/last-rounds"
"""Steps, as `EmbeddedStack.in_step` and `let_go` know them: the part, whose first round waits until it is let go, and
its end, before which there is a pause between two rounds."""

EVERY_SEC = 0.5
"""Seconds between two rounds of a part that is held."""

LIMIT_SEC = 7200
"""Seconds that a turn, a verifier, and a call of the agent's may take: more than any outage."""

_ROUNDS = "rounds"
# Calls that offer none are taken for an agent's own, such as for a title.
_TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
_PAUSE = f"[ -e {enough(LAST_ROUNDS)} ] || sleep {EVERY_SEC:g}"
_BEGIN = f"touch {PART}; until [ -e {enough(PART)} ]; do sleep 0.2; done"
_LASTS = f"{_BEGIN}; n=0; while [ $n -lt %d ]; do echo $n $(date +%%s.%%N) >> %s; {_PAUSE}; n=$((n + 1)); done\n"
_TEST = f"""#!/bin/sh
%scp /app/{_ROUNDS} /logs/verifier/acted
if [ "$(cut -d' ' -f1 /app/{_ROUNDS} | tr '\\n' ' ')" = "$(seq -s' ' 0 %d) " ]; then echo 1; else echo 0; fi \\
  > /logs/verifier/reward.txt
"""


def declare_agent(directory: Path) -> None:
    """Put the agent, which calls its model in each round, into a directory of agents."""
    directory.mkdir(parents=True)
    endpoint = {
        "api": "openai-chat",
        "providers": ["openai"],
        "credentials": ["OPENAI_API_KEY"],
        "env": {"OPENAI_MODEL": "{model}", "OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{api_key}"},
    }
    record = {
        "name": AGENT,
        "description": "Writes a line and calls its model, again and again.",
        "protocol": "acp",
        "launch": ["python3", "/opt/demo_agent.py", "/opt/script.json"],
        "model": {"by": "env"},
        "endpoints": [endpoint],
    }
    (directory / f"{AGENT}.toml").write_text(tomlkit.dumps(record))


def agent_of(model: ScriptedModel) -> AgentSpec:
    env = {"OPENAI_API_KEY": "a-key-of-no-worth"}
    return AgentSpec(name=AGENT, model="openai/scripted", base_url=model.openai_base_url, env=env)


def reply(request: ModelRequest) -> Json:
    """Answer for the model of these agents: what it says depends on the request alone."""
    return {"text": f"Heard {request.user_text}.", "usage": {"input": 10, "output": 5}}


def write_lasting_task(root: Path, name: str, part: Part, rounds: int, *, in_clean_room: bool = False) -> Path:
    """Write the task.

    Args:
        part: What lasts: the turn of the agent of this module, the oracle's solution, or the verifier.
        rounds: How many rounds that part has; the others have one, or none.
        in_clean_room: Whether its verifier has a sandbox of its own.
    """
    task = root / name
    for directory in ("environment", "tests", "solution"):
        (task / directory).mkdir(parents=True)
    shutil.copy(demo_agent.__file__, task / "environment" / "demo_agent.py")
    line = f"echo {{i}} $(date +%s.%N) >> /app/{_ROUNDS}; {_PAUSE}"
    call = {"model": "round {i}", "body": {"tools": [_TOOL]}, "timeout": LIMIT_SEC}
    one_round = [{"run": line, "silent": True}, call]
    turn = [{"run": _BEGIN, "silent": True}, {"repeat": rounds, "do": one_round}]
    script = {"turns": [turn], "log": "/logs/agent/received.jsonl"}
    (task / "environment" / "script.json").write_text(json.dumps(script))
    (task / "environment" / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\nWORKDIR /app\nCOPY demo_agent.py script.json /opt/\n"
    )
    mode = "separate" if in_clean_room else "shared"
    (task / "task.toml").write_text(
        f'[environment]\nnetwork_mode = "no-network"\n\n[agent]\ntimeout_sec = {LIMIT_SEC}\n\n'
        f'[verifier]\ntimeout_sec = {LIMIT_SEC}\nenvironment_mode = "{mode}"\n'
    )
    (task / "instruction.md").write_text("Do what there is to do.\n")
    acted = 1 if part == "verifier" else rounds
    verifying = _LASTS % (rounds, f"/logs/verifier/{_ROUNDS}") if part == "verifier" else ""
    solving = _LASTS % (rounds, f"/app/{_ROUNDS}") if part == "solution" else f"echo 0 0 >> /app/{_ROUNDS}\n"
    for file, text in (
        ("solution/solve.sh", f"#!/bin/sh\n{solving}"),
        ("tests/test.sh", _TEST % (verifying, acted - 1)),
    ):
        (task / file).write_text(text)
        (task / file).chmod(0o755)
    return task


def times_of(paths: RolloutPaths, part: Part, rounds: int) -> list[float]:
    """Return when each round of the part that lasted was; each must have been done once, in order."""
    file = paths.verifier / (_ROUNDS if part == "verifier" else "acted")
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [int(number) for number, _ in lines] == list(range(rounds))
    return [float(moment) for _, moment in lines]


def calls_of(paths: RolloutPaths) -> list[Json]:
    """Return the lines of a rollout's record of calls, but for what no two rollouts have in common."""
    found = []
    for line in read_journal(paths.model_calls):
        # The scripted model counts its answers.
        text = re.sub(r'(?<=scripted)\d+|(?<=created\\": )\d+', "0", json.dumps(line))
        found.append({key: value for key, value in json.loads(text).items() if key not in ("id", "ts", "timing")})
    return found


def moments_of(paths: RolloutPaths) -> list[float]:
    """Return when each call of a rollout's agent was made."""
    lines = read_journal(paths.model_calls)
    return [datetime.fromisoformat(line["ts"]).timestamp() for line in lines if line["type"] == "request"]


def talk_of(paths: RolloutPaths) -> dict[str, list[str]]:
    """Return both journals of the one session, but for the session's id."""
    texts = {name: (paths.sessions / "0.0" / name).read_text() for name in ("in.jsonl", "out.jsonl")}
    found = re.search(r'"sessionId": ?"([^"]+)"', texts["out.jsonl"])
    assert found is not None
    return {name: text.replace(found[1], "SESSION").splitlines() for name, text in texts.items()}
