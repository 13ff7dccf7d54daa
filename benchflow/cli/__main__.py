"""`python -m benchflow.cli`, and what the installed command `bench` runs."""

import sys

# First of all, `__future__` included: `python -m` has put the current directory before everything else, and whoever
# wrote the task set that the user stands in may have put a `json.py` there. `runpy` itself has imported some modules
# by now, such as `contextlib` (Python 3.11), so that only `bench` and `python -P -m` are safe everywhere.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import contextlib
import gc
import os


def main() -> None:
    """Run the command line; ends the process with 0 (all scored), 1 (some errored), 2 (usage) or 130 (Ctrl-C)."""
    # Most of a short command's time goes into imports, which make many objects and no garbage.
    gc.set_threshold(500_000)
    from benchflow.cli.app import app_for
    from benchflow.log import guard_stderr

    # Tracebacks, warnings and whatever a library has to say go there without asking anybody.
    guard_stderr()
    status: object = 1
    try:
        app_for(sys.argv[1:])(prog_name="bench")
    except SystemExit as end:
        status = end.code
    # Whoever read our output may have had enough of it.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Nothing is left to be done, and taking the interpreter and the Temporal client apart would take 0.1 s.
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    main()
