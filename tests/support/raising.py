"""Workflows with an exception at one of their awaits, which a test chooses for each workflow by its id."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

import pytest
from support.paths import ROOT
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner

PACKAGE = "benchflow.workflows"
OF_JOBS = frozenset({"closing", "patience", "slot_pool", "sweep", "job_workflow"})
"""The modules that only the job's workflow uses."""


@dataclass(frozen=True)
class Raise:
    """At which await a workflow raises."""

    site: str
    """As in `sites`."""
    when: Literal["before", "after"]
    """Whether it raises in place of what is awaited, or once that has ended, so that its result is lost."""
    is_repeated: bool = False
    """Whether each pass raises, or the first."""


PLANNED: dict[str, Raise] = {}
"""By workflow id."""
PASSED: dict[str, dict[str, None]] = {}
"""By workflow id: the awaits that the workflow came by, in the order of the first passes."""
RETURNED: dict[str, dict[str, None]] = {}
"""By workflow id: those of them that have returned something, and did not raise by themselves."""
RAISED: dict[str, tuple[str, int]] = {}
"""By workflow id: the phase of the rollout in which its await raised, and how many of its steps were measured."""


@functools.cache
def sites(*, of_jobs: bool) -> list[str]:
    """Return every await of the job's modules, or of all others: `<module>:<function>:<number in it>`."""
    return [
        site
        for file in sorted((ROOT / "benchflow" / "workflows").glob("*.py"))
        if (file.stem in OF_JOBS) == of_jobs
        for site in _parsed(file)[1]
    ]


@functools.cache
def is_started_before(site: str) -> bool:
    """Return whether a site awaits a task: raised in place of its end, an exception would leave the task running."""
    return site in _parsed(ROOT / "benchflow" / "workflows" / f"{site.partition(':')[0]}.py")[2]


@functools.cache
def _parsed(file: Path) -> tuple[ast.Module, list[str], list[str]]:
    awaits = _Awaits(file.stem)
    tree = ast.fix_missing_locations(awaits.visit(ast.parse(file.read_text())))
    return tree, awaits.sites, awaits.started


class _Awaits(ast.NodeTransformer):
    """Puts `_raising(site, …)` around what is awaited, and `_Entering(site, …)` around what is entered."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.function = ""
        self.sites: list[str] = []
        self.started: list[str] = []

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        above, self.function = self.function, node.name
        self.generic_visit(node)
        self.function = above
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        site = self._site()
        self.generic_visit(node)
        awaited = node.value
        if isinstance(awaited, ast.Call) and any(isinstance(node, ast.Await) for node in ast.walk(awaited)):
            # No lambda may hold an await.
            call = ast.Call(_name("_raising"), [site, awaited.func, *awaited.args], awaited.keywords)
        else:
            # Called late, so that nothing begins that is not awaited.
            later = ast.Lambda(ast.arguments([], [], None, [], [], None, []), awaited)
            call = ast.Call(_name("_raising"), [site, later], [])
        if not isinstance(awaited, ast.Call):
            self.started.append(site.value)
        return ast.Await(call)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        for item in node.items:
            item.context_expr = ast.Call(_name("_Entering"), [self._site(), item.context_expr], [])
        return self.generic_visit(node)

    def _site(self) -> ast.Constant:
        """Return the name of the next site."""
        site = f"{self.module}:{self.function}"
        self.sites.append(f"{site}:{sum(one.startswith(f'{site}:') for one in self.sites)}")
        return ast.Constant(self.sites[-1])


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


async def _raising(site: str, call: Any, /, *args: Any, **options: Any) -> Any:
    """Await what `call` returns, and raise before or after that where it is planned."""
    _raise_if_planned(site, "before")
    found = await call(*args, **options)
    _raise_if_planned(site, "after")
    return found


@dataclass
class _Entering:
    site: str
    entered: AbstractAsyncContextManager[Any]

    async def __aenter__(self) -> Any:
        _raise_if_planned(self.site, "before")
        found = await self.entered.__aenter__()
        try:
            _raise_if_planned(self.site, "after")
        except KeyError:
            await self.entered.__aexit__(None, None, None)
            raise
        return found

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self.entered.__aexit__(*error)


def _raise_if_planned(site: str, when: str) -> None:
    name = workflow.info().workflow_id
    (PASSED if when == "before" else RETURNED).setdefault(name, {})[site] = None
    planned, instance = PLANNED.get(name), workflow.instance()
    if planned is None or (planned.site, planned.when) != (site, when):
        return
    # On the instance, so that a replay does the same.
    if planned.is_repeated or "_has_raised" not in vars(instance):
        vars(instance)["_has_raised"] = True
        if hasattr(instance, "_state"):
            measured = [outcome for outcome in instance._state.steps if outcome.verify is not None]
            RAISED[name] = (instance._phases.phase, len(measured))
        else:
            RAISED[name] = ("", 0)
        raise KeyError("x")


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(_parsed(Path(self.path))[0], self.path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_raising=_raising, _Entering=_Entering)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = fullname.rpartition(".")
        if package != PACKAGE:
            return None
        file = ROOT / "benchflow" / "workflows" / f"{module}.py"
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file)))


@contextmanager
def _reimported() -> Iterator[None]:
    """Have the modules of the workflows imported anew, each await wrapped, and forget them after the block."""
    package = sys.modules[PACKAGE]
    # What is global there, such as the name of a queue, stays one.
    kept = {f"{PACKAGE}.activity_options"}
    before = {name: module for name, module in sys.modules.items() if name.startswith(f"{PACKAGE}.")}
    attributes, finder = dict(vars(package)), _Finder()
    for name in before.keys() - kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(before)
        vars(package).clear()
        vars(package).update(attributes)


@pytest.fixture
def raising_workflows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have workers that are made from now on run the workflows with every await wrapped, without the SDK's sandbox."""
    with _reimported():
        made = {
            "JobWorkflow": importlib.import_module(f"{PACKAGE}.job_workflow").JobWorkflow,
            "RolloutWorkflow": importlib.import_module(f"{PACKAGE}.rollout_workflow").RolloutWorkflow,
        }
        # So that it is seen within a moment that somebody is waited for.
        importlib.import_module(f"{PACKAGE}.clock").SLICE_SEC = 0.5  # type: ignore[attr-defined]
    for name, workflow_class in made.items():
        monkeypatch.setattr(f"benchflow.worker.{name}", workflow_class)
    monkeypatch.setattr("benchflow.worker.make_workflow_runner", UnsandboxedWorkflowRunner)
    yield
    for record in (PLANNED, PASSED, RETURNED, RAISED):
        record.clear()
