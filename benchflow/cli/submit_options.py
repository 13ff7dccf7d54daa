"""Options of `bench submit` as types, so that the command itself fits into one file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

AGENT = "Who acts"
"""Heading of a panel in the help text, as are the next two."""

RUN = "How they are run"
SCORE = "How they are scored"


def concurrency_option(default: str) -> Any:
    """Return the option `-n`.

    Args:
        default: The number that is used without the option, in words.
    """
    help_text = f"Sandboxes that run at a time, those of branches included. [dim]\\[default: {default}][/dim]"
    return typer.Option("-n", "--concurrency", metavar="N", min=1, max=500, help=help_text, rich_help_panel=RUN)


EndpointPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="fail|wait(LIMIT)",
        help="What becomes of model calls whose endpoint fails: repeated for some minutes, or for as long as "
        "LIMIT says, as in wait(2h). [dim]\\[default: fail][/dim]",
        rich_help_panel=AGENT,
    ),
]

NoPreflight = Annotated[
    bool,
    typer.Option(
        "--no-preflight",
        help="Don't ask each model for one token before the job starts.",
        rich_help_panel=AGENT,
    ),
]

StopAfterErrors = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Equal errors without a success after which nothing more is started; 0: never. [dim]\\[default: 5][/dim]",
        rich_help_panel=RUN,
    ),
]

Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Build each image anew, without any cache: once for all rollouts of the job.",
        rich_help_panel=RUN,
    ),
]

RewardKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Which key of reward.json is the reward, where it reports several. "
        "[dim]\\[default: as each task says][/dim]",
        rich_help_panel=SCORE,
    ),
]

RequireProvenState = Annotated[
    bool,
    typer.Option(
        "--require-proven-state",
        help="Refuse to branch over a world of which bench env check has not proven that its services lose no state in "
        "a child.",
        rich_help_panel=RUN,
    ),
]

OnTampering = Annotated[
    str | None,
    typer.Option(
        metavar="keep|null|zero",
        help="What becomes of a reward where the hardening found tampering: as measured, withheld (the rollout ends "
        "with an error), or 0. [dim]\\[default: keep][/dim]",
        rich_help_panel=SCORE,
    ),
]

VerifyIn = Annotated[
    str | None,
    typer.Option(
        metavar="auto|shared|separate",
        help="Where verifiers run: shared, where the agent worked; separate, in a fresh sandbox that receives the "
        "workspace and declared artifacts only. auto: as each task says, else in a fresh one if the oracle is known "
        "to score the same there and nothing else was changed. [dim]\\[default: auto][/dim]",
        rich_help_panel=SCORE,
    ),
]
