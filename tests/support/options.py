"""Options of workers and of jobs, set where these read them: in the environment."""

from __future__ import annotations

import pytest

from benchflow.contracts.operator_options import WorkerOptions, WorkflowOptions


def set_options(patch: pytest.MonkeyPatch, options: WorkerOptions | WorkflowOptions) -> None:
    """Put the options that were given into the environment, from which workers and `submit` read them."""
    for name in options.model_fields_set:
        patch.setenv(options.variables()[name], str(getattr(options, name)))
