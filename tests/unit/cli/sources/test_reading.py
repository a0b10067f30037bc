"""A file argument costs at most its limit, whatever it is."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kyverno_mp.cli.sources.reading import read_file
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod


def test_device_without_end_is_an_error() -> None:
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_file("/dev/zero", is_argument=True, bytes_max=1000)


def test_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 1000)
    assert read_file(file, bytes_max=1000) == b"x" * 1000


def test_pipe_in_a_folder_does_not_wait(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_file(pipe)


def _arguments(name: str, path: Path, other: Path) -> tuple[object, ...]:
    return {
        "policies": ("apply", path, "-r", other),
        "objects": ("apply", other, "-r", path),
        "lint": ("lint", path),
        "explain": ("explain", path),
        "report": ("report", path),
        "test": ("test", path),
        "fix": ("fix", "policy", path),
    }[name]


COMMANDS = ["policies", "objects", "lint", "explain", "report", "test", "fix"]


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("make", [_pipe, _endless])
def test_folders_with_pipes_and_devices(
    command: Command, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe without a writer would wait for ever, a device without end fill memory."""
    folder, other = tmp_path / "folder", tmp_path / "other.yaml"
    folder.mkdir()
    file = "kyverno-test.yaml" if name == "test" else "x.yaml"
    make(folder / file)
    other.write_text(LATEST_POLICY if name == "objects" else pod("a"))
    done = command(*_arguments(name, folder, other))
    assert done.code == 1
    assert "not a regular file" in done.out + done.err


@pytest.mark.parametrize("name", ["policies", "resources", "exceptions", "variables"])
def test_files_that_a_test_names(command: Command, tmp_path: Path, name: str) -> None:
    _pipe(tmp_path / "pipe.yaml")
    (tmp_path / "p.yaml").write_text(LATEST_POLICY)
    (tmp_path / "r.yaml").write_text(pod("a"))
    named = {"policies": ["p.yaml"], "resources": ["r.yaml"]}
    named[name] = ["pipe.yaml"]
    lines = [f"{key}: {value}" for key, value in named.items() if key != "variables"]
    if name == "variables":
        lines.append("variables: pipe.yaml")
    (tmp_path / "kyverno-test.yaml").write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
        + "\n".join(lines)
        + "\nresults: [{policy: no-latest, rule: tagged, kind: Pod,"
        " resources: [a], result: pass}]\n"
    )
    done = command("test", tmp_path)
    # KYVERNO: a file with objects that cannot be read is reported and skipped.
    assert done.code == (0 if name == "resources" else 1)
    assert "not a regular file" in done.out + done.err


def test_pipe_of_the_caller_is_read(command: Command, tmp_path: Path) -> None:
    """``apply policy.yaml -r <(helm template .)``."""
    policy, pipe = tmp_path / "p.yaml", tmp_path / "objects"
    policy.write_text(LATEST_POLICY)
    os.mkfifo(pipe)
    writer = threading.Thread(
        target=pipe.write_text, args=(pod("bad", "nginx:latest"),), daemon=True
    )
    writer.start()
    done = command("apply", policy, "-r", pipe)
    writer.join()
    assert done.code == 1
    assert "fail: 1" in done.out


def test_link_in_an_output_folder_is_not_followed(
    command: Command, tmp_path: Path
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "crds"
    outside.write_text("mine")
    folder.mkdir()
    (folder / "kyverno.io_clusterpolicies.yaml").symlink_to(outside)
    done = command("crds", "--output", folder)
    assert done.code == 1
    assert outside.read_text() == "mine"


MUTATING = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: add}
spec:
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {a: b}}}}
"""


def test_mutated_objects(command: Command, tmp_path: Path) -> None:
    policy, objects = tmp_path / "p.yaml", tmp_path / "r.yaml"
    policy.write_text(MUTATING)
    objects.write_text(pod("a"))
    done = command("apply", policy, "-r", objects, "-o", "/dev/stdout")
    assert (done.code, "a: b" in done.out) == (0, True)
    folder, outside = tmp_path / "out", tmp_path / "outside"
    folder.mkdir()
    (folder / "a-mutated.yaml").symlink_to(outside)
    done = command("apply", policy, "-r", objects, "-o", folder)
    assert done.code == 1
    assert not outside.exists()


BROKEN = "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: x}\n"


@pytest.mark.parametrize("text", ["a: [", BROKEN + "spec: {rules: 5}", BROKEN, ""])
def test_require_valid(command: Command, tmp_path: Path, text: str) -> None:
    """A policy that is left out must not turn a gate green."""
    good, bad, objects = (tmp_path / one for one in ("g.yaml", "b.yaml", "r.yaml"))
    good.write_text(LATEST_POLICY)
    bad.write_text(text)
    objects.write_text(pod("a"))
    done = command("apply", good, bad, "-r", objects, "--require-valid")
    assert done.code == 1
    assert "--require-valid" in done.err
    assert "b.yaml" in done.err or "policy x" in done.err
    assert command("apply", good, "-r", objects, "--require-valid").code == 0


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("is_folder", [False, True])
def test_links_stay_in_their_repository(
    command: Command, tmp_path: Path, name: str, *, is_folder: bool
) -> None:
    """A patch's link to a file of the machine would print it: a kubeconfig, a token."""
    repository, outside = tmp_path / "repository", tmp_path / "outside"
    folder, inside = repository / "folder", repository / "inside"
    for one in (folder, outside, inside):
        one.mkdir(parents=True)
    file = "kyverno-test.yaml" if name == "test" else "x.yaml"
    for one in (outside, inside):
        (one / file).write_text("apiVersion: v1\nkind: Config\nusers: hunter2\n")
    other = tmp_path / "other.yaml"
    other.write_text(LATEST_POLICY if name == "objects" else pod("a"))
    link = folder / ("more" if is_folder else file)

    def refused(target: Path) -> bool:
        link.unlink(missing_ok=True)
        link.symlink_to(target if is_folder else target / file)
        done = command(*_arguments(name, folder, other))
        assert "hunter2" not in done.out + done.err
        is_refused = "leads out of its repository" in done.out + done.err
        assert not is_refused or done.code == 1
        return is_refused

    assert not refused(outside)
    (repository / ".git").mkdir()
    # Some kinds of folders are read without those below them.
    is_read = not is_folder or name not in ("objects", "test")
    assert refused(outside) == is_read
    assert not refused(inside)


@pytest.mark.parametrize("make", [_pipe, _endless])
def test_recordings_with_pipes_and_devices(
    command: Command, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder, policy = tmp_path / "folder", tmp_path / "policy.yaml"
    folder.mkdir()
    make(folder / "reviews.jsonl")
    policy.write_text(LATEST_POLICY)
    done = command("replay", folder, policy)
    assert done.code != 0
    assert f"{folder / 'reviews.jsonl'}: not a regular file" in done.err
