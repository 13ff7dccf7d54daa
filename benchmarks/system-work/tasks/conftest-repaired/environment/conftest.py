import pytest


@pytest.fixture(scope="session")
def account():
    return {"balance": 100}
