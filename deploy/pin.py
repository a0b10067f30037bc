"""Write requirements.txt: the image's packages, each file with its hash.

Takes: setup.cfg, the package index. Gives: requirements.txt beside this file. Run as
``python deploy/pin.py`` (needs `uv`) after a change of setup.cfg or to get newer
versions; a test compares both files. May touch: that file.

The Kubernetes client is omitted: only the command line uses it, for kubeconfigs with an
OIDC login, and it has about twenty dependencies that no other package needs.
"""

import configparser
import subprocess
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
LEFT_OUT: Final = ("kubernetes",)
_COMMAND: Final = (
    "uv pip compile - --quiet --generate-hashes --no-header --no-annotate --universal"
    " --python-version 3.11 --only-binary :all:"
)
_HEAD: Final = "# Made by `python deploy/pin.py` from setup.cfg: what the image has.\n"


def wanted() -> list[str]:
    """Return the requirements of setup.cfg for the image."""
    setup = configparser.ConfigParser()
    setup.read(_HERE.parent / "setup.cfg")
    lines = setup["options"]["install_requires"].strip().splitlines()
    return [line for line in lines if not line.startswith(LEFT_OUT)]


def main() -> None:
    """Write the file."""
    done = subprocess.run(
        _COMMAND.split(),
        input="\n".join(wanted()),
        capture_output=True,
        check=True,
        text=True,
    )
    (_HERE / "requirements.txt").write_text(_HEAD + done.stdout)


if __name__ == "__main__":
    main()
