"""Small agents: records whose packages are a few kilobytes, and a toolbox of one of them that all tests share."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.small_agents import node_agent, python_agent

from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox


@pytest.fixture(scope="session")
def node_toolbox(kept: StatePaths) -> Toolbox:
    toolbox = asyncio.run(ensure_toolbox(node_agent(), kept))
    assert toolbox is not None
    return toolbox


@pytest.fixture(scope="session")
def python_toolbox(kept: StatePaths) -> Toolbox:
    toolbox = asyncio.run(ensure_toolbox(python_agent(), kept))
    assert toolbox is not None
    return toolbox


@pytest.fixture
def acp_agent(tmp_path: Path) -> Path:
    """A program that speaks as much ACP as `initialize`; its first argument says how, its second how long it naps."""
    file = tmp_path / "speaks.py"
    file.write_text(SPEAKS)
    file.chmod(0o755)
    return file


SPEAKS = f"""#!{sys.executable}
import json, os, subprocess, sys, time
how = sys.argv[1]
if how == "exits":
    sys.exit("no gateway here")
if how == "forks":
    subprocess.Popen(["sleep", sys.argv[2]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
request = json.loads(sys.stdin.readline())
if how == "hangs":
    time.sleep(600)
if how == "babbles":
    print("Welcome!", flush=True)
print(json.dumps({{"jsonrpc": "2.0", "method": "_notice", "params": {{}}}}), flush=True)
answer = {{
    "protocolVersion": request["params"]["protocolVersion"],
    "agentInfo": {{"name": "small", "version": "2.0.0" if how == "other" else "1.0.0"}},
    "agentCapabilities": {{"loadSession": how != "forgets", "promptCapabilities": {{"image": True}}}},
    "authMethods": [],
    "_meta": {{"home": os.environ["HOME"], "secret": os.environ.get("ANTHROPIC_API_KEY")}},
}}
if how == "tells":
    answer["agentCapabilities"]["_meta"] = answer["_meta"]
reply = {{"jsonrpc": "2.0", "id": request["id"], "result": {{}} if how == "nonsense" else answer}}
print(json.dumps(reply), flush=True)
sys.stdin.readline()
"""
