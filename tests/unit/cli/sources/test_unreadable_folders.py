"""No command exits with 0 if it could not read a folder or a part of one.

Root may read everything, so the tests cause a rejection in three ways: by the kind of
the path, by links, and by a simulated operating system error.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pods.yaml]
results:
- {policy: no-latest, rule: tagged, kind: Pod, resources: [good], result: pass}
"""


def _missing(folder: Path) -> None:
    del folder


def _a_file(folder: Path) -> None:
    folder.write_text("")


def _nowhere(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def _itself(folder: Path) -> None:
    folder.symlink_to(folder)


def _below_a_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "more").symlink_to(folder.parent / "good.yaml" / "below")


def _loop(folder: Path) -> None:
    folder.mkdir()
    (folder / "more").symlink_to(folder)


def _pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "policy.yaml")


NO_FOLDERS = [_missing, _nowhere, _itself]
DAMAGED = [*NO_FOLDERS, _below_a_file, _loop, _pipe]
Spoil = Callable[[Path], None]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Return a file with a good Pod, beside a policy."""
    (tmp_path / "policy.yaml").write_text(LATEST_POLICY)
    file = tmp_path / "good.yaml"
    file.write_text(pod("good"))
    return file


@pytest.mark.parametrize("spoil", DAMAGED)
@pytest.mark.parametrize("name", ["lint", "apply", "apply beside"])
def test_policies(command: Command, good: Path, spoil: Spoil, name: str) -> None:
    folder = good.parent / "folder"
    spoil(folder)
    policy = good.parent / "policy.yaml"
    if name == "lint":
        done = command("lint", folder)
    elif name == "apply":
        done = command("apply", folder, "-r", good)
    else:
        done = command("apply", policy, folder, "-r", good)
        assert "pass: 1, fail: 0" in done.out
    assert done.code == 1
    assert str(folder) in done.err


@pytest.mark.parametrize("spoil", NO_FOLDERS)
def test_resources(command: Command, good: Path, spoil: Spoil) -> None:
    """For a later path, upstream only reports that the path was skipped."""
    folder, policy = good.parent / "folder", good.parent / "policy.yaml"
    spoil(folder)
    assert command("apply", policy, "-r", folder).code == 1
    done = command("apply", policy, "-r", good, "-r", folder)
    assert f"failed to load resources: {folder}" in done.out
    assert "pass: 1, fail: 0" in done.out
    assert (done.code, done.err) == (1, f"Error: could not be read: {folder}\n")


def test_folder_that_is_not_the_first_resource_path(
    command: Command, good: Path
) -> None:
    folder = good.parent / "folder"
    folder.mkdir()
    (folder / "bad.yaml").write_text(pod("bad", "nginx:latest"))
    done = command("apply", good.parent / "policy.yaml", "-r", good, "-r", folder)
    assert (done.code, done.err) == (1, f"Error: could not be read: {folder}\n")


@pytest.mark.parametrize("flag", ["-p", "-t"])
def test_all_output_formats(command: Command, good: Path, flag: str) -> None:
    folder = good.parent / "folder"
    args = ("apply", good.parent / "policy.yaml", "-r", good, "-r", folder, flag)
    assert command(*args).code == 1


@pytest.mark.parametrize("spoil", [*NO_FOLDERS, _a_file])
def test_tests(command: Command, good: Path, spoil: Spoil) -> None:
    folder = good.parent / "folder"
    spoil(folder)
    done = command("test", folder)
    assert f"\nError loading tests: open {folder}: " in done.out
    assert done.code == 1


def test_test_file_with_missing_paths(command: Command, tmp_path: Path) -> None:
    (tmp_path / "kyverno-test.yaml").symlink_to(tmp_path / "nowhere")
    done = command("test", tmp_path)
    assert "found 1 errors after loading tests" in done.err
    assert done.code == 1


def test_resources_of_a_test(command: Command, good: Path) -> None:
    folder = good.parent
    test = TEST.replace("[pods.yaml]", "[good.yaml, folder]")
    (folder / "kyverno-test.yaml").write_text(test)
    done = command("test", folder)
    assert "Test Summary: 1 tests passed and 0 tests failed" in done.out
    assert (done.code, "could not be read: " in done.err) == (1, True)


@pytest.mark.parametrize("name", ["lint", "apply", "test"])
@pytest.mark.parametrize("below", ["", "below"])
def test_permission_denied(
    command: Command,
    good: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    below: str,
) -> None:
    folder = good.parent / "folder"
    (folder / "below").mkdir(parents=True)
    refused = str(folder / below)

    def refusing(listed: Callable[[str], object]) -> Callable[[str], object]:
        def call(path: str) -> object:
            if os.fspath(path).rstrip("/") == refused:
                raise PermissionError(errno.EACCES, "Permission denied", refused)
            return listed(path)

        return call

    monkeypatch.setattr(os, "listdir", refusing(os.listdir))
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    more = ("-r", good) if name == "apply" else ()
    done = command(name, folder, *more)
    assert done.code == 1
    assert f"{refused}: permission denied" in done.out + done.err


def test_links_are_followed(command: Command, good: Path) -> None:
    """Upstream follows links, so their files must not be skipped silently."""
    real, folder = good.parent / "real", good.parent / "folder"
    real.mkdir()
    folder.mkdir()
    (good.parent / "policy.yaml").rename(real / "policy.yaml")
    (folder / "more").symlink_to(real)
    (folder / "twice").symlink_to(real)
    done = command("apply", folder, "-r", good)
    assert "Applying 6 policy rule(s) to 1 resource(s)" in done.out
    assert done.code == 0


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n---\n", "\ufeff", "null\n"]
)
def test_empty_files(command: Command, good: Path, text: str) -> None:
    """Files that were read and are empty are no failure."""
    folder = good.parent / "folder"
    folder.mkdir()
    (folder / "policy.yaml").write_text(text)
    assert command("lint", folder).code == 0
    done = command("apply", folder, "-r", good)
    assert (done.code, "Applying 0 policy rule(s)" in done.out) == (0, True)


@pytest.mark.parametrize("data", [b"\x00\x01\x02", b"\x89PNG\r\n\x1a\n", b"\xc3("])
def test_binary_files(command: Command, good: Path, data: bytes) -> None:
    folder = good.parent / "folder"
    folder.mkdir()
    (folder / "policy.yaml").write_bytes(data)
    assert command("lint", folder).code == 1
    done = command("apply", folder, "-r", good)
    assert str(folder / "policy.yaml") in done.err
    done = command("apply", good.parent / "policy.yaml", "-r", folder)
    assert (done.code, "failed to load resources" in done.err) == (1, True)
    (folder / "policy.yaml").rename(folder / "kyverno-test.yaml")
    assert command("test", folder).code == 1


@pytest.mark.parametrize("name", ["lint", "explain"])
def test_a_folder_without_files_is_named(
    command: Command, tmp_path: Path, name: str
) -> None:
    """A wrong path in a pipeline must not look like a clean result."""
    (tmp_path / "readme.md").touch()
    done = command(name, tmp_path)
    assert (done.code, done.err) == (0, f"no YAML files in {tmp_path}\n")


def test_a_run_without_policies_or_objects_says_so(
    command: Command, tmp_path: Path
) -> None:
    """KYVERNO: such a run succeeds."""
    policies, objects = tmp_path / "policies", tmp_path / "objects"
    policies.mkdir()
    objects.mkdir()
    done = command("apply", policies, "-r", objects)
    assert done.code == 0
    assert done.err == f"no policies in {policies}\nno objects in {objects}\n"
