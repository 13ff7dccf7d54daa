"""The engine's pytest plugin: it loads only permitted plugins, and keeps tested code from faking a success.

A run counts as a success only if it came to its own end, decided by the pytest that was there before any tested code.
This file is copied into sandboxes, and runs under their Python and pytest; it imports nothing of the engine, and all
that it needs of the standard library before tested code is imported. It raises the bar for code that tests import, and
no more: code in the process of the tests can do all that they can.

No assert is in it to be rewritten: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import builtins
import importlib.metadata
import itertools
import os
import re
import signal
import sys
import traceback
import types
import unittest.case
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import pytest

ALLOWED: list[str] = []
"""Entry points of the plugins that the image had; set at the end of the copy, as are the next two."""

DECLARED: list[str] = []
"""The task's `verifier.pytest_plugins`: names of entry points, or of modules."""

WORKSPACE = ""
"""Directory of the agent's work; empty to take pytest's root directory for it, which a verifier may choose."""

OWN = os.stat(__file__).st_ctime
FAILED = 70
"""Exit status of a run that reports a success and is not believed."""

_EXCUSES = (pytest.skip.Exception, pytest.xfail.Exception, unittest.case.SkipTest)
"""Exceptions by which a test is skipped, or expected to fail."""

_OF_TESTS = re.compile(r"/(tests?|testing|conftest)([.]py)?(/|$)|/test_|_test[.]py$|/(site|dist)-packages/")
"""Paths in the workspace whose code may skip tests: those of tests, and of packages that are installed there."""

_PASSED_ON = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "CONT")
_DEATH_SIGNAL, _DUMPABLE, _SUBREAPER = 1, 4, 36
_MAX_ROUNDS = 100


def pytest_addoption(parser: Any, pluginmanager: Any) -> None:
    """Fork the supervised session, load the permitted plugins and register the guard: pytest's first hook."""
    guard = _Guard(_supervise())
    _load_plugins(pluginmanager)
    pluginmanager.register(guard, "benchflow_guard")


# --- whose plugins ---------------------------------------------------------------------------------------


def _load_plugins(pluginmanager: Any) -> None:
    seen = set()
    for distribution in importlib.metadata.distributions():
        for point in distribution.entry_points:
            if point.group != "pytest11" or point.name in seen:
                continue
            seen.add(point.name)
            if point.name in DECLARED or point.name in ALLOWED or _is_newer(distribution):
                pluginmanager.import_plugin(point.name, consider_entry_points=True)
    for name in DECLARED:
        if name not in seen:
            pluginmanager.import_plugin(name)


def _is_newer(distribution: Any) -> bool:
    """Return whether a distribution was installed after the agent had ended, when this file was made."""
    try:
        return os.stat(str(distribution._path)).st_ctime >= OWN
    except (AttributeError, OSError):
        return False


# --- its own end -----------------------------------------------------------------------------------------


