import pytest


@pytest.fixture
def ledger():
    return []
