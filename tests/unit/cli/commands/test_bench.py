"""``bench`` measures every rule and lists the slowest rule first.

A failure means: a user tunes the wrong policy.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

SLOW = """
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: slow}
spec:
  rules:
  - name: long-query
    match: {any: [{resources: {kinds: [Pod]}}]}
    context:
    - name: many
      variable: {jmesPath: "join(',', [to_string(request), to_string(request),\
 to_string(request)])"}
    validate:
      deny:
        conditions:
          any:
          - {key: "{{ length(many) }}", operator: LessThan, value: 1}
          - {key: "{{ contains(many, 'no such text') }}", operator: Equals, value: true}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    policies, pods = tmp_path / "policies.yaml", tmp_path / "pods.yaml"
    policies.write_text(LATEST_POLICY + SLOW)
    pods.write_text("".join(pod(f"p{number}") for number in range(5)))
    return policies, pods


def _measured(command: Command, files: tuple[Path, Path], *more: str) -> dict[str, Any]:
    done = command("bench", files[0], "-r", files[1], "--seconds", "0.3", *more)
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_json(command: Command, files: tuple[Path, Path]) -> None:
    found = _measured(command, files, "-o", "json")
    assert (found["policies"], found["objects"]) == (2, 5)
    assert found["rules"] == len(found["slowest"])
    first = found["slowest"][0]
    assert (first["policy"], first["rule"]) == ("slow", "long-query")
    means = [one["times"]["mean_us"] for one in found["slowest"]]
    assert means == sorted(means, reverse=True)
    matched = {one["rule"]: one["matched"] for one in found["slowest"]}
    assert matched["long-query"] == matched["tagged"] == 5
    assert matched["autogen-tagged"] == 0
    assert means[0] > 0
    assert found["set"]["median_us"] <= found["set"]["max_us"]
    assert found["set"]["slowest"].startswith("apps/Pod/p")


def test_top(command: Command, files: tuple[Path, Path]) -> None:
    assert len(_measured(command, files, "-o", "json", "-n", "1")["slowest"]) == 1
    done = command("bench", files[0], "-r", files[1], "--seconds", "0.1", "--top", "1")
    lines = done.out.splitlines()
    assert lines[-2].endswith("  slow/long-query")
    assert lines[-1].endswith("faster rules (--top 0: all)")


@pytest.mark.parametrize(
    ("policies", "objects", "text"),
    [
        ("gone.yaml", "pods.yaml", "gone.yaml"),
        ("empty.yaml", "pods.yaml", "no policies with rules in "),
        ("policies.yaml", "empty.yaml", "no objects in "),
    ],
)
def test_nothing_to_measure(
    command: Command,
    files: tuple[Path, Path],
    policies: str,
    objects: str,
    text: str,
) -> None:
    folder = files[0].parent
    (folder / "empty.yaml").touch()
    done = command("bench", folder / policies, "-r", folder / objects)
    assert done.code == 1
    assert text in done.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "name files or folders with policies, or --cluster"),
        (("p.yaml",), "name files with objects (-r), or --cluster"),
        (("p.yaml", "-r", "r.yaml", "--context", "x"), "--context has no meaning"),
        (("-c", "-r", "r.yaml", "--namespace", "n"), "--namespace selects objects"),
    ],
)
def test_incompatible_flags(
    command: Command, flags: tuple[str, ...], text: str
) -> None:
    done = command("bench", *flags)
    assert (done.code, done.out) == (1, "")
    assert text in done.err
