"""A server with AWS's protocols, for the tests of a module."""

from collections.abc import Iterator

import pytest

from tests import aws_rig


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    """Return the server's port."""
    with aws_rig.running() as port:
        yield port
