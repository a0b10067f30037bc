"""Follow a page of docs/ as a reader does: its commands, as they are written there.

Takes: a control plane, kubectl, a folder that plays the checkout. Gives: what the
commands print. May touch: that folder, the cluster.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import ROOT

COMMAND_S: Final = 900
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(page: str, heading: str) -> str:
    """Return the commands of a section of a page; at least one exists."""
    text = (ROOT / "docs" / page).read_text()
    depth = len(heading.partition(" ")[0])
    section = text.partition(f"\n{heading}\n")[2]
    ends = re.split(rf"^#{{1,{depth}}} ", section, flags=re.MULTILINE)
    blocks = _BLOCK.findall(ends[0])
    assert blocks, heading
    return "\n".join(blocks)


class Reader:
    """A user with a shell in a checkout, kubectl and kyverno-mp."""

    def __init__(self, plane: ControlPlane, kubectl: Path, folder: Path) -> None:
        self.folder = folder
        for name in ("deploy", "config"):
            (folder / name).symlink_to(ROOT / name)
        # There are no images here: the first program of the line "succeeds".
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").symlink_to("/bin/true")
        programs = (folder / "bin", kubectl.parent, Path(sys.executable).parent)
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        kubeconfig = str(plane.kubeconfig)
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": kubeconfig}

    def follow(self, page: str, heading: str) -> str:
        """Run the commands of a section; all of them must succeed."""
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", commands(page, heading)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, f"{heading}: {done.stdout}{done.stderr}"
        return done.stdout
