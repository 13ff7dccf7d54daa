"""The only way from a command to a terminal: a rich console through which nothing passes unsanitised.

Styles, links and cursor movements are made by our own code and added behind the sanitiser: no markup, emoji code or
escape sequence is ever read from a text. `benchflow.cli.screen` makes the consoles and tables; other modules of the
command line write by them alone, and `tests/unit/architecture/test_command_output.py` reads their sources for another
way.
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
"""Columns where the output goes into a file or a pipe: so many that nothing is broken or cut for them."""


class Text(rich_text.Text):
    """Styled text of several lines, sanitised as it is put together, so that it is measured as it will be shown."""

    def __init__(self, text: str = "", style: StyleType = "", **options: Any) -> None:
        super().__init__(sanitise(text), style, **options)

    def append(self, text: rich_text.Text | str, style: StyleType | None = None) -> Text:
        super().append(sanitise(text) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: str | rich_text.Text | tuple[str, StyleType], **options: Any) -> Text:
        # It appends each part to a text of this class.
        return cast(Text, super().assemble(*parts, **options))


def line(*parts: str | rich_text.Text | tuple[str, StyleType], style: StyleType = "", **options: Any) -> Text:
    """Return one line of parts, each a text or a pair of text and style, with line ends inside of them made visible."""
    made = Text(style=style, **options)
    for part in parts:
        if isinstance(part, rich_text.Text):
            made.append_text(_one_line(part))
        elif isinstance(part, str):
            made.append(sanitise_line(part))
        else:
            text, part_style = part
            made.append(sanitise_line(text), part_style)
    return made


def _one_line(text: rich_text.Text) -> rich_text.Text:
    """Return the text with visible line ends. It has as many characters as before, so that its styles stay in place."""
    if text.plain.isprintable():
        return text
    made = text.copy()
    made.plain = sanitise_line(text.plain)
    return made


class Rows(Table):
    """A table whose cells are one line each, whatever is put into them."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*map(_cell, cells), **options)


def _cell(cell: RenderableType | None) -> RenderableType | None:
    return line(cell) if isinstance(cell, str) else _one_line(cell) if isinstance(cell, rich_text.Text) else cell


class Screen(Console):
    """A console that takes texts for texts: it reads no markup in them, and shows no character that is not plain."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        # A guarded stream would take our own colours for something that came from outside.
        super().__init__(file=getattr(stream, "unguarded", stream), highlight=False, markup=False, emoji=False)
        if not self.is_terminal and not os.environ.get("COLUMNS"):
            self.width = PIPED_WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Everything that is printed, and everything inside of it, comes through here as segments of one style.
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(sanitise(segment.text), _without_link(segment.style))

    def render_str(self, text: str, *, style: str | Style = "", **options: Any) -> rich_text.Text:
        # Sanitised before it is measured; of the options those that would have it parsed are dropped.
        return Text(text, style, justify=options.get("justify"), overflow=options.get("overflow"))

    def waiting(self, about: str) -> Waiting:
        """Return a spinner with a line beside it, as a context in which it is shown."""
        return Waiting(self, about)


class LiveDisplay(Live):
    """What is drawn anew in place. What else is written meanwhile is left alone: rich would interpret its escapes."""

    def __init__(self, renderable: RenderableType, screen: Screen, **options: Any) -> None:
        super().__init__(
            renderable, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False, **options
        )


class Waiting(LiveDisplay):
    """A spinner that says what is waited for."""

    def __init__(self, screen: Screen, about: str) -> None:
        self._spinner = Spinner("dots", line(about, style="dim"))
        super().__init__(self._spinner, screen, refresh_per_second=12.5)

    def tell(self, about: str) -> None:
        """Change what it says."""
        self._spinner.update(text=line(about, style="dim"))


def _without_link(style: Style | None) -> Style | None:
    """Return the style without its address, which rich writes into an escape sequence as it is."""
    return style.update_link(None) if style is not None and style.link else style
