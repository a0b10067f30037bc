"""One fake API server per test."""

from tests.unit.kube.conftest import api

__all__ = ["api"]
