"""The package's own agents, on the shared stack."""

from __future__ import annotations

import pytest
from support.attack_package import AGENTS


@pytest.fixture(scope="module")
def stack_variables(packages_layer: None) -> dict[str, str]:
    return {"BENCHFLOW_AGENTS_DIR": str(AGENTS)}
