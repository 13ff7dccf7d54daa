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

The suite takes some minutes, mostly to start sandboxes and build images. Each theme is a class of its own
(`CommandTests`, `ExactlyOnceTests`, `ForkTests`, ...), so that an unfinished provider can begin with one of them.
"""

from __future__ import annotations

import pytest

THEMES = (
    *("borders", "builds", "commands", "endings", "files", "fixtures", "lifecycle", "lockdown", "networks", "once"),
    *("others", "packs", "processes", "snapshots", "transfers", "worlds"),
)
pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in THEMES))

# After the call above, so that a failing assertion of the suite shows its values.
from benchflow.testing.sandbox_conformance.border_tests import LimitTests, PrivacyTests  # noqa: E402
from benchflow.testing.sandbox_conformance.build_tests import BuildTests  # noqa: E402
from benchflow.testing.sandbox_conformance.command_tests import CommandTests, ControlTests, StreamTests  # noqa: E402
from benchflow.testing.sandbox_conformance.exactly_once_tests import ExactlyOnceTests  # noqa: E402
from benchflow.testing.sandbox_conformance.file_tests import FileTests  # noqa: E402
from benchflow.testing.sandbox_conformance.lifecycle_tests import AttachTests, FreezeTests, RemovalTests, StartTests  # noqa: E402
from benchflow.testing.sandbox_conformance.lockdown_tests import LockdownTests  # noqa: E402
from benchflow.testing.sandbox_conformance.network_tests import NetworkTests  # noqa: E402
from benchflow.testing.sandbox_conformance.pack_tests import PackTests  # noqa: E402
from benchflow.testing.sandbox_conformance.process_tests import ProcessTests  # noqa: E402
from benchflow.testing.sandbox_conformance.snapshot_tests import ForkTests, RefusalTests, SnapshotTests  # noqa: E402
from benchflow.testing.sandbox_conformance.timeout_tests import TimeoutTests  # noqa: E402
from benchflow.testing.sandbox_conformance.transfer_tests import DownloadTests, UploadTests  # noqa: E402
from benchflow.testing.sandbox_conformance.world_tests import (  # noqa: E402
    BaseImageTests,
    EntrypointTests,
    PortTests,
    SharedNetworkTests,
)

__all__ = [
    *(
        "BaseImageTests",
        "BuildTests",
        "CommandTests",
        "ControlTests",
        "DownloadTests",
        "RemovalTests",
        "TimeoutTests",
        "SharedNetworkTests",
        "ExactlyOnceTests",
        "FileTests",
    ),
    *(
        "AttachTests",
        "ForkTests",
        "LimitTests",
        "LockdownTests",
        "NetworkTests",
        "PackTests",
        "PortTests",
        "PrivacyTests",
        "ProcessTests",
        "RefusalTests",
        "SandboxConformance",
    ),
    "FreezeTests",
    *("SnapshotTests", "StartTests", "StreamTests", "UploadTests", "EntrypointTests"),
]


@pytest.mark.asyncio
class SandboxConformance(
    CommandTests,
    ControlTests,
    StreamTests,
    TimeoutTests,
    ExactlyOnceTests,
    FileTests,
    UploadTests,
    DownloadTests,
    ProcessTests,
    NetworkTests,
    LimitTests,
    PrivacyTests,
    LockdownTests,
    BuildTests,
    StartTests,
    AttachTests,
    RemovalTests,
    FreezeTests,
    RefusalTests,
    SnapshotTests,
    ForkTests,
    PackTests,
    BaseImageTests,
    EntrypointTests,
    SharedNetworkTests,
    PortTests,
):
    """The whole suite. Subclass it under a name that pytest collects, and set `provider_path`."""
