"""Find the files below a folder, and report its unreadable parts.

Room: cli. Takes: a folder. Gives: paths, sorted by name. Next: policies,
cli/testing/files, fix. May touch: the folders named by the user, standard error.
Source: docs/behaviour/cli 4 (policies), 14 (tests).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kyverno_mp.cli.output.screen import say

_REPOSITORY: Final = ".git"
YAML: Final = (".yaml", ".yml")


def files_below(folder: Path, suffixes: tuple[str, ...] = YAML) -> Iterator[Path]:
    """Yield the files with these suffixes, without hidden names.

    Links are followed, as upstream does, but not out of the repository of the folder.
    Raises: OSError for a folder that cannot be listed, a broken link, a link that leads
    outside or to a parent folder, a pipe or a device.

    SAFETY: a repository can have patches of strangers, and the machine has files of
    others: a policy's message may print what a link leads to.
    """
    bounds = Bounds(folder)
    ways = [iter([folder])]
    above: list[tuple[int, int]] = []
    while ways:
        path = next(ways[-1], None)
        if path is None:
            ways.pop()
            if above:
                above.pop()
            continue
        facts = path.stat()
        bounds.check(path)
        if stat.S_ISDIR(facts.st_mode):
            identity = (facts.st_dev, facts.st_ino)
            if identity in above:
                raise _error(errno.ELOOP, path)
            above.append(identity)
            # Sorted by characters, like in Go.
            names = sorted(name for name in os.listdir(path) if name[:1] != ".")  # noqa: PTH208
            ways.append(iter([path / name for name in names]))
        elif path.suffix in suffixes:
            yield regular(path, facts)


def say_empty(paths: Iterable[str]) -> None:
    """Report folders without YAML files, because wrong paths must not look like a pass.

    Folders that cannot be read are reported later, when they are loaded.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if Path(path).is_dir() and next(files_below(Path(path)), None) is None:
                say(f"no YAML files in {path}", err=True)


def named_below(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files with the name, even in hidden folders, without linked folders.

    Raises: OSError for a folder that cannot be listed, and a link as ``files_below``.
    """

    def refuse(error: OSError) -> None:
        raise error

    walk = os.walk(folder, onerror=refuse)
    # Links to folders are ignored.
    bounds = Bounds(folder)
    for path in sorted(Path(at, name) for at, _, names in walk if name in names):
        yield bounds.check(path)


def may_be_folder(path: str) -> bool:
    """Return whether an unreadable path is, or would be, a folder.

    KYVERNO: a single file that cannot be read is reported and skipped
    (docs/behaviour/cli 5).
    """
    is_url = "://" in path
    return Path(path).is_dir() or not (is_url or path.endswith((*YAML, ".json")))


class Bounds:
    """Where links in a folder may lead.

    Outside a repository, they may lead anywhere, as upstream.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._roots: list[Path] | None = None

    def check(self, path: Path) -> Path:
        """Return a path below the folder. Raises: OSError if it leads outside."""
        if path == self._folder or not path.is_symlink():
            return path
        if self._roots is None:
            folder = self._folder.resolve()
            above = (folder, *folder.parents)
            repositories = [
                ancestor for ancestor in above if (ancestor / _REPOSITORY).exists()
            ]
            self._roots = (
                [*repositories[:1], folder, Path.cwd()] if repositories else [Path("/")]
            )
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in self._roots):
            message = (
                "a link that leads out of its repository; name its target to use it"
            )
            raise OSError(errno.EXDEV, message, str(path))
        return path


def regular(path: Path, facts: os.stat_result | None = None) -> Path:
    """Return the path of a regular file; reading a pipe could block forever.

    Raises: OSError.
    """
    facts = facts or path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
