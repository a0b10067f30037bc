"""Fetch policies or tests from a git repository.

Room: cli. Takes: a URL (http, https, file) and a branch. Gives: a folder with a shallow
clone, removed afterwards. Next: policies, testing.
May touch: the git program, the network through it, a temporary folder.
Source: docs/behaviour/cli 4 (git URL).
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kyverno_mp.cli.shell.errors import CommandFailed

_CLONE_S_MAX: Final = 300
"""A shallow clone of a large repository takes a minute on a slow connection."""
_SCHEMES: Final = ("http", "https", "file")


class GitAccess(NamedTuple):
    """``--git-branch``, ``--username`` and ``--password``."""

    branch: str = ""
    username: str = ""
    password: str = ""


ANONYMOUS: Final = GitAccess()


class Target(NamedTuple):
    """The repository to clone, and the folder in it to read."""

    repository: str
    branch: str
    folder: str = ""


def is_git(path: str) -> bool:
    """Return whether a path is a URL; raises CommandFailed for unsupported schemes."""
    scheme, separator, _ = path.partition("://")
    if not separator:
        return False
    if scheme not in _SCHEMES:
        raise CommandFailed(
            f"failed to parse URL ({path}: scheme {scheme} is not supported)"
        )
    return True


def target_of(url: str, branch: str) -> Target:
    """Split a URL into its parts; raises CommandFailed.

    KYVERNO: without a branch, the path after owner and repository is the branch, and
    the whole repository is scanned. With a branch, the path is the folder
    (docs/behaviour/cli 4). A file URL names a whole repository.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _checked(Target(url, branch))
    steps = [step for step in parts.path.split("/") if step]
    if len(steps) < 2:  # noqa: PLR2004 - owner and repository
        raise CommandFailed(
            f"failed to parse URL (invalid URL path {parts.path} - expected"
            " https://<any_git_source_domain>/:owner/:repository/:branch (without"
            " --git-branch flag) OR"
            " https://<any_git_source_domain>/:owner/:repository/:directory (with"
            " --git-branch flag))"
        )
    repository = _repository(parts, steps)
    rest = "/".join(steps[2:])
    if branch:
        return _checked(Target(repository, branch, rest))
    return _checked(Target(repository, rest or "main"))


def _repository(parts: SplitResult, steps: list[str]) -> str:
    return f"{parts.scheme}://{parts.netloc}/{steps[0]}/{steps[1]}"


def _checked(target: Target) -> Target:
    if target.branch.startswith("-"):
        raise CommandFailed(f"failed to parse URL (branch {target.branch})")
    if ".." in target.folder.split("/"):
        raise CommandFailed(f"failed to parse URL (folder {target.folder})")
    return target


@contextmanager
def cloned(url: str, access: GitAccess) -> Iterator[Path]:
    """Clone with depth 1 and yield the folder to read; raises CommandFailed."""
    import tempfile  # needed only to clone a repository

    target = target_of(url, access.branch)
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-git-") as folder:
        root = Path(folder) / "repository"
        _clone(target, root, access)
        inside = root / target.folder
        if not inside.is_dir():
            raise CommandFailed(
                f"failed to list YAMLs in repository ({target.folder}: no such folder)"
            )
        yield inside


def _clone(target: Target, root: Path, access: GitAccess) -> None:
    import subprocess  # needed only to clone

    branch = ["--branch", target.branch] if target.branch else []
    # SAFETY: symlinks in the repository become plain files and cannot point outside.
    line = ["git", "-c", "core.symlinks=false", "clone", "--quiet", "--depth", "1"]
    line += ["--single-branch", "--no-tags", *branch, "--", target.repository]
    try:
        done = subprocess.run(
            [*line, str(root)],
            env=_environment(access),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CLONE_S_MAX,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandFailed(
            "failed to clone repository (the program git is not installed)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(
            f"failed to clone repository ({target.repository}: it took longer than"
            f" {_CLONE_S_MAX} s)"
        ) from error
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise CommandFailed(f"failed to clone repository ({reason})")


def _environment(access: GitAccess) -> dict[str, str]:
    """Return git's environment: no prompts, few protocols; secrets not in argv."""
    from kyverno_mp.settings.read import environment  # needed only to clone

    variables = dict(environment())
    variables["GIT_TERMINAL_PROMPT"] = "0"
    variables["GIT_ALLOW_PROTOCOL"] = ":".join(_SCHEMES)
    # KYVERNO: one without the other is ignored (docs/behaviour/cli 4).
    if access.username and access.password:
        pair = f"{access.username}:{access.password}".encode()
        variables["GIT_CONFIG_COUNT"] = "1"
        variables["GIT_CONFIG_KEY_0"] = "http.extraHeader"
        token = base64.b64encode(pair).decode()
        variables["GIT_CONFIG_VALUE_0"] = f"Authorization: Basic {token}"
    return variables


def yaml_files(folder: Path) -> list[Path]:
    """List .yaml and .yml files in a clone, including hidden files, without links."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in (".yaml", ".yml")
        and path.is_file()
        and not path.is_symlink()
        and ".git" not in path.relative_to(folder).parts[:1]
    )
