"""Conformance tests for sandbox providers. A provider that passes them all can be used for every task.

`docs/custom-sandbox.md` shows how to write a driver, or a whole provider. This suite then shows what is missing
(pytest, pytest-asyncio and pytest-timeout must be installed):

    # test_my_sandbox.py
    from benchflow.testing.sandbox_conformance import SandboxConformance

    class TestMySandbox(SandboxConformance):
        provider_path = "my_package.sandbox:MyDriver"
        base_image = "debian:bookworm-slim"

`provider_path` is a path and not an object, because other processes create the provider, too: a worker may die at any
moment, so a provider keeps nothing in memory that it could not find again from a `SandboxRef`. The image needs a
shell, coreutils, procps, util-linux, passwd (`useradd`) and Python 3 with sqlite3. For an image that is not pulled by
its name, override the fixture `image_config` (class scope), which returns an `ImageConfig`; for another state
directory, the fixture `state_directory`.

A feature that `capabilities()` does not claim must be refused with `UnsupportedFeatureError`; a limit that this host
cannot enforce must be a warning of the `SandboxRef` that names it (`memory_mb`, `cpus`, `storage_mb`). Both skip the
tests concerned. BENCHFLOW_TEST_OUTSIDE names a host that serves HTTPS, for the test that a public sandbox reaches the
Internet; it is skipped where the machine that runs the tests does not reach that host itself.

The suite takes some minutes, mostly to start sandboxes and build images. Each theme is a class of its own (`Commands`,
`ExactlyOnce`, `Forks`, ...), so that an unfinished provider can begin with one of them.
"""

from __future__ import annotations

import pytest

THEMES = (
    *("borders", "builds", "commands", "endings", "files", "fixtures", "lifecycle", "lockdown", "networks", "once"),
    *("others", "packs", "processes", "snapshots", "transfers", "worlds"),
)
pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in THEMES))

# After the call above, so that a failing assertion of the suite shows its values.
from benchflow.testing.sandbox_conformance.borders import Limits, Privacy  # noqa: E402
from benchflow.testing.sandbox_conformance.builds import Builds  # noqa: E402
from benchflow.testing.sandbox_conformance.commands import Commands, Control, Streams  # noqa: E402
from benchflow.testing.sandbox_conformance.endings import Endings  # noqa: E402
from benchflow.testing.sandbox_conformance.files import Files  # noqa: E402
from benchflow.testing.sandbox_conformance.lifecycle import Ending, Finding, Freezing, Starting  # noqa: E402
from benchflow.testing.sandbox_conformance.lockdown import Lockdown  # noqa: E402
from benchflow.testing.sandbox_conformance.networks import Networks  # noqa: E402
from benchflow.testing.sandbox_conformance.once import ExactlyOnce  # noqa: E402
from benchflow.testing.sandbox_conformance.packs import Packs  # noqa: E402
from benchflow.testing.sandbox_conformance.processes import Processes  # noqa: E402
from benchflow.testing.sandbox_conformance.snapshots import Forks, Refusing, Snapshots  # noqa: E402
from benchflow.testing.sandbox_conformance.transfers import Downloads, Uploads  # noqa: E402
from benchflow.testing.sandbox_conformance.worlds import Bases, Episodes, Ports, Worlds  # noqa: E402

__all__ = [
    *("Bases", "Builds", "Commands", "Control", "Downloads", "Ending", "Endings", "Episodes", "ExactlyOnce", "Files"),
    *(
        "Finding",
        "Forks",
        "Limits",
        "Lockdown",
        "Networks",
        "Packs",
        "Ports",
        "Privacy",
        "Processes",
        "Refusing",
        "SandboxConformance",
    ),
    "Freezing",
    *("Snapshots", "Starting", "Streams", "Uploads", "Worlds"),
]


@pytest.mark.asyncio
class SandboxConformance(
    Commands,
    Control,
    Streams,
    Endings,
    ExactlyOnce,
    Files,
    Uploads,
    Downloads,
    Processes,
    Networks,
    Limits,
    Privacy,
    Lockdown,
    Builds,
    Starting,
    Finding,
    Ending,
    Freezing,
    Refusing,
    Snapshots,
    Forks,
    Packs,
    Bases,
    Worlds,
    Episodes,
    Ports,
):
    """The whole suite. Subclass it under a name that pytest collects, and set `provider_path`."""
