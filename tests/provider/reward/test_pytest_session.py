"""A real pytest with the engine's plugin: what its run counts as, whatever the tested code does to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow.planes.reward.hardening import HardeningBaseline
from benchflow.planes.reward.hardening.verifier_environment import PLUGIN, make_plugin_source
from benchflow.testing.waiting import until

TESTS = "from calc import add\n\ndef test_a(): assert add(2, 3) == 5\n\ndef test_b(): assert add(-7, 3) == -4\n"
GOOD = "def add(a, b): return a + b\n"
BAD = "def add(a, b): return 0\n"
SESSION = "import sys\nframe = sys._getframe()\nwhile 'session' not in frame.f_locals: frame = frame.f_back\n"
SESSION += "session = frame.f_locals['session']\n"
WITH_MAIN = "import os, pytest, sys\nbefore = os.getpid()\nstatus = pytest.main([sys.argv[1], '-q'])\n"
WITH_MAIN += "assert os.getpid() == before\nsys.exit(status)\n"


@dataclass(frozen=True)
class Run:
    """A project and its tests. command: what is run, with the directory of tests behind it."""

    root: Path
    command: tuple[str, ...] = (sys.executable, "-m", "pytest", "-q")

    def start(self, code: str, *args: str, tests: str = TESTS, plugins: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        baseline = HardeningBaseline(path="", directories=[], plugins=list(plugins))
        source = make_plugin_source(baseline, [], str(self.root / "app"))
        files = {"app/calc.py": code, "tests/test_it.py": tests, f"own/{PLUGIN}.py": source}
        for name, content in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(content)
        app, target, own = (self.root / name for name in ("app", "tests", "own"))
        options = f"-c /dev/null --confcutdir={target} --rootdir={app} -p no:cacheprovider -p {PLUGIN}"
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{own}:{app}", "PYTEST_ADDOPTS": options}
        env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self.root)}
        command = [*self.command, str(target), *args]
        out = subprocess.PIPE
        # A session of its own: what kills its parents reaches nobody else.
        return subprocess.Popen(command, env=env, cwd=app, stdout=out, stderr=out, text=True, start_new_session=True)

    def end(self, code: str, *args: str, tests: str = TESTS, plugins: tuple[str, ...] = ()) -> tuple[int, str]:
        with self.start(code, *args, tests=tests, plugins=plugins) as running:
            out, err = running.communicate(timeout=300)
        return running.returncode, out + err


ENDINGS = {
    "while-imported": "import os\nos._exit(0)\n",
    "in-a-test": "import os\ndef add(a, b): os._exit(0)\n",
    "another-program": "import os\ndef add(a, b): os.execv('/bin/true', ['true'])\n",
    "at-the-end": f"import atexit, os\natexit.register(os._exit, 0)\n{BAD}",
    "by-pytest": "import pytest\ndef add(a, b): pytest.exit('done', returncode=0)\n",
    "by-its-count": f"{SESSION}import threading\n{BAD}def calm():\n    while True: session.testsfailed = 0\n"
    "threading.Thread(target=calm, daemon=True).start()\n",
}


def few(names: Iterable[str], *in_every_run: str) -> list[Any]:
    """Return the parameters of a test, of which only some are in every run."""
    return [pytest.param(name, marks=[] if name in in_every_run else [pytest.mark.long]) for name in names]


@pytest.mark.parametrize("ending", few(ENDINGS, "in-a-test", "at-the-end"))
def test_a_run_that_does_not_come_to_its_own_end_is_no_success(tmp_path: Path, ending: str) -> None:
    status, said = Run(tmp_path).end(ENDINGS[ending])
    assert status not in (0, -signal.SIGKILL), said


def test_a_verifier_may_have_a_root_directory_of_its_own(tmp_path: Path) -> None:
    status, said = Run(tmp_path).end(EXCUSES["skip"], "--rootdir", str(tmp_path / "tests"))
    assert (status, "the code that is tested has skipped" in said) == (70, True), said


def test_it_is_said_why(tmp_path: Path) -> None:
    status, said = Run(tmp_path).end(ENDINGS["while-imported"])
    assert status == 70
    told = "benchflow: this run of pytest counts as failed: the process of the tests ended before their session did"
    assert said.strip() == told


CHANGES = {
    "_pytest.python.Function.runtest": "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
    "_pytest.python.pytest_pyfunc_call": "import _pytest.python as p\n"
    "p.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__\n",
    "_pytest.reports.TestReport.failed": "import _pytest.reports as r\nr.TestReport.failed = False\n"
    "r.TestReport.failed = property(lambda self: False)\n",
    "unittest.case.TestCase.assertEqual": "import unittest\nunittest.TestCase.assertEqual = print\n",
    "pytest_runtest_makereport, by": f"{SESSION}import pytest\nclass Own:\n"
    "    @pytest.hookimpl(hookwrapper=True)\n    def pytest_runtest_makereport(self):\n"
    "        (yield).get_result().outcome = 'passed'\nsession.config.pluginmanager.register(Own())\n",
    "pytest_runtest_call of runner": f"{SESSION}session.config.pluginmanager.unregister(name='runner')\n",
}
UNITTEST = "import unittest\nfrom calc import add\nclass T(unittest.TestCase):\n"
UNITTEST += "    def test_it(self): self.assertEqual(add(1, 1), 2)\n"


@pytest.mark.parametrize(
    "what",
    few(
        CHANGES, "_pytest.python.Function.runtest", "_pytest.reports.TestReport.failed", "pytest_runtest_makereport, by"
    ),
)
def test_a_success_of_a_changed_pytest_is_none(tmp_path: Path, what: str) -> None:
    tests = UNITTEST if "unittest" in what else TESTS
    status, said = Run(tmp_path).end(CHANGES[what] + BAD, tests=tests)
    assert (status, "something has changed" in said, what in said) == (70, True, True), said


SKIPS = "import pytest\ndef {}(): pytest.skip('not here')\n"
EXCUSES = {
    "skip": "import pytest\ndef add(a, b): pytest.skip('not here')\n",
    "skip-of-unittest": "import unittest\ndef add(a, b): raise unittest.SkipTest('not here')\n",
    "expected-failure": "import pytest\ndef add(a, b): pytest.xfail('not yet')\n",
    "while-imported": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
    "called-by-another": "import testing\ndef add(a, b): testing.skip()\n",
}


@pytest.mark.parametrize("how", few(EXCUSES, "skip", "while-imported", "called-by-another"))
@pytest.mark.parametrize("tests", [TESTS, pytest.param(UNITTEST, marks=pytest.mark.long)], ids=["pytest", "unittest"])
def test_a_test_that_the_tested_code_skips_has_failed(tmp_path: Path, how: str, tests: str) -> None:
    others = {"app/testing.py": SKIPS.format("skip"), "tests/test_other.py": "def test_other(): pass\n"}
    for name, content in others.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    status, said = Run(tmp_path).end(EXCUSES[how], tests=tests)
    assert (status, "the code that is tested has skipped" in said) == (70, True), said


SKIPPING = """
import unittest
import pytest
import helpers
from testing import require_machine
from calc import add

