"""The samples of each kind in policies.kyverno.io behave as documented.

A failure means: a sample that a new user copies is rejected or behaves differently.
"""

from pathlib import Path

from tests.unit.cli.conftest import Command

SAMPLES = Path(__file__).resolve().parents[4] / "config/samples/kinds"


def test_samples_pass_their_test(command: Command) -> None:
    done = command("test", SAMPLES.with_name("kinds-test"))
    assert "6 tests passed and 0 tests failed" in done.out
    assert done.code == 0


def test_lint_accepts_the_samples_for_the_server(command: Command) -> None:
    done = command("lint", SAMPLES)
    assert done.code == 0
    assert "0 errors, 0 warnings" in done.out + done.err
