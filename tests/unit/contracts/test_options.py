"""Options from environment variables: read once, checked, and refused by name."""

from __future__ import annotations

import pytest
from support.paths import ROOT

from benchflow.contracts.job import JobSpec
from benchflow.contracts.options import WorkerOptions, WorkflowOptions
from benchflow.errors import ConfigError
from benchflow.jobs import spec_digest

OPERATING = ROOT / "docs" / "operating.md"


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5", ""])
def test_a_capacity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerOptions.from_environment({"BENCHFLOW_HOST_CAPACITY": text})
    assert caught.value.key == "BENCHFLOW_HOST_CAPACITY"
    assert caught.value.remedy


def test_the_capacity_is_the_setting_or_follows_the_cores() -> None:
    assert WorkerOptions.from_environment({"BENCHFLOW_HOST_CAPACITY": "3"}).capacity == 3
    assert WorkerOptions.from_environment({}).capacity >= 8


@pytest.mark.parametrize("options", [WorkerOptions, WorkflowOptions])
def test_every_option_is_read_from_its_variable(options: type[WorkerOptions] | type[WorkflowOptions]) -> None:
    for field, variable in options.variables().items():
        assert getattr(options.from_environment({variable: "77"}), field) == 77
    assert options.from_environment({}) == options()


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon"])
def test_a_value_that_is_no_duration_is_refused_by_its_variable(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkflowOptions.from_environment({"BENCHFLOW_WORKFLOW_HEARTBEAT_TIMEOUT_SEC": text})
    assert caught.value.key == "BENCHFLOW_WORKFLOW_HEARTBEAT_TIMEOUT_SEC"


def test_a_variable_that_names_no_option_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="BENCHFLOW_WORKFLOW_HEARTBEAT is not an option") as caught:
        WorkflowOptions.from_environment({"BENCHFLOW_WORKFLOW_HEARTBEAT": "60"})
    assert "BENCHFLOW_WORKFLOW_HEARTBEAT_TIMEOUT_SEC" in str(caught.value.remedy)


@pytest.mark.parametrize("options", [WorkerOptions, WorkflowOptions])
def test_every_option_is_in_the_operators_table_with_its_default(
    options: type[WorkerOptions] | type[WorkflowOptions],
) -> None:
    rows = {line.split("`")[1]: line for line in OPERATING.read_text().splitlines() if line.startswith("| `")}
    for name, field in options.model_fields.items():
        row = rows[options.variables()[name]]
        assert row.endswith("| 4 a core, at least 8 |" if name == "capacity" else f"| {field.default:g} |"), row


def test_the_same_job_under_other_options_is_the_same_job() -> None:
    spec = JobSpec(name="j", tasks=[], agents=[])
    slow = spec.model_copy(update={"options": WorkflowOptions(heartbeat_timeout_sec=600)})
    assert spec_digest(spec) == spec_digest(slow)


def test_a_specification_without_options_was_made_before_there_were_any() -> None:
    stored = JobSpec(name="j", tasks=[], agents=[]).model_dump(mode="json", exclude={"options"})
    assert JobSpec.model_validate(stored).options == WorkflowOptions()