def test_one(): assert add(2, 3) == 5

def test_skips(): pytest.skip("by itself")
def test_module(): pytest.importorskip("no_such_module")
def test_fixture(machine): pass
def test_helper(): helpers.require_network()
def test_helper_of_the_project(): require_machine()
def test_xfail(): pytest.xfail("by itself")
def test_slow(): assert False
@pytest.mark.usefixtures("plugged")
def test_plugged(): assert False
def test_raises():
    with pytest.raises(pytest.skip.Exception): require_machine()

@pytest.mark.skipif(add(1, 1) == 2, reason="what is tested is asked")
def test_condition(): assert False

class Case(unittest.TestCase):
    @unittest.skip("by itself")
    def test_marked(self): pass
    def test_skips(self): self.skipTest("by itself")
"""

SKIPPER = """
import pytest

def pytest_runtest_setup(item):
    if item.name == "test_slow": pytest.skip("is slow")

@pytest.fixture
def plugged(): pytest.skip("nothing is plugged in")
"""


def test_a_test_that_is_skipped_by_what_belongs_to_the_tests_is_skipped(tmp_path: Path) -> None:
    files = {
        "tests/conftest.py": "import pytest\nfrom helpers import require_network\n"
        "@pytest.fixture\ndef machine(): require_network()\n",
        "tests/helpers.py": SKIPS.format("require_network"),
        "app/testing.py": SKIPS.format("require_machine"),
        "app/plugged.py": SKIPPER,
        "tests/test_whole.py": "import pytest\npytest.importorskip('no_such_module')\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    status, said = Run(tmp_path).end(GOOD, "-p", "plugged", tests=SKIPPING)
    assert (status, "benchflow:" in said, "11 skipped, 1 xfailed" in said) == (0, False, True), said


def test_a_suite_in_the_workspace_skips_as_it_likes(tmp_path: Path) -> None:
    suite = tmp_path / "app" / "tests" / "test_own.py"
    suite.parent.mkdir(parents=True)
    suite.write_text(TESTS)
    status, said = Run(tmp_path).end(EXCUSES["skip"], str(suite), tests="def test_other(): pass\n")
    assert (status, "benchflow:" in said, "2 skipped" in said) == (0, False, True), said


HONEST = """
import multiprocessing, os, subprocess, sys, threading, unittest
from unittest import mock
import _pytest.runner
import pytest
from calc import add

