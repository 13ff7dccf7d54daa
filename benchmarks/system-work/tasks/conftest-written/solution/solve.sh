#!/bin/sh
set -e
cat > /app/tests/conftest.py <<'END'
import pytest


@pytest.fixture
def customer():
    return {"name": "Ada", "orders": []}


@pytest.fixture
def inbox(tmp_path):
    directory = tmp_path / "inbox"
    directory.mkdir()
    return directory
END
