"""The compose file for a shared Temporal service is well-formed and says the same as the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from support.paths import ROOT

from benchflow.contracts import temporal_names

TEXT = (ROOT / "docker-compose.temporal.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
ATTRIBUTES = dict.fromkeys(temporal_names.KEYWORD_ATTRIBUTES, "Keyword") | dict.fromkeys(
    temporal_names.DOUBLE_ATTRIBUTES, "Double"
)


def profile(name: str) -> dict[str, Any]:
    return {key: service for key, service in SERVICES.items() if service["profiles"] == [name]}


def test_each_profile_has_its_services() -> None:
    assert set(profile("dev")) == {"temporal-dev", "temporal-dev-retention"}
    assert set(profile("postgres")) == {
        "postgres",
        "temporal-schema",
        "temporal",
        "temporal-namespace",
        "temporal-ui",
    }
    assert set(profile("dev")) | set(profile("postgres")) == set(SERVICES)


@pytest.mark.parametrize("name", ["dev", "postgres"])
def test_a_profile_depends_only_on_itself(name: str) -> None:
    for service in profile(name).values():
        assert set(service.get("depends_on", {})) <= set(profile(name))


def test_the_dev_server_listens_for_others_and_knows_namespace_and_attributes() -> None:
    command = SERVICES["temporal-dev"]["command"]
    assert {"--ip=0.0.0.0", "--namespace=benchflow"} <= set(command)
    assert {f"--search-attribute={name}={kind}" for name, kind in ATTRIBUTES.items()} <= set(command)
    assert "--retention=365d" in SERVICES["temporal-dev-retention"]["command"]


def test_the_cluster_has_its_shards_store_and_dynamic_configuration() -> None:
    environment = SERVICES["temporal"]["environment"]
    assert environment["NUM_HISTORY_SHARDS"] == "512"
    assert environment["DB"] == "postgres12"
    mounted = environment["DYNAMIC_CONFIG_FILE_PATH"].replace("/deploy", "deploy/temporal")
    values = yaml.safe_load((ROOT / mounted).read_text())
    assert all([set(entry) == {"value"} for entry in entries] for entries in values.values())


def test_the_namespace_job_registers_every_attribute_and_the_retention() -> None:
    script = (ROOT / "deploy/temporal/namespace.sh").read_text()
    assert set(re.findall(r"Benchflow[A-Z]\w+", script)) == set(ATTRIBUTES)
    assert "attribute BenchflowReward Double" in script
    environment = SERVICES["temporal-namespace"]["environment"]
    assert (environment["TEMPORAL_NAMESPACE"], environment["RETENTION"]) == ("benchflow", "365d")


def test_mounted_scripts_are_there() -> None:
    for service in SERVICES.values():
        for part in service.get("entrypoint", []):
            if part.startswith("/deploy/"):
                assert (ROOT / "deploy/temporal" / part.removeprefix("/deploy/")).is_file()


def test_no_image_is_the_deprecated_one() -> None:
    assert not any("auto-setup" in service["image"] for service in SERVICES.values())


def test_ports_are_private_unless_asked_for() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("${BENCHFLOW_TEMPORAL_BIND:-127.0.0.1}:") for port in ports)


def test_the_header_shows_how_to_point_submit_and_worker_at_it() -> None:
    for words in (
        "TEMPORAL_ADDRESS=",
        "TEMPORAL_NAMESPACE=benchflow",
        "BENCHFLOW_STORE=",
        "benchflow.cli submit",
        "benchflow.cli worker",
    ):
        assert words in TEXT
