"""The public `Sandbox`: the contract's protocol, with the way from a driver to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from benchflow.contracts import sandbox as contract
from benchflow.contracts.driver import SandboxDriver
from benchflow.planes.sandbox.driven.provider import DrivenProvider

if TYPE_CHECKING:
    _Meta = type
else:
    _Meta = type(Protocol)


class _Over(_Meta):
    # Of the class and not of its objects: whoever implements the protocol has no such method.
    def over(cls, driver: SandboxDriver) -> DrivenProvider:
        """Return the provider of sandboxes over a driver."""
        return DrivenProvider(driver)


@runtime_checkable
class Sandbox(contract.Sandbox, Protocol, metaclass=_Over):
    """A started sandbox, as `benchflow.contracts.sandbox` has it. `Sandbox.over(driver)` makes the provider of some."""
