"""Run commands as a user does, with real files and captured output."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kyverno_mp.cli.main import run
from tests.unit.cli.cluster import api  # noqa: F401 - a fixture


@dataclass
class Done:
    """The exit code and the output of one command."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Done:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


LATEST_POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: no-latest
  annotations:
    policies.kyverno.io/severity: high
    policies.kyverno.io/category: Images
spec:
  rules:
  - name: tagged
    match:
      any:
      - resources: {kinds: [Pod]}
    validate:
      failureAction: Enforce
      message: A tag is required.
      pattern:
        spec:
          containers:
          - image: "!*:latest"
"""


def pod(name: str, image: str = "nginx:1.27", namespace: str = "apps") -> str:
    """Return the YAML of a Pod with one container."""
    return (
        "---\napiVersion: v1\nkind: Pod\n"
        f"metadata:\n  name: {name}\n  namespace: {namespace}\n"
        f"spec:\n  containers:\n  - name: main\n    image: {image}\n"
    )


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(LATEST_POLICY)
    return file


@pytest.fixture
def pods_file(tmp_path: Path) -> Path:
    file = tmp_path / "pods.yaml"
    file.write_text(pod("good") + pod("bad", "nginx:latest"))
    return file
