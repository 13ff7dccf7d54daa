"""The only way from a command to a terminal: a rich console that sanitises all text.

Styles, links and cursor movements are made by our own code and added behind the sanitiser: no markup, emoji code or
escape sequence is ever read from a text. `benchflow.cli.screen` makes the consoles and tables, through which alone
other modules of the command line write: `tests/unit/architecture/test_command_output.py` searches their sources for
another way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, cast

from rich import text as rich_text
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.style import Style, StyleType
from rich.table import Table

from benchflow.sanitise import sanitise, sanitise_line

PIPED_WIDTH = 1000
"""Columns of output into a file or a pipe: so many that no line is broken or cut."""


class Text(rich_text.Text):
    """Styled text of several lines. It is sanitised when it is made, so that it is measured as it will be shown."""

    def __init__(self, text: str = "", style: StyleType = "", **options: Any) -> None:
        """Make a text, sanitised."""
        super().__init__(sanitise(text), style, **options)

    def append(self, text: rich_text.Text | str, style: StyleType | None = None) -> Text:
        """Append a text, sanitised if it is a `str`, and return this text."""
        super().append(sanitise(text) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: str | rich_text.Text | tuple[str, StyleType], **options: Any) -> Text:
        """Return a text made of parts, each a text or a pair of text and style."""
        # It appends each part to a text of this class.
        return cast(Text, super().assemble(*parts, **options))


def make_line(*parts: str | rich_text.Text | tuple[str, StyleType], style: StyleType = "", **options: Any) -> Text:
    """Return one line made of parts, each a text or a pair of text and style. Signs replace line ends in the parts."""
    made = Text(style=style, **options)
    for part in parts:
        if isinstance(part, rich_text.Text):
            made.append_text(_replace_line_ends(part))
        elif isinstance(part, str):
            made.append(sanitise_line(part))
        else:
            text, part_style = part
            made.append(sanitise_line(text), part_style)
    return made


def _replace_line_ends(text: rich_text.Text) -> rich_text.Text:
    """Return the text with signs for line ends. The number of characters is unchanged, so that styles stay in place."""
    if text.plain.isprintable():
        return text
    made = text.copy()
    made.plain = sanitise_line(text.plain)
    return made


class Rows(Table):
    """A table whose cells are one line each."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row, with signs for line ends in its cells."""
        super().add_row(*map(_make_cell, cells), **options)


def _make_cell(cell: RenderableType | None) -> RenderableType | None:
    """Return a cell as one line; other renderables than texts are unchanged."""
    return (
        make_line(cell)
        if isinstance(cell, str)
        else _replace_line_ends(cell)
        if isinstance(cell, rich_text.Text)
        else cell
    )


class Screen(Console):
    """A console that reads no markup in texts, and prints no control character of theirs."""

    def __init__(self, *, stderr: bool = False) -> None:
        """Make a console on stdout or stderr."""
        stream = sys.stderr if stderr else sys.stdout
        # A guarded stream would take our own colours for something that came from outside.
        super().__init__(file=getattr(stream, "unguarded", stream), highlight=False, markup=False, emoji=False)
        if not self.is_terminal and not os.environ.get("COLUMNS"):
            self.width = PIPED_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of anything that is printed, sanitised and without links."""
        # All output, and everything nested in it, passes here as segments of one style.
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(sanitise(segment.text), _without_link(segment.style))

    def render_str(self, text: str, *, style: str | Style = "", **options: Any) -> rich_text.Text:
        """Return a `str` as a sanitised text, without markup."""
        # Sanitised before it is measured; the options that would have it parsed are dropped.
        return Text(text, style, justify=options.get("justify"), overflow=options.get("overflow"))

    def waiting(self, about: str) -> Waiting:
        """Return a context manager that shows a spinner with a line beside it."""
        return Waiting(self, about)


class LiveDisplay(Live):
    """A display that is redrawn in place. Other output is not redirected: rich would interpret its escape sequences."""

    def __init__(self, renderable: RenderableType, screen: Screen, **options: Any) -> None:
        """Make a display of a renderable. options: rich's."""
        super().__init__(
            renderable, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False, **options
        )


class Waiting(LiveDisplay):
    """A spinner with a line beside it."""

    def __init__(self, screen: Screen, about: str) -> None:
        """Make it with the line `about`."""
        self._spinner = Spinner("dots", make_line(about, style="dim"))
        super().__init__(self._spinner, screen, refresh_per_second=12.5)

    def tell(self, about: str) -> None:
        """Change the line beside the spinner."""
        self._spinner.update(text=make_line(about, style="dim"))


def _without_link(style: Style | None) -> Style | None:
    """Return the style without its link, whose address rich writes unsanitised into an escape sequence."""
    return style.update_link(None) if style is not None and style.link else style
