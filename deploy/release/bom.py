"""Write bills of materials (CycloneDX) of the command line and of the image.

Takes: an archive of the command line for this platform, the image's requirements.
Gives: two JSON files. Next: verify.py. May touch: the folder of artefacts.
Source: CycloneDX 1.6; the program `cyclonedx-py`.

The image's base is described by the attestation that the builder of the image attaches.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deploy.release.source import Refused, Release, clean_environment

_Bom = dict[str, Any]
_FLAGS: Final = ("--output-reproducible", "--no-validate")
"""Not validated before our changes; a test validates the result."""


def boms(release: Release, folder: Path, home: Path) -> Iterator[Path]:
    """Write both bills; ``home``: an unpacked archive of the command line."""
    (python,) = (home / "python/bin").glob("python3*")
    program = _cyclonedx(release, "environment", str(python))
    own = [one for one in program["components"] if one["name"] == "kyverno-mp"]
    if len(own) != 1:
        raise Refused("the bill of materials does not contain kyverno-mp")
    # An installation from a file names that file, which is on no other machine.
    own[0].pop("externalReferences", None)
    program["components"].remove(own[0])
    yield _write(folder / f"kyverno-mp-{release.version}.cdx.json", program, own[0])
    pinned = release.tree / "deploy/requirements.txt"
    image = _cyclonedx(release, "requirements", str(pinned))
    image["dependencies"].append({"ref": own[0]["bom-ref"]})
    yield _write(folder / f"kyverno-mp-image-{release.version}.cdx.json", image, own[0])


def _cyclonedx(release: Release, *words: str) -> _Bom:
    done = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", *words, *_FLAGS],
        check=True,
        capture_output=True,
        text=True,
        env={**clean_environment(), "SOURCE_DATE_EPOCH": str(release.epoch)},
    )
    bom: _Bom = json.loads(done.stdout)
    return bom


def _write(path: Path, bom: _Bom, own: _Bom) -> Path:
    """Write a bill whose subject is the component of this project."""
    subject = {**own, "type": "application"}
    bom["metadata"] = {**bom["metadata"], "component": subject}
    path.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")
    return path
