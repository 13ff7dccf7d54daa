"""Processes that can't be killed: whose error that is."""

from __future__ import annotations

import pytest

from benchflow.errors import BenchFlowError, DaemonUnavailableError, SandboxError, SandboxLostError, VerifierError
from benchflow.planes.reward.hardening.strangers import translate_kill_errors


def test_processes_that_multiply_are_the_verifiers_error_and_not_another_attempt() -> None:
    with pytest.raises(VerifierError, match="multiplies faster") as raised, translate_kill_errors():
        raise SandboxError("what runs in the sandbox multiplies faster than it can be killed")
    assert not raised.value.retryable


@pytest.mark.parametrize("error", [SandboxLostError("is gone"), DaemonUnavailableError("does not answer")])
def test_what_the_agent_need_not_have_done_stays_the_sandboxs_error(error: BenchFlowError) -> None:
    with pytest.raises(type(error)), translate_kill_errors():
        raise error
