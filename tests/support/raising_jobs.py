"""The job's workflow with an exception in place of one of its awaits, to be chosen for each job by its id."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from support.paths import ROOT
from temporalio import workflow

MODULES = ("patience", "sweep", "job")
"""Of the workflows, in the order in which they import each other: those that only jobs use."""


@functools.cache
def sites() -> list[str]:
    """Return every await of the modules: `<module>:<function>:<number in it>`."""
    return [site for module in MODULES for site in _Awaits(module).found(_tree(module))]


def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text())


def _file(module: str) -> Path:
    return ROOT / "benchflow" / "workflows" / f"{module}.py"


class _Awaits(ast.NodeTransformer):
    """Puts `_raising(site, …)` around what is awaited."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.function = ""
        self.sites: list[str] = []

    def found(self, tree: ast.Module) -> list[str]:
        self.visit(tree)
        return self.sites

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.function = node.name
        return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        site = f"{self.module}:{self.function}"
        site = f"{site}:{sum(one.startswith(f'{site}:') for one in self.sites)}"
        self.sites.append(site)
        # A lambda, so that what is awaited does not begin where it is never awaited.
        later = ast.Lambda(args=ast.arguments([], [], None, [], [], None, []), body=node.value)
        call = ast.Call(ast.Name("_raising", ast.Load()), [ast.Constant(site), later], [])
        return ast.Await(call)


async def _raising(site: str, later: Any) -> Any:
    """Await what `later` returns, unless it is this await of this job that is to raise.

    The job's name says which: `<number of the site>-once` or `<number>-always`.
    """
    number, _, how = workflow.info().workflow_id.removeprefix("job/").partition("-")
    # On the instance, so that a replay does the same.
    state = vars(workflow.instance())
    if sites()[int(number)] == site and (how.startswith("always") or "_has_raised" not in state):
        state["_has_raised"] = True
        RAISED.add(workflow.info().workflow_id)
        raise KeyError("x")
    awaited: Awaitable[Any] = later()
    return await awaited


RAISED: set[str] = set()
"""The jobs, by workflow id, whose await was reached."""


@contextmanager
def raising_workflow() -> Iterator[type]:
    """Yield the class of the job's workflow with every await wrapped, for a worker without the SDK's sandbox."""
    before = {name: sys.modules.get(name) for name in map("benchflow.workflows.{}".format, MODULES)}
    try:
        for module in MODULES:
            made = ModuleType(f"benchflow.workflows.{module}")
            vars(made)["_raising"] = _raising
            tree = ast.fix_missing_locations(_Awaits(module).visit(_tree(module)))
            sys.modules[made.__name__] = made
            exec(compile(tree, str(_file(module)), "exec"), vars(made))
        yield vars(made)["JobWorkflow"]
    finally:
        for name, module_before in before.items():
            if module_before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module_before
