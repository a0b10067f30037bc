"""Run a command again whenever one of its files changes.

Room: cli. Takes: paths and the command. Gives: the last exit code, after an interrupt.
Next: apply, testing. May touch: file names and times below the paths, the clock,
standard error.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.errors import Error

_LOOK_S: Final = 0.5
"""Changes are noticed before a user can switch to the terminal window."""

_SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Only these files are watched, because a folder may contain a log of the run."""

_State = dict[str, tuple[int, int, int]]


def watch(
    paths: Iterable[str],
    run: Callable[[], int],
    *,
    rounds: int = 0,
    pause_s: float = _LOOK_S,
) -> int:
    """Run now and after every change, until an interrupt (or for ``rounds`` runs).

    A failed run is reported, and watching continues.
    """
    watched = [path for path in paths if path and path != "-" and "://" not in path]
    if not watched:
        raise CommandFailed("--watch needs a file or folder of this machine")
    code = 0
    try:
        while True:
            state = state_of(watched)
            code = _guarded(run)
            sys.stdout.flush()
            rounds -= 1
            if rounds == 0:
                return code
            say("watching for changes ...", err=True)
            while state_of(watched) == state:
                time.sleep(pause_s)
    except KeyboardInterrupt:
        return code


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    except CommandFailed as error:
        say(f"Error: {error.message}", err=True)
        return error.exit_code
    except Error as error:
        say(f"Error: {error.message}", err=True)
        return 1


def state_of(paths: Iterable[str]) -> _State:
    """Return time, size and inode of the files at or below the paths."""
    state: _State = {}
    for path in paths:
        if not Path(path).is_dir():
            _add(state, path)
            continue
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if name != ".git"]
            for name in files:
                if name.endswith(_SUFFIXES):
                    _add(state, str(Path(folder) / name))
    return state


def _add(state: _State, path: str) -> None:
    try:
        facts = Path(path).stat()
    except OSError:
        return
    state[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