class Own:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self): yield

def double(x): return add(x, x)

@pytest.mark.parametrize("x", [1, 2])
def test_fixtures(x, tmp_path, capfd, caplog, monkeypatch, recwarn):
    monkeypatch.setattr(os, "getcwd", lambda: "x")
    monkeypatch.setattr("_pytest.main.Session.perform_collect", print)
    assert double(x) == 2 * x

@mock.patch("_pytest.main.Session.perform_collect")
def test_mock(patched): assert add(1, 1) == 2

@pytest.mark.xfail
def test_expected(): assert add(1, 1) == 3

@pytest.mark.skip
def test_skipped(): assert False

class Case(unittest.TestCase):
    @unittest.expectedFailure
    def test_expected(self): self.assertEqual(add(1, 1), 3)
    def test_sub(self):
        with self.subTest(x=1): self.assertEqual(add(1, 1), 2)

def test_processes():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(double, [1, 2]) == [2, 4]
    thread = threading.Thread(target=double, args=(1,)); thread.start(); thread.join()
    with pytest.raises(SystemExit): sys.exit(0)

def test_another_pytest(pytester):
    pytester.makepyfile("def test(): assert 0")
    assert pytester.inline_run().ret == 1
    assert pytester.runpytest_subprocess().ret == 1
"""
CONFTEST = "from calc import add\nimport pytest\nclass Own:\n    @pytest.hookimpl(hookwrapper=True)\n"
CONFTEST += "    def pytest_runtest_makereport(self): yield\n"
CONFTEST += "def pytest_addoption(parser): parser.addoption('--own')\n"
CONFTEST += "def pytest_configure(config): config.pluginmanager.register(Own())\n"


def test_what_honest_suites_do_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    status, said = Run(tmp_path).end(GOOD, "-p", "pytester", "-W", "ignore", tests=HONEST)
    assert (status, "benchflow:" in said) == (0, False), said


@pytest.mark.parametrize(
    ("code", "args", "status"),
    [
        (GOOD, ["--collect-only"], 0),
        pytest.param(GOOD, ["--version", "--version"], 0, marks=pytest.mark.long),
        (BAD, ["-x", "-s"], 1),
        pytest.param(GOOD, ["-k", "no_such_test"], 5, marks=pytest.mark.long),
        pytest.param(GOOD, ["--no-such-option"], 4, marks=pytest.mark.long),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n", [], -signal.SIGTERM),
    ],
)
def test_all_other_ends_are_as_they_are(tmp_path: Path, code: str, args: list[str], status: int) -> None:
    ended, said = Run(tmp_path).end(code, *args)
    assert (ended, "benchflow:" in said) == (status, False), said


WAIT = "import os, pathlib, time\ndef test_it():\n    pathlib.Path('pid').write_text(str(os.getpid()))\n"
WAIT += "    time.sleep(600)\n"


def session_of(running: subprocess.Popen[str], run: Run) -> int:
    """The process of the tests, once it runs them."""
    file = run.root / "app" / "pid"

    def begun() -> bool:
        assert running.poll() is None
        return file.exists() and file.read_text() != ""

    asyncio.run(until(begun))
    return int(file.read_text())


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT, signal.SIGKILL]
)
def test_a_signal_reaches_the_tests(tmp_path: Path, number: signal.Signals) -> None:
    run = Run(tmp_path)
    with run.start(GOOD, tests=WAIT) as running:
        session = session_of(running, run)
        assert session != running.pid
        running.send_signal(number)
        # Its output ends when nobody holds it any more; the test would have for ten minutes.
        out, _ = running.communicate(timeout=300)
    assert running.returncode == (2 if number == signal.SIGINT else -number)
    assert ("KeyboardInterrupt" in out) == (number == signal.SIGINT)


def test_what_the_tests_leave_running_ends_with_them(tmp_path: Path) -> None:
    left = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    left += "        open('left', 'w').write(str(os.getpid()))\n        os.closerange(0, 100)\n        time.sleep(99)\n"
    left += f"    os._exit(0)\nwhile not (os.path.exists('left') and open('left').read()): time.sleep(0.01)\n{GOOD}"
    assert Run(tmp_path).end(left)[0] == 0
    assert not Path(f"/proc/{(tmp_path / 'app' / 'left').read_text()}").exists()


def test_a_program_that_calls_pytest_stays_one_process(tmp_path: Path) -> None:
    run = Run(tmp_path, (sys.executable, "-c", WITH_MAIN))
    assert [run.end(code)[0] for code in (GOOD, BAD)] == [0, 1]
    changed = CHANGES["_pytest.python.Function.runtest"] + BAD
    assert run.end(changed)[0] == 70


@pytest.mark.long
def test_well_known_plugins_are_no_change(tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    python = str(tmp_path / "v" / "bin" / "python")
    names = ["pytest-asyncio", "pytest-xdist", "pytest-cov", "pytest-mock", "pytest-rerunfailures", "hypothesis"]
    subprocess.run([python, "-m", "pip", "install", "-q", "pytest", *names], check=True, timeout=300)
    plugins = ("asyncio", "xdist", "pytest_cov", "pytest_mock", "rerunfailures", "hypothesispytest")
    tests = (
        "import pytest\nfrom hypothesis import given, strategies\nfrom calc import add\nran = []\n"
        "@pytest.mark.asyncio\nasync def test_async(): assert add(1, 1) == 2\n"
        "@given(strategies.integers())\ndef test_given(x): assert add(x, 0) == x\n"
        "def test_mock(mocker):\n    mocker.patch('os.getpid')\n    assert add(1, 1) == 2\n"
        "@pytest.mark.flaky(reruns=1)\ndef test_flaky():\n    ran.append(1)\n    assert len(ran) > 1\n"
    )
    run = Run(tmp_path, (python, "-m", "pytest", "-q", "-W", "ignore"))
    for args in ([], ["-n2"], ["--cov=calc"], ["-n2", "--cov=calc"]):
        status, said = run.end(GOOD, *args, tests=tests, plugins=plugins)
        assert (status, "benchflow:" in said) == (0, False), said
    # What its workers find, xdist's own process is told.
    assert run.end(CHANGES["_pytest.python.Function.runtest"] + BAD, "-n2", plugins=plugins)[0] == 70
    by_coverage = Run(tmp_path, (python, "-m", "coverage", "run", "-m", "pytest", "-q"))
    assert [by_coverage.end(code)[0] for code in (GOOD, ENDINGS["in-a-test"])] == [0, 70]
