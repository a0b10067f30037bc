"""Read a folder of artefacts back; refuse it if one is not what the others say.

Takes: the folder, and the trusted root for its signature. Gives: lines about what was
verified, or raises. Next: kyverno_mp/images/bundles/verify.py, which checks the
signature as the product does. May touch: nothing else.

`python -m deploy.release.verify FOLDER` is for whoever has downloaded a release.
"""

import argparse
import email
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from deploy.release.archives import members_of, sha256
from deploy.release.indexes import programs_in
from deploy.release.provenance import BUNDLE, PREDICATE
from deploy.release.source import INSTALLS, Refused, workflow_of
from deploy.release.trial import ISSUER, ROOT_FILE
from kyverno_mp.images.bundles.bundle import parse
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.bundles.verify import Demands, check_bundle, statement_of
from kyverno_mp.images.keys import Unproved
from kyverno_mp.program.ports import Identity

SUMS: Final = "SHA256SUMS"
UNLISTED: Final = frozenset({SUMS, BUNDLE, ROOT_FILE})
"""What is made after the sums."""
_SUM: Final = re.compile(r"([0-9a-f]{64})  (\S+)")
_FORMULA: Final = re.compile(r'url "([^"]+)"\s+sha256 "([0-9a-f]{64})"')


class Origin(NamedTuple):
    """Who must have signed: the repository's workflow, below a trusted root."""

    repository: str
    root: bytes
    is_trial: bool = False


def verify(folder: Path, origin: Origin | None) -> Iterator[str]:
    """Yield what holds; without origin, only that the files agree. Raises: Refused."""
    sums = _sums(folder)
    version = _version(folder)
    yield f"{SUMS}: {len(sums)} files"
    for check in (_wheel, _chart, _krew, _formula, _manifests, _boms):
        yield check(folder, version)
    if origin is not None:
        yield _provenance(folder, sums, origin)


def _sums(folder: Path) -> dict[str, str]:
    """Return the sums of all files. Raises: Refused if one is missing or differs."""
    lines = (folder / SUMS).read_text().splitlines()
    found = [_SUM.fullmatch(line) for line in lines]
    if not all(found):
        raise Refused(f"{SUMS} has a line that is no sum")
    sums = {one[2]: one[1] for one in found if one}
    names = {path.name for path in folder.iterdir()} - UNLISTED
    if names != set(sums):
        raise Refused(f"{SUMS} differs from the folder: {sorted(names ^ set(sums))}")
    for name, expected in sums.items():
        if sha256(folder / name) != expected:
            raise Refused(f"{name} differs from its sum")
    return sums


def _version(folder: Path) -> str:
    (wheel,) = _some(folder, "kyverno_mp-*.whl")
    return wheel.name.split("-")[1]


def _some(folder: Path, pattern: str) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise Refused(f"there is no {pattern}")
    return paths


def _wheel(folder: Path, version: str) -> str:
    (wheel,) = _some(folder, "kyverno_mp-*.whl")
    name = f"kyverno_mp-{version}.dist-info/METADATA"
    with zipfile.ZipFile(wheel) as archive:
        facts = email.message_from_bytes(archive.read(name))
    _require(wheel, facts["Version"], version)
    _some(folder, f"kyverno_mp-{version}.tar.gz")
    return f"{wheel.name}: version {version}"


def _chart(folder: Path, version: str) -> str:
    index = yaml.safe_load((folder / "index.yaml").read_text())
    ((entry,),) = index["entries"].values()
    package = folder / entry["urls"][0].rpartition("/")[2]
    _require(package, entry["digest"], sha256(package))
    facts = yaml.safe_load(members_of(package)["kyverno-mp/Chart.yaml"])
    _require(package, (facts["version"], facts["appVersion"]), (version, version))
    return f"{package.name}: as in index.yaml"


def _krew(folder: Path, version: str) -> str:
    path = folder / "kyverno-mp.krew.yaml"
    spec = yaml.safe_load(path.read_text())["spec"]
    _require(path, spec["version"], f"v{version}")
    sums = {one["uri"]: one["sha256"] for one in spec["platforms"]}
    return _downloads(folder, path.name, sums)


def _formula(folder: Path, version: str) -> str:
    text = (folder / "kyverno-mp.rb").read_text()
    _require(folder / "kyverno-mp.rb", f'version "{version}"' in text, right=True)
    return _downloads(folder, "kyverno-mp.rb", dict(_FORMULA.findall(text)))


def _downloads(folder: Path, name: str, sums: dict[str, str]) -> str:
    """Require every archive, and no other file, with its sum. Raises: Refused."""
    real = {program.path.name: sha256(program.path) for program in programs_in(folder)}
    _require(folder / name, {url.rpartition("/")[2]: sums[url] for url in sums}, real)
    return f"{name}: {len(real)} archives of the command line"


def _manifests(folder: Path, version: str) -> str:
    for name in INSTALLS:
        text = (folder / name).read_text()
        images = set(re.findall(r"^\s+image: (\S+)", text, re.MULTILINE))
        is_published = all(re.match(rf"ghcr\.io/\S+:{re.escape(version)}(@|$)", image)
                           for image in images)  # fmt: skip
        _require(folder / name, bool(images) and is_published, right=True)
    return f"{', '.join(INSTALLS)}: the image of {version}"


def _boms(folder: Path, version: str) -> str:
    for path in _some(folder, "*.cdx.json"):
        bom = json.loads(path.read_text())
        _require(path, bom["metadata"]["component"]["version"], version)
        _require(path, len(bom["components"]) > 1, right=True)
    return "bills of materials: of this version"


def _provenance(folder: Path, sums: dict[str, str], origin: Origin) -> str:
    """Require a signature of the origin on every sum. Raises: Refused."""
    path = folder / BUNDLE
    if not path.exists():
        raise Refused(f"there is no {BUNDLE}")
    subject = workflow_of(origin.repository, _version(folder))
    identity = Identity(subject=subject, issuer=ISSUER)
    now = datetime.now(UTC) if origin.is_trial else None
    try:
        bundle, trusted = parse(path.read_bytes()), parse_material(origin.root)
        for digest in sums.values():
            demands = Demands(
                f"sha256:{digest}",
                identity,
                needs_log=not origin.is_trial,
                now=now,
                needs_scts=not origin.is_trial,
            )
            check_bundle(bundle, trusted, demands)
        kind = statement_of(bundle).get("predicateType")
    except Unproved as error:
        raise Refused(f"{BUNDLE}: {error}") from None
    _require(path, kind, PREDICATE)
    return f"{BUNDLE}: signed by {subject}" + " (dry run)" * origin.is_trial


def _require(path: Path, found: object, right: object) -> None:
    if found != right:
        raise Refused(f"{path.name}: {found}, not {right}")


def main() -> int:
    """Verify the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.verify")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repository", help="OWNER/NAME, whose workflow has signed")
    parser.add_argument(
        "--trusted-root", type=Path, help="Sigstore's: `gh attestation trusted-root`"
    )
    parser.add_argument("--dry-run", action="store_true", help="believe its own root")
    given = parser.parse_args()
    trial = given.folder / ROOT_FILE if given.dry_run else None
    root = given.trusted_root or trial
    if bool(root) != bool(given.repository):
        parser.error("a repository needs a trusted root, and the other way round")
    try:
        origin = None
        if root:
            origin = Origin(given.repository, root.read_bytes(), is_trial=bool(trial))
        for line in verify(given.folder, origin):
            sys.stdout.write(f"{line}\n")
    except Refused as error:
        sys.stderr.write(f"refused: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
