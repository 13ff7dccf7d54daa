"""The files that a page of the docs shows: Python blocks that begin with a comment that is a file's name."""

from __future__ import annotations

import re
from pathlib import Path

from support.paths import ROOT

_BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_blocks(page: str, directory: Path) -> list[Path]:
    """Write the files of a page into a directory, and return them."""
    files = []
    for name, text in _BLOCK.findall((ROOT / "docs" / page).read_text()):
        files.append(directory / name)
        files[-1].write_text(text)
    assert files
    return files
