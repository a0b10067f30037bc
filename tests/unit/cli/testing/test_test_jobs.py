"""Worker processes do not change the output of ``test``."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

HEAD = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pods.yaml]
results:
"""
ROW = "- {policy: no-latest, rule: tagged, kind: Pod, resources: [%s], result: pass}\n"


def _folders(root: Path, number: int) -> None:
    for index in range(number):
        folder = root / f"test-{index:02}"
        folder.mkdir()
        (folder / "policy.yaml").write_text(LATEST_POLICY)
        bad = pod("bad", "nginx:latest")
        (folder / "pods.yaml").write_text(pod("good") + bad + pod(f"p{index}"))
        rows = ROW % "good" + ROW % f"p{index}"
        rows += ROW % "bad" if index % 3 == 0 else ""
        (folder / "kyverno-test.yaml").write_text(HEAD + rows)


@pytest.mark.parametrize(
    "flags", [(), ("--fail-only",), ("-o", "sarif"), ("--detailed-results",)]
)
def test_parallel_output_is_the_same(
    command: Command, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    _folders(tmp_path, 7)
    alone = command("test", tmp_path, "--jobs", "1", *flags)
    assert alone.code == 1
    assert command("test", tmp_path, "--jobs", "3", *flags) == alone
    assert command("test", tmp_path, *flags) == alone


def test_invalid_test_fails_in_its_turn(command: Command, tmp_path: Path) -> None:
    _folders(tmp_path, 6)
    (tmp_path / "test-04" / "pods.yaml").unlink()
    alone = command("test", tmp_path, "--jobs", "1")
    assert (alone.code, "test-04/pods.yaml" in alone.err) == (1, True)
    assert "p3" in alone.out
    assert command("test", tmp_path, "--jobs", "4") == alone
