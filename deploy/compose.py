"""Write install.yaml and install-split.yaml from their parts.

Takes: deploy/parts, config/*.yaml, config/crds. Gives: the two manifests beside this
file. Run as ``python deploy/compose.py`` after a change of a part; a test holds them
equal. May touch: those two files.

Definitions stand last: who reads a manifest meets what runs first.
"""

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_CONFIG: Final = _HERE.parent / "config"
_COMMON: Final = (
    _HERE / "parts" / "webhook-owner.yaml",
    _HERE / "parts" / "user-roles.yaml",
    _CONFIG / "kyverno.yaml",
    _CONFIG / "kyverno-metrics.yaml",
    _HERE / "parts" / "services.yaml",
    _HERE / "parts" / "availability.yaml",
    _HERE / "parts" / "deployment.yaml",
)
_NAMESPACE: Final = _HERE / "parts" / "namespace.yaml"
_ADMISSION: Final = _HERE / "parts" / "admission-rbac.yaml"
_LATER: Final = tuple(
    _HERE / "parts" / f"{role}-rbac.yaml"
    for role in ("background", "reports", "cleanup")
)
_MADE: Final = "# Made by `python deploy/compose.py` from deploy/parts and config.\n"
_ALL_IN_ONE: Final = """\
# kyverno-mp, all in one: `kubectl apply -f install.yaml`; README.md, "In a cluster".
# One Deployment runs every role that this version has, which is the admission role.
"""
_SPLIT: Final = """\
# kyverno-mp, a Deployment for each role: `kubectl apply -f install-split.yaml`.
# This version has the admission role only, so there is one Deployment: none is here
# that would do nothing. The other three roles have their ServiceAccounts and
# permissions, so that grants to them can be made; each gets its Deployment with the
# version that has the role.
"""


def install() -> str:
    """Return the text of install.yaml."""
    return _join(_ALL_IN_ONE, (_NAMESPACE, _ADMISSION, *_COMMON))


def install_split() -> str:
    """Return the text of install-split.yaml."""
    return _join(_SPLIT, (_NAMESPACE, _ADMISSION, *_LATER, *_COMMON))


def _join(head: str, parts: tuple[Path, ...]) -> str:
    files = (*parts, *sorted((_CONFIG / "crds").glob("*.yaml")))
    texts = (file.read_text().removeprefix("---\n").rstrip("\n") for file in files)
    return head + _MADE + "---\n" + "\n---\n".join(texts) + "\n"


def main() -> None:
    """Write both files."""
    (_HERE / "install.yaml").write_text(install())
    (_HERE / "install-split.yaml").write_text(install_split())


if __name__ == "__main__":
    main()
