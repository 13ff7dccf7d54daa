"""Addresses of model endpoints, as users name them."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_address(text: str) -> bool:
    """Return whether a text is an HTTP or HTTPS URL with a host and, if it has a port, one from 0 to 65535."""
    try:
        parts = urlsplit(text)
        # urlsplit checks the port's range only when the attribute is read.
        return text.startswith(("http://", "https://")) and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False
