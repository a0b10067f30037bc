"""Make the archive of the command line for this platform, with its own interpreter.

Takes: a wheel, an interpreter that can be moved, deploy/requirements-cli.txt. Gives:
kyverno-mp-VERSION-OS-ARCH.tar.gz: a start script, the interpreter with all packages,
manual pages and completions. Next: libraries.py. May touch: the folder that it is told
to write, the package index.

Best is an interpreter of python-build-standalone (``uv python install``), which needs
only the C library. Any other one works if its libraries can be copied beside it; on
Linux, libraries.py does this.
"""

import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from deploy.release.archives import files_below, pack
from deploy.release.libraries import carry_libraries
from deploy.release.source import (
    ROOT,
    Refused,
    clean_environment,
    program_file,
)

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_LEFT_OUT: Final = (
    *("test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "pydoc_data"),
    *("site-packages", "__pycache__", "config-*", "_tkinter.*", "_test*", "_xx*"),
    *("_ctypes_test.*", "*.a", "EXTERNALLY-MANAGED"),
)
"""Parts of the library that no command imports."""
_START: Final = """\
#!/bin/sh
# Starts kyverno-mp with the interpreter beside this file, from any link to it.
self=$0
while [ -L "$self" ]; do
  target=$(readlink "$self")
  case $target in
    /*) self=$target ;;
    *) self=$(dirname "$self")/$target ;;
  esac
done
home=$(cd "$(dirname "$self")" && pwd -P)
exec "$home/python/bin/{python}" -I -c \\
  'import sys; from kyverno_mp.__main__ import main; del sys.argv[0]; exit(main())' \\
  "$0" "$@"
"""


def platform_name() -> str:
    """Return the name of this platform as Go, Krew and our archives write it."""
    machine = platform.machine()
    return f"{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"


def program_archive(
    wheel: Path, folder: Path, prefix: Path, *, version: str, epoch: int
) -> Path:
    """Make the archive in the folder; return its path. Raises: Refused."""
    name = f"kyverno-mp-{version}-{platform_name()}"
    home = folder / "program"
    python = copy_interpreter(prefix, home / "python")
    install(python, wheel)
    carry_libraries(home / "python")
    start = home / "kyverno-mp"
    start.write_text(_START.format(python=python.name))
    start.chmod(0o755)
    for document in ("LICENSE", "NOTICE"):
        shutil.copy2(ROOT / document, home / document)
    archive = folder / f"{name}.tar.gz"
    pack(archive, files_below(home, f"{name}/"), epoch)
    shutil.rmtree(home)
    return archive


def copy_interpreter(prefix: Path, target: Path) -> Path:
    """Copy an interpreter with its library; return its path. Raises: Refused."""
    found = sorted((prefix / "bin").glob("python3.[0-9]*[0-9]"))
    if not found:
        raise Refused(f"{prefix} has no bin/python3.N")
    source = found[-1].resolve()
    version = found[-1].name.removeprefix("python")
    python = target / "bin" / found[-1].name
    python.parent.mkdir(parents=True)
    shutil.copy2(source, python)
    library = f"lib/python{version}"
    shutil.copytree(
        prefix / library,
        target / library,
        symlinks=True,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
    )
    (target / library / "site-packages").mkdir()
    for shared in (prefix / "lib").glob(f"libpython{version}*.*"):
        if not shared.is_symlink() and {".so", ".dylib"} & {*shared.suffixes}:
            shutil.copy2(shared, target / "lib" / shared.name)
    return python


def install(python: Path, wheel: Path) -> None:
    """Install the wheel and its requirements, each by hash, in an interpreter."""
    uv = [program_file("uv"), "pip", "install", "--quiet", "--python", str(python)]
    uv += ["--link-mode", "copy"]
    pinned = ROOT / "deploy/requirements-cli.txt"
    hashed = ["--only-binary", ":all:", "--require-hashes", "-r", str(pinned)]
    for words in (hashed, ["--no-deps", "--no-index", "--no-cache", str(wheel)]):
        subprocess.run([*uv, *words], check=True, env=clean_environment())
    for script in python.parent.iterdir():
        if script != python:
            script.unlink()
    packages = next((python.parents[1] / "lib").glob("python3*/site-packages"))
    for record in packages.glob("*.dist-info/direct_url.json"):
        record.unlink()  # it names a folder of the machine that made the archive
    # Source that nobody can write is compiled once, here: by hash, as times change.
    words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    library = packages.parent
    # The official client is large, and only an old kind of login imports it.
    words += ["-x", "/kubernetes/", "-s", str(library), "-p", "kyverno-mp"]
    subprocess.run(
        [python, "-I", *words, str(library)],
        check=False,  # a package can contain files for another Python
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
    )


def unpack(archive: Path, folder: Path, *, has_code: bool = True) -> Path:
    """Unpack an archive; return the folder with the start script.

    Without ``has_code``: the interpreter and the facts about packages, a tenth of it.
    """
    with tarfile.open(archive) as content:
        members = (one for one in content if has_code or _is_fact(one.name))
        content.extractall(folder, members, filter="tar")
    (home,) = folder.iterdir()
    return home


def _is_fact(name: str) -> bool:
    package = name.partition("/site-packages/")[2].partition("/")[0]
    is_code = package and not package.endswith(".dist-info")
    return not is_code and "/__pycache__/" not in name
