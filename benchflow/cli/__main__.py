"""Entry point of `python -m benchflow.cli` and of the installed command `bench`."""

import sys

# Before all other imports, `__future__` included: `python -m` has put the current directory at the head of `sys.path`,
# and the author of a task set in which the user stands may have put a `json.py` there. `runpy` itself has imported some
# modules by now, such as `contextlib` (Python 3.11), so that only `bench` and `python -P -m` are safe everywhere.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import contextlib
import gc
import os
import types

_UNUSED_BY_HELP = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules that typer imports to show help, with the name that it takes of each. The help is in rich's markup, not in
Markdown, and shows no traceback; both imports together take half of the time of `bench --help`."""


def main() -> None:
    """Run the command line, and end the process: with 0 (all scored), 1 (some errored), 2 (usage) or 130 (Ctrl-C)."""
    # Most of a short command's time goes into imports, which make many objects and no garbage.
    gc.set_threshold(500_000)
    if "--help" in sys.argv or not sys.argv[1:]:
        for module, name in _UNUSED_BY_HELP.items():
            sys.modules[module] = types.ModuleType(module)
            setattr(sys.modules[module], name, object)
    from benchflow.cli.command_line import select_app
    from benchflow.log import guard_stderr

    # Tracebacks, warnings and the messages of libraries are written to stderr directly.
    guard_stderr()
    status: object = 1
    try:
        select_app(sys.argv[1:])(prog_name="bench")
    except SystemExit as end:
        status = end.code
    # The reader of a pipe may have closed it.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    # No cleanup is left, and a shutdown of the interpreter and the Temporal client would take 0.1 s.
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    main()
