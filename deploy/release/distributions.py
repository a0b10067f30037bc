"""Build the source distribution, and the wheel from it.

Takes: the staged tree. Gives: both files; equal trees give equal bytes.
Next: archives.py. May touch: the folder of artefacts.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.release.archives import repack
from deploy.release.source import Refused, Release, clean_environment

_BUILD: Final = (sys.executable, "-m", "build", "--no-isolation")
"""With the setuptools of this environment, so that two runs have the same one."""


def distributions(release: Release, folder: Path) -> Iterator[Path]:
    """Build both distributions."""
    done = subprocess.run(
        [*_BUILD, "--outdir", str(folder), str(release.tree)],
        check=False,
        cwd=folder,
        env={**clean_environment(), "SOURCE_DATE_EPOCH": str(release.epoch)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Refused(f"the distributions cannot be built: {done.stderr}")
    (wheel,) = folder.glob("kyverno_mp-*.whl")
    source = folder / f"kyverno_mp-{release.version}.tar.gz"
    # The wheel's format has the epoch; an archive of setuptools has times of this run.
    repack(source, release.epoch)
    yield from (wheel, source)
