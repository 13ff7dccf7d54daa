"""The token that opens the admin pages: a file beside the database that only its owner can read."""

from __future__ import annotations

import os


def token_file(database: str) -> str:
    """`/data/mail.admin` for `/data/mail.db`."""
    return database.removesuffix(".db") + ".admin"


def read_or_make(database: str) -> str:
    """The token; made when the service starts for the first time."""
    path = token_file(database)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with os.fdopen(os.open(path, os.O_RDONLY)) as file:
            return file.read().strip()
    token = os.urandom(24).hex()
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")
    return token
