"""The token that opens the admin pages: a file beside the database that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path


def token_file(database: Path) -> Path:
    """`/data/mail.admin` for `/data/mail.db`."""
    return database.with_suffix(".admin")


def read_or_make(database: Path) -> str:
    """The token; made when the service starts for the first time."""
    path = token_file(database)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        file.write(os.urandom(24).hex() + "\n")
    return path.read_text().strip()
