"""Read one file that a command names, or that lies in a folder, within a limit.

Room: cli. Takes: a path. Gives: bytes. Next: policy/reading/load.
May touch: the file. Source: POSIX open(2) (O_NONBLOCK, FIFOs).

SAFETY: the content of a folder can come from strangers. A link to a device, a pipe that
nobody writes or a huge file must cost no more than an error.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from kyverno_mp.limits import POLICY_FILE_BYTES_MAX

_CHUNK_BYTES: Final = 1 << 20


def read_file(
    path: str | Path, *, is_argument: bool = False, bytes_max: int = 0
) -> bytes:
    """Return the content of a regular file; ``bytes_max`` 0: POLICY_FILE_BYTES_MAX.

    ``is_argument``: the user named the path on the command line, so that it can also be
    a pipe, such as ``<(helm template .)``, or another stream that ends.
    Raises: OSError, also for larger files and for other kinds of files.
    """
    with opened(path, is_argument=is_argument) as file:
        return read(file, str(path), bytes_max or POLICY_FILE_BYTES_MAX)


@contextmanager
def opened(path: str | Path, *, is_argument: bool = False) -> Iterator[BinaryIO]:
    """Open a file as ``read_file`` does, to read it in parts; the same errors."""
    # Opening a pipe without a writer waits, and a writer may come only later.
    flags = os.O_RDONLY | (0 if is_argument else os.O_NONBLOCK)
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor
        facts = os.fstat(file.fileno())
        if stat.S_ISDIR(facts.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (is_argument or stat.S_ISREG(facts.st_mode)):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_standard_input(bytes_max: int = 0) -> bytes:
    """Return standard input to its end. Raises: OSError if it is larger."""
    return read(sys.stdin.buffer, "-", bytes_max or POLICY_FILE_BYTES_MAX)


def read(
    file: BinaryIO, name: str, bytes_max: int = POLICY_FILE_BYTES_MAX, head: bytes = b""
) -> bytes:
    """Return ``head`` and the rest of an open file. Raises: OSError if it is larger."""
    parts = [head]
    remaining = bytes_max + 1 - len(head)
    while remaining > 0 and (part := file.read(min(remaining, _CHUNK_BYTES))):
        parts.append(part)
        remaining -= len(part)
    if remaining <= 0:
        raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", name)
    return b"".join(parts)
