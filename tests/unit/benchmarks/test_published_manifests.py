"""The manifests of published benchmarks say what those benchmarks say, and their READMEs explain every key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from support.paths import BENCHMARKS

from benchflow.contracts.environment import ForwardEnv, Manifest, Readiness, Service, TaskSelection
from benchflow.planes.environment.environment_manifest import read_manifest

PUBLISHED = ["clawsbench", "chi-bench"]


def test_clawsbench_is_five_services_that_the_framework_starts() -> None:
    assert read_manifest(BENCHMARKS / "clawsbench/environment.toml") == Manifest(
        name="clawsbench",
        image=None,
        base_image="kywch/smolclaws-base:latest",
        ports=(),
        owns_lifecycle=False,
        keep_alive=True,
        isolation="per_task",
        task_selection=TaskSelection(mechanism="image"),
        services=tuple(
            Service(
                name=name,
                command=f"claw-{name} --db /data/{name}.db serve --host 0.0.0.0 --port {port} --no-mcp",
                port=port,
                health_path="/health",
            )
            for name, port in (("gmail", 9001), ("slack", 9002), ("gcal", 9003), ("gdoc", 9004), ("gdrive", 9005))
        ),
        readiness=Readiness(http=(), tcp=(), timeout_sec=60),
        forward_env=ForwardEnv(keys=("ANTHROPIC_API_KEY",)),
        state=None,
    )


def test_chi_bench_is_one_image_that_starts_itself() -> None:
    manifest = read_manifest(BENCHMARKS / "chi-bench/environment.toml")
    assert manifest == Manifest(
        name="chi-bench",
        image="chi-bench:latest",
        base_image=None,
        ports=(8020, 8023, 8100, 8200),
        owns_lifecycle=True,
        keep_alive=True,
        isolation="per_task",
        task_selection=TaskSelection(mechanism="env_var", key="CHI_BENCH_TASK_ID", inject_into="entrypoint"),
        services=(),
        readiness=Readiness(http=("http://localhost:8023/health",), tcp=(), timeout_sec=120),
        forward_env=ForwardEnv(keys=("ANTHROPIC_API_KEY",)),
        state=None,
    )
    assert manifest.task_env("one", "entrypoint") == {"CHI_BENCH_TASK_ID": "one"}
    assert manifest.task_env("one", "exec") == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_readme_explains_each_key_of_its_manifest(name: str) -> None:
    table = tomllib.loads((BENCHMARKS / name / "environment.toml").read_text())["environment"]
    rows = set(re.findall(r"^\| `([^`]+)` \|", (BENCHMARKS / name / "README.md").read_text(), re.M))
    assert set(keys_of(table)) <= rows


def keys_of(table: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{above}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from keys_of(value[0], f"{above}{key}[].")
        else:
            yield f"{above}{key}"
