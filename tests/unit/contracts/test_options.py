"""Options from environment variables: read once, checked, and refused by name."""

from __future__ import annotations

import pytest
from support.paths import ROOT

from benchflow.contracts.job import JobSpec
from benchflow.contracts.operator_options import WorkerOptions, WorkflowOptions
from benchflow.errors import ConfigError
from benchflow.jobs import compute_spec_digest

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
    variables = options.variables()
    for field, variable in variables.items():
        # The first of several waits is no longer than the longest.
        longest = {variables["retry_max_sec"]: "77"} if field == "retry_initial_sec" else {}
        assert getattr(options.from_environment({variable: "77"} | longest), field) == 77
    assert options.from_environment({}) == options()


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon", "1e14", "1e999"])
@pytest.mark.parametrize("options", [WorkerOptions, WorkflowOptions])
def test_a_value_that_no_timer_holds_is_refused_by_its_variable(
    options: type[WorkerOptions] | type[WorkflowOptions], text: str
) -> None:
    for variable in options.variables().values():
        with pytest.raises(ConfigError) as caught:
            options.from_environment({variable: text})
        assert caught.value.key == variable


def test_a_duration_that_would_be_no_limit_at_all_is_refused() -> None:
    for options, field in ((WorkerOptions, "reap_every_sec"), (WorkflowOptions, "heartbeat_timeout_sec")):
        for text in ("0", "1e-7"):
            with pytest.raises(ConfigError):
                options.from_environment({options.variables()[field]: text})


def test_a_first_retry_later_than_any_is_refused_with_both_variables() -> None:
    with pytest.raises(
        ConfigError, match=r"RETRY_INITIAL_SEC \(60\) is more than BENCHFLOW_WORKFLOW_RETRY_MAX_SEC \(10\)"
    ):
        WorkflowOptions.from_environment({"BENCHFLOW_WORKFLOW_RETRY_INITIAL_SEC": "60"})


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
    assert compute_spec_digest(spec) == compute_spec_digest(slow)


def test_a_specification_without_options_was_made_before_there_were_any() -> None:
    stored = JobSpec(name="j", tasks=[], agents=[]).model_dump(mode="json", exclude={"options"})
    assert JobSpec.model_validate(stored).options == WorkflowOptions()
