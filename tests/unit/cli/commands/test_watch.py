"""A watched command runs again after a change, and survives a failing run."""

from pathlib import Path

import pytest

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.watch import state_of, watch


def test_runs_again_after_each_change(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("a")
    runs: list[int] = []

    def run() -> int:
        runs.append(len(runs))
        # The file changes while the command runs, and the change must not be missed.
        file.write_text("a" * (len(runs) + 1))
        return len(runs)

    assert watch([str(tmp_path)], run, rounds=3, pause_s=0.001) == 3


def test_failing_run_does_not_end_the_watch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"

    def run() -> int:
        file.write_text(file.read_text() + "x" if file.exists() else "x")
        raise CommandFailed("broken", 4)

    assert watch([str(tmp_path)], run, rounds=2, pause_s=0.001) == 4
    assert capfd.readouterr().err.count("Error: broken") == 2


def test_interrupt_returns_the_last_code(tmp_path: Path) -> None:
    def run() -> int:
        raise KeyboardInterrupt

    assert watch([str(tmp_path)], run) == 0


def test_nothing_to_watch() -> None:
    with pytest.raises(CommandFailed, match="--watch needs a file"):
        watch(["-", "https://h/o/r"], lambda: 0)


def test_other_files_of_a_folder_are_not_watched(tmp_path: Path) -> None:
    """Otherwise, a log in the watched folder would restart the run for ever."""
    (tmp_path / "p.yaml").write_text("a")
    before = state_of([str(tmp_path)])
    (tmp_path / "run.log").write_text("a")
    assert state_of([str(tmp_path)]) == before
    (tmp_path / "q.yml").write_text("a")
    (tmp_path / "r.json").write_text("a")
    assert len(state_of([str(tmp_path)])) == 3
    # A file named on the command line is watched whatever its name is.
    assert len(state_of([str(tmp_path / "run.log")])) == 1
