"""An engine without any defence, to show that an attack is one: a container, the agent, the verifier, its reward.

Nothing ends, nothing is made anew, and the verifier runs with what is there.
"""

from __future__ import annotations

import io
import json
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.models.containers import Container
from support.attack_package import Attack

AGENT = 61000
_ACCOUNT = """
mkdir -p /logs/verifier /tests
echo "agent:x:$1:$1::/home/agent:/bin/sh" >> /etc/passwd
mkdir -p /home/agent
chown -R "$1:$1" /home/agent "$2"
"""
_VERIFY = "cd /tests && ./test.sh > /logs/verifier/test-stdout.txt 2>&1"


@contextmanager
def _container(environment: Path) -> Iterator[Container]:
    client = docker.from_env(timeout=600)
    try:
        # An image of its own, of which nothing else goes with it: the engine may be building upon the same layers.
        name = f"benchflow-attack:{uuid.uuid4().hex}"
        client.images.build(path=str(environment), tag=name, rm=True, labels={"benchflow.attack": name})
        running = client.containers.run(name, ["sleep", "600"], detach=True, init=True, network_mode="none")
        try:
            yield running
        finally:
            running.remove(force=True)
            client.images.remove(name, noprune=True)
    finally:
        client.close()


def reward_of(attack: Attack) -> float | None:
    """What the attack earns here; None when there is no reward."""
    with _container(attack.directory / "environment") as container:
        workspace = container.attrs["Config"]["WorkingDir"]
        container.exec_run(["sh", "-c", _ACCOUNT, "sh", str(AGENT), workspace])
        for command in attack.task.sandbox.setup_commands:
            container.exec_run(["sh", "-c", command.command])
        user = attack.task.agent.user or AGENT
        container.exec_run(["sh", "/attack.sh"], user=str(user), workdir=workspace)
        container.put_archive("/tests", _packed(attack.directory / "tests"))
        container.exec_run(["sh", "-c", _VERIFY])
        return _reward(container)


def _packed(directory: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(directory, ".")
    return packed.getvalue()


def _reward(container: Container) -> float | None:
    for name in ("reward.json", "reward.txt"):
        command = ["cat", f"/logs/verifier/{name}"]
        # On a busy machine the daemon at times loses what a command prints.
        read = container.exec_run(command)
        if not read.output:
            read = container.exec_run(command)
        if read.exit_code == 0:
            assert isinstance(read.output, bytes)
            return float(json.loads(read.output)["reward"] if name.endswith("json") else read.output)
    return None
