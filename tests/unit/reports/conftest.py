"""One fake API server per test."""

from collections.abc import Iterator

import pytest

from tests.unit.kube.fake_api import FakeApi, running


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server
