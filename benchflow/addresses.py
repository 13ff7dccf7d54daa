"""Addresses of model endpoints, as users name them."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_address(text: str) -> bool:
    """Tell whether a text is an HTTP address with a host, and with a port from 0 to 65535 if it has one."""
    try:
        parts = urlsplit(text)
        # The port is read, and found out of range, only when it is asked for.
        return text.startswith(("http://", "https://")) and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False
