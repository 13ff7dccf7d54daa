"""A real pytest under the variables that are pinned: whose plugins it loads, and whose configuration it reads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from benchflow.contracts.verifier import VerifierConfig
from benchflow.planes.reward.hardening import HardeningBaseline, is_plugin_missing, make_verifier_env
from benchflow.planes.reward.hardening.verifier_dependencies import SHADOWED
from benchflow.planes.reward.hardening.verifier_environment import PLUGIN, PLUGINS, make_plugin_source
from benchflow.testing.waiting import until


def package(site: Path, name: str) -> None:
    """Make a distribution with a plugin that says that it was loaded."""
    (site / f"{name}_mod.py").write_text(f"print('loaded {name}')\n")
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}_mod\n")


def test_plugins_of_the_image_of_the_task_and_of_the_verifier_are_loaded(tmp_path: Path) -> None:
    site, own, app, tests = (tmp_path / name for name in ("site", "own", "app", "tests"))
    for directory in (site, own, app, tests):
        directory.mkdir()
    baseline = HardeningBaseline(path=os.environ["PATH"], directories=os.environ["PATH"].split(":"), plugins=["image"])
    for name in ("image", "agent", "named"):
        package(site, name)
    plugin = own / f"{PLUGIN}.py"

    def is_placed() -> bool:
        """As in a sandbox, after the agent has ended: by the clock of files, whose ticks are long."""
        plugin.write_text(make_plugin_source(baseline, ["named"]))
        return plugin.stat().st_ctime > max(path.stat().st_ctime for path in site.iterdir())

    asyncio.run(until(is_placed))
    package(site, "verifiers")
    (app / "pytest.ini").write_text("[pytest]\naddopts = --unknown-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('the conftest above the tests was read')\n")
    (tests / "test_it.py").write_text("def test_it(): pass\n")
    env = make_verifier_env(baseline, VerifierConfig(), target=str(tests), workspace=str(app))
    env["PYTHONPATH"] = env["PYTHONPATH"].replace(PLUGINS, f"{own}:{site}")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tests)],
        env={**env, "PATH": os.environ["PATH"]},
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    loaded = {line.split()[1] for line in ran.stdout.splitlines() if line.startswith("loaded")}
    assert loaded == {"image", "named", "verifiers"}


def test_a_python_that_does_not_find_the_plugin_says_so(tmp_path: Path) -> None:
    env = {**os.environ, "PYTEST_ADDOPTS": f"-p {PLUGIN}"}
    ran = subprocess.run(
        [sys.executable, "-I", "-m", "pytest", str(tmp_path)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode != 0 and is_plugin_missing(ran.stdout + ran.stderr)


IMPORTED = """
import os, sys
origins = {name: str(getattr(module.__spec__, "origin", "")) for name, module in sys.modules.items() if "." not in name}
print("imported", *[name for name, origin in origins.items() if os.path.isabs(origin) and name != "probe"])
"""


def test_what_pytest_has_imported_when_it_loads_plugins_is_what_must_not_be_shadowed(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(IMPORTED)
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "probe", "-p", "no:cacheprovider", "-c", os.devnull]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    imported = {name for line in ran.stdout.splitlines() if line.startswith("imported ") for name in line.split()[1:]}
    standard = {name for name in imported if name in sys.stdlib_module_names}
    assert len(standard) > 50 and standard - SHADOWED == set()
    assert {"pytest", "_pytest", "pluggy"} <= imported & SHADOWED
