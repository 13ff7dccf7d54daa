"""Sandboxes that are verified in, and the verifiers: what the tests of running a verifier stand on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.verifier import VerifierConfig, VerifierDocument
from benchflow.planes.reward.verify import ScriptVerifier
from benchflow.planes.sandbox.local.local_images import BARE
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures
from benchflow.testing.waiting import until

AGENT = 61000


class InLocal(SandboxFixtures):
    """Local sandboxes that start from the host as it is."""

    provider_path = "benchflow.planes.sandbox.local.local_driver:LocalDriver"

    @pytest.fixture(scope="class")
    @classmethod
    def image(cls) -> ImageRef:
        return ImageRef(reference=BARE)


class InDocker(SandboxFixtures):
    """Containers."""

    provider_path = "benchflow.planes.sandbox.docker:DockerDriver"
    base_image = os.environ.get("BENCHFLOW_TEST_IMAGE", "debian:bookworm-slim")


async def sh(sandbox: Sandbox, script: str, *, user: int | None = None) -> str:
    """What a shell script prints; it must succeed."""
    said = await sandbox.exec(["sh", "-c", f"set -e\n{script}"], user=user, cwd="/", timeout=600)
    assert said.return_code == 0, (said.stdout, said.stderr)
    return said.stdout


async def written(sandbox: Sandbox, path: str) -> None:
    """Wait until a file is there, without a process of its own in the sandbox, which might be taken for an agent's."""

    async def look() -> bytes:
        try:
            return await sandbox.read_bytes(path)
        except FileNotFoundError:
            return b""

    await until(look)


def verifier(root: Path, files: dict[str, str], **options: Any) -> ScriptVerifier:
    """A verifier of these files. config: fields of `VerifierConfig`; strategy, outputs: of a verifier's document."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    strategy, outputs = options.pop("strategy", None), options.pop("outputs", {})
    document = None
    if strategy is not None:
        declared = {"default_strategy": "own", "name": "small", "strategies": {"own": strategy}, "outputs": outputs}
        document = VerifierDocument.model_validate(declared)
    fields = {"key": "verify-0", "env": {}, "trusted": False, "target": "/tests"} | options
    config = VerifierConfig.model_validate({"timeout_sec": 120} | fields.pop("config", {}))
    return ScriptVerifier(config=config, document=document, sources=[root], **fields)
