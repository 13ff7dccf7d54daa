"""Shared behaviour of all commands: `--verbose`, how errors are shown, and the exit status of the process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Coroutine, Iterator
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

ALL_SCORED = 0
"""Exit status: all rollouts are scored, or the command has succeeded."""

SOME_ERRORED = 1
"""Exit status: some rollouts have no score, or the command has failed."""

USAGE = 2
"""Exit status: the request is wrong, or the user has refused it."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

R = TypeVar("R")

Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Let the tasks and --config have the variables of your environment that they take."
    ),
]

_VERBOSE = "--verbose"
Verbose = Annotated[bool, typer.Option(_VERBOSE, help="Show the log, and tracebacks; may stand after the verb, too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; the rest goes to stderr.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Act on a job that was not submitted with your state directory. "
        "It says which variables, files, addresses and code are used.",
    ),
]


class BenchCommand(TyperCommand):
    """A command that accepts `--verbose` after its verb, too, and ends with an exit status instead of a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with `--verbose` taken out, and return those that are left."""
        # Accepted after the verb as well as before it, as most people expect.
        options = args[: args.index("--")] if "--" in args else args
        if _VERBOSE in options:
            ctx.meta[_VERBOSE] = True
            args = [arg for arg in options if arg != _VERBOSE] + args[len(options) :]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:
        """Run the command with its log configured. On an error, show it and raise `typer.Exit` with the status."""
        from benchflow.cli.screen import print_note, print_traceback
        from benchflow.errors import BenchFlowError, UsageError
        from benchflow.log import configure_logging, configure_quiet_logging

        verbose = bool(ctx.meta.get(_VERBOSE) or ctx.find_root().params.get("verbose"))
        as_json = bool(ctx.params.get("as_json"))
        if verbose:
            configure_logging(verbose=True)
        else:
            configure_quiet_logging()
        try:
            return super().invoke(ctx)
        except BenchFlowError as error:
            if verbose:
                print_traceback()
            _show(error, as_json)
            raise typer.Exit(USAGE if isinstance(error, UsageError) else SOME_ERRORED) from error
        except KeyboardInterrupt:
            # The terminal has shown ^C.
            print_note("")
            print_note("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has closed the pipe: nothing more can be written, not even the buffer at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SOME_ERRORED) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise
            if verbose:
                print_traceback()
            _show(error, as_json)
            raise typer.Exit(SOME_ERRORED) from error


class RootCommand(TyperGroup):
    """The group of all commands. Its usage errors are sanitised: they quote arguments, among them names of files."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments, with usage errors sanitised."""
        with _sanitise_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command, with usage errors sanitised."""
        with _sanitise_usage_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def _sanitise_usage_errors() -> Iterator[None]:
    """Sanitise the message of a usage error that passes through."""
    from benchflow.sanitise import sanitise_line

    try:
        yield
    except Exception as error:
        # The base of typer's own errors has no public name in all of its releases.
        if type(error).__module__.startswith(("typer", "click")) and isinstance(
            message := vars(error).get("message"), str
        ):
            vars(error)["message"] = sanitise_line(message)
        raise


def _show(error: Exception, as_json: bool) -> None:
    """Print an error on stderr, and as a JSON object on stdout too if the command prints JSON."""
    from benchflow.cli.screen import print_error, print_json
    from benchflow.contracts.failures import failure_of

    failure = failure_of(error)
    print_error(failure)
    if as_json:
        print_json({"error": failure.model_dump(mode="json", exclude={"phase", "retryable"})})


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run the coroutine of a command in a new event loop, and return its result."""
    import asyncio

    return asyncio.run(work)
