#!/bin/sh
set -e
cat > /app/conftest.py <<'END'
import pytest


@pytest.fixture
def account():
    return {"balance": 100}
END
