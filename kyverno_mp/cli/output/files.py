"""Write the files of a command's output.

Room: cli. Takes: a path, a text. Gives: files. Next: cli/apply/mutated, cli/docs,
cli/crds, cli/facts, cli/fix. May touch: the files.
Source: POSIX open(2) (O_NOFOLLOW).

SAFETY: a folder of output can contain links that a stranger has prepared, and the names
in it come from objects. A link is an error there, so nothing outside is overwritten.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Final

_FILE_MODE: Final = 0o666  # less the umask


def write_in_folder(path: Path, content: str, *, append: bool = False) -> None:
    """Write a file of an output folder. Raises: OSError, ELOOP for a link."""
    how = os.O_APPEND if append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | how
    with open(os.open(path, flags, _FILE_MODE), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        file.write(content)


def replace_private(path: Path, content: str) -> None:
    """Replace a file by one that only its owner can read. Raises: OSError.

    It has all of the content or stays as it was; a link is replaced, not followed.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    import tempfile  # 8 ms that a help page does not need

    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_to_stream(path: Path, content: str) -> None:
    """Write to an open stream, after what the command has printed to it."""
    stream = {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(str(path))
    if stream is not None:
        stream.write(content)
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(content)


def is_stream(path: Path) -> bool:
    """Return whether the path is an open stream of the caller: ``/dev/stdout``."""
    return str(path).startswith("/dev/") and path.exists() and not path.is_dir()
