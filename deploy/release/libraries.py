"""Copy the shared libraries of an interpreter into its folder, on Linux.

Takes: an interpreter's folder. Gives: the folder, whose files need only the C library
of the machine that they run on. May touch: that folder. Next: program.py.

An interpreter of python-build-standalone passes unchanged.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.release.source import Refused, program_file

_ELF: Final = b"\x7fELF"
_LINE: Final = re.compile(r"^\s*(\S+) => (\S+)", re.MULTILINE)
_OF_THE_MACHINE: Final = re.compile(
    r"(ld-linux.*|linux-vdso|libc|libm|libdl|libpthread|librt|libutil|libresolv)\.so\b.*"
)
"""The C library is the kernel's partner, so it is never copied."""


def carry_libraries(home: Path) -> None:
    """Copy missing libraries to ``lib``; all files find them there. Raises: Refused."""
    if sys.platform != "linux":
        return
    lib = home / "lib"
    files = [path for path in home.rglob("*") if _is_elf(path)]
    changed = {path for path in files for _ in _foreign(path, home)}
    for path in changed:
        for name, source in _foreign(path, home):
            if not (lib / name).exists():
                shutil.copy2(source, lib / name)
                (lib / name).chmod(0o755)
    added = [path for path in lib.glob("*.so*") if path not in files]
    for path in (*changed, *added):
        _search_in(path, lib)
    left = [name for path in (*files, *added) for name, _ in _foreign(path, home)]
    if left:
        raise Refused(f"libraries outside the archive: {sorted(set(left))}")


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as content:
        return content.read(len(_ELF)) == _ELF


def _foreign(path: Path, home: Path) -> Iterator[tuple[str, str]]:
    """Yield the libraries that the loader takes from elsewhere. Raises: Refused."""
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    for name, source in _LINE.findall(done.stdout):
        if _OF_THE_MACHINE.fullmatch(name):
            continue
        if source == "not":
            raise Refused(f"{path.name} needs {name}, which this machine lacks")
        if not Path(source).resolve().is_relative_to(home.resolve()):
            yield name, source


def _search_in(path: Path, lib: Path) -> None:
    depth = len(path.relative_to(lib.parent).parents) - 1
    origin = "/".join(["$ORIGIN", *[".."] * depth, "lib"])
    subprocess.run([program_file("patchelf"), "--set-rpath", origin, path], check=True)