def _supervise() -> Callable[[int], None] | None:
    """Fork: the child continues with the session, and the parent waits for it, where no tested code ever is.

    Returns, in the child, a callback that reports the session's exit status to the parent. Returns None, without a
    fork, in a program that calls `pytest.main` (the rest of it would run in a child, which can wait for none of the
    processes that it has started; xdist's workers are such programs), if other threads run (a fork loses them, with the
    locks that they hold), and if libc can't be called.
    """
    if not _is_command() or len(os.listdir("/proc/self/task")) > 1:
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    reading, writing = os.pipe()
    token, parent, mine = os.urandom(16), os.getpid(), set(_list_children())
    # Orphans of the tests become children of this process.
    prctl(_SUBREAPER, 1, 0, 0, 0)
    watched = {signal.SIGCHLD, *(getattr(signal, f"SIG{name}") for name in _PASSED_ON)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        try:
            os.close(writing)
            prctl(_DUMPABLE, 0, 0, 0, 0)
            how = _wait_for_child(child, watched)
            _kill_rest(mine)
            _exit_as_session(how, _read_status(reading, token))
        finally:
            os._exit(FAILED)
    # A kill of the process that was started is meant for the tests.
    prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(FAILED)
    os.close(reading)
    signal.signal(signal.SIGCHLD, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    own, write, getpid = os.getpid(), os.write, os.getpid

    def report(status: int) -> None:
        if getpid() == own:
            write(writing, token + bytes([status & 255]))

    return report


def _is_command() -> bool:
    """Return whether this is `pytest` or `python -m pytest`, by itself or below a tool such as coverage."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_prepareconfig":
        frame = frame.f_back
    outermost = ""
    while frame is not None and frame.f_globals.get("__name__") == "_pytest.config":
        outermost = frame.f_code.co_name
        frame = frame.f_back
    return outermost.endswith("console_main")


def _wait_for_child(child: int, watched: Iterable[int]) -> int:
    """Return the child's wait status. Forward others' signals to it; it gets those of the terminal itself."""
    while True:
        info = signal.sigwaitinfo(watched)
        if info.si_signo == signal.SIGCHLD:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]
        elif info.si_code <= 0 and info.si_pid != child:
            os.kill(child, info.si_signo)


def _list_children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _kill_rest(mine: set[int]) -> None:
    """Kill the processes that the tests have left, which could change later results."""
    for _ in range(_MAX_ROUNDS):
        left = set(_list_children()) - mine
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
                os.waitpid(one, 0)
            except (ProcessLookupError, PermissionError, ChildProcessError):
                mine.add(one)
        if not left:
            return


def _read_status(reading: int, token: bytes) -> int | None:
    """Return the exit status that the session has reported; None if it did not come to its end."""
    os.set_blocking(reading, False)
    try:
        reports = os.read(reading, 65536).split(token)[1:]
    except BlockingIOError:
        return None
    return max((part[0] for part in reports if part), default=None)


def _exit_as_session(how: int, reported: int | None) -> None:
    """Exit as the session did. Only a success is doubted."""
    if os.WIFSIGNALED(how):
        number = os.WTERMSIG(how)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    code = os.WEXITSTATUS(how)
    if code == 0 and reported is None:
        _print_doubt("the process of the tests ended before their session did")
        os._exit(FAILED)
    if code == 0 and reported:
        _print_doubt(f"the process of the tests ended with 0, their session with {reported}")
    os._exit(code or reported or 0)


def _print_doubt(what: str) -> None:
    """Print to stderr why the run counts as failed."""
    os.write(2, f"\nbenchflow: this run of pytest counts as failed: {what}\n".encode())


# --- the pytest that was there ---------------------------------------------------------------------------


class _Guard:
    """Judges a session by the pytest that was there before any tested code. report: callback for the exit status."""

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report = report
        self._failures = 0
        self._interrupted = False
        self._program: _Program | None = None
        self._hooks: _Hooks | None = None
        self._changed: list[str] = []
        self._excused: list[str] = []

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, Any, None]:
        # All plugins of the command line are loaded by now, and no conftest.py, which may import tested code.
        self._program = _Program()
        yield

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_collection(self, session: Any) -> Generator[None, Any, None]:
        self._hooks = _Hooks(session.config, self._program.known if self._program else set())
        yield
        self._record_changes()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failures += bool(report.failed and not hasattr(report, "wasxfail"))

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, None]:
        # Meanwhile a skip of unittest's is replaced by one of pytest's, or becomes the context of a later one.
        before = call.excinfo
        yield
        self._record_excuse(item, before, call.excinfo)

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Generator[None, Any, None]:
        report = (yield).get_result()
        self._record_excuse(collector, getattr(getattr(report, "call", None), "excinfo", None))

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        self._interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        # Workers of xdist report here; elsewhere `pytest_cmdline_main` checks later.
        if hasattr(session.config, "workeroutput"):
            self._record_changes()
            session.config.workeroutput["benchflow"] = [self._changed, self._excused]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {}).get("benchflow", ())
        for own, theirs in zip((self._changed, self._excused), output):  # noqa: B905  Python 3.9 has no `strict`.
            own += theirs

    @pytest.hookimpl(tryfirst=True, hookwrapper=True)
    def pytest_cmdline_main(self) -> Generator[None, Any, None]:
        report = self._report
        outcome = yield
        status = int(outcome.get_result() or 0)
        self._record_changes()
        if status == 0 and (doubt := self._find_doubt()):
            _print_doubt(doubt)
            status = FAILED
            outcome.force_result(status)
        if report is not None:
            report(status)

    def _record_changes(self) -> None:
        """Record the changes of pytest so far, since the code that made them may restore it later."""
        found = [
            *(self._program.find_changes() if self._program else ()),
            *(self._hooks.find_changes() if self._hooks else ()),
        ]
        self._changed += [name for name in found if name not in self._changed]

    def _record_excuse(self, node: Any, *raised: Any) -> None:
        """Record a test outside of the workspace that tested code has skipped or declared an expected failure."""
        root, file = _get_root(node.config), str(getattr(node, "path", None) or node.fspath)
        # A plugin of the workspace may skip tests, as long as no test has called it.
        tests = tuple(f"{place}{os.sep}" for place in (os.path.dirname(file), node.config.getoption("confcutdir")))
        for excinfo in raised:
            error = None if file.startswith(root) else getattr(excinfo, "value", None)
            while isinstance(error, _EXCUSES):
                frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
                called = itertools.dropwhile(lambda frame: not frame.f_code.co_filename.startswith(tests), frames)
                if node.nodeid not in self._excused and any(_is_tested_code(frame, root) for frame in called):
                    self._excused.append(node.nodeid)
                error = error.__context__

    def _find_doubt(self) -> str:
        """Return the reason not to believe a success; empty if there is none."""
        if self._changed:
            return f"something has changed {', '.join(self._changed[:5])}"
        if self._failures:
            return f"{self._failures} tests or files failed, and its exit status was 0"
        if self._excused:
            return f"the code that is tested has skipped {', '.join(self._excused[:5])}"
        return "something called pytest.exit with a status of 0" if self._interrupted else ""


def _get_root(config: Any) -> str:
    """Return the workspace, with a slash at its end."""
    return f"{WORKSPACE or getattr(config, 'rootpath', None) or config.rootdir}{os.sep}"


def _is_tested_code(frame: types.FrameType, root: str) -> bool:
    """Return whether code lies in the workspace, and is no part of its tests: a helper of these may skip."""
    files = (str(file) for file in (frame.f_code.co_filename, frame.f_globals.get("__file__")))
    return any(file.startswith(root) and not _OF_TESTS.search(file[len(root) - 1 :]) for file in files)


class _Program:
    """The functions of pytest, pluggy and unittest's cases, as they are when this is made."""

    def __init__(self) -> None:
        # Lazy modules are left out: to look at one would load it, and change the table.
        loaded = {name: module for name, module in list(sys.modules.items()) if type(module) is types.ModuleType}
        self._modules = {
            name: module
            for name, module in loaded.items()
            if name.split(".")[0] in ("_pytest", "pluggy") or module is unittest.case
        }
        self.known = {id(vars(module)) for module in loaded.values()}
        self._was = {place: (value, _read_code(value)) for place, value in self._list_members()}

    def find_changes(self) -> Iterator[str]:
        now = dict(self._list_members())
        for place, (value, code) in self._was.items():
            new = now.get(place)
            if self._is_foreign(new) if new is not value else _read_code(value) != code:
                yield ".".join(place)
        for place, new in now.items():
            # A new name in a class hides an inherited one, and one in a module a builtin.
            if place not in self._was and self._is_foreign(new) and (len(place) == 3 or place[1] in vars(builtins)):
                yield ".".join(place)

    def _list_members(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the functions and members, by (module, name) or (module, class, name)."""
        for name, module in self._modules.items():
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield (name, key), value
                    for inner, member in list(vars(value).items()):
                        if hasattr(member, "__get__"):
                            yield (name, key, inner), member
                elif isinstance(value, types.FunctionType):
                    yield (name, key), value

    def _is_foreign(self, value: Any) -> bool:
        """Return whether a function comes from no module of before the tested code: plugins do change pytest."""
        code = _read_code(value)
        if code is None:
            return True
        return id(code[2]) not in self.known or code[2].get("__file__") != code[0].co_filename


def _read_code(value: Any) -> tuple[Any, Any, Any] | None:
    """Return (code, defaults, globals) of a function; None for anything else."""
    for name in ("fget", "__func__", "func"):
        value = getattr(value, name, None) or value
    if not isinstance(value, types.FunctionType):
        return None
    return value.__code__, value.__defaults__, value.__globals__


class _Hooks:
    """The implementations of hooks when this is made. known: ids of the globals of modules before any tested code."""

    def __init__(self, config: Any, known: set[int]) -> None:
        self._known = known
        self._root = _get_root(config)
        self._relay = config.pluginmanager.hook
        self._callers = self._list_callers()
        self._was = [
            (name, impl, impl.function) for name, caller in self._callers.items() for impl in caller.get_hookimpls()
        ]

    def _list_callers(self) -> dict[str, Any]:
        return {name: caller for name, caller in vars(self._relay).items() if name.startswith("pytest_")}

    def find_changes(self) -> Iterator[str]:
        now = self._list_callers()
        for name, caller in self._callers.items():
            if name not in now or now[name] is not caller:
                yield name
                continue
            was = [impl for hook, impl, _ in self._was if hook == name]
            for impl in caller.get_hookimpls():
                if not any(impl is one for one in was) and self._is_tested(impl.function):
                    yield f"{name}, by {impl.plugin_name}"
        for name, impl, function in self._was:
            # Plugins that are modules stay for the whole session; objects come and go.
            stays = isinstance(impl.plugin, (types.ModuleType, _Guard))
            is_there = any(impl is one for one in self._callers[name].get_hookimpls())
            if impl.function is not function or (stays and not is_there):
                yield f"{name} of {impl.plugin_name}"

    def _is_tested(self, function: Any) -> bool:
        """Return whether a function lies in the workspace, in no conftest.py: that has hooks for its directory."""
        function = getattr(function, "__func__", function)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        if id(getattr(function, "__globals__", None)) in self._known:
            return False
        return not file or (file.startswith(self._root) and os.path.basename(file) != "conftest.py")
