"""`benchflow.Sandbox`: the protocol of `contracts.sandbox`, with a method that makes a provider of a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from benchflow.contracts import sandbox as contract
from benchflow.contracts.driver import SandboxDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

if TYPE_CHECKING:
    _Meta = type
else:
    _Meta = type(Protocol)


class _Over(_Meta):
    # A method of the class and not of its objects, so that an implementation of the protocol does not need one.
    def over(cls, driver: SandboxDriver) -> DrivenProvider:  # noqa: N805 - it is a metaclass
        """Return the provider of sandboxes over a driver."""
        return DrivenProvider(driver)


@runtime_checkable
class PublicSandbox(contract.Sandbox, Protocol, metaclass=_Over):
    """A started sandbox, as described by `benchflow.contracts.sandbox`.

    `Sandbox.over(driver)` returns a provider of sandboxes over a driver.
    """
