"""Make the artefacts that a cluster or a workflow reads: chart, manifests, action.

Takes: the staged tree. Gives: files in the folder of artefacts. Next: indexes.py.
May touch: that folder.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from deploy.release.archives import files_below, pack, sha256
from deploy.release.source import INSTALLS, Release

_ACTION: Final = (
    *("action.yml", "pyproject.toml", "setup.cfg", "README.md", "LICENSE", "NOTICE"),
    *("deploy/requirements.txt", "kyverno_mp", "config/samples"),
)


def manifests(release: Release, folder: Path) -> Iterator[Path]:
    """Write the manifests, with the published image, and the definitions alone."""
    for name in INSTALLS:
        yield Path(shutil.copyfile(release.tree / "deploy" / name, folder / name))
    definitions = sorted((release.tree / "config/crds").glob("*.yaml"))
    texts = (path.read_text().removeprefix("---\n") for path in definitions)
    crds = folder / "crds.yaml"
    crds.write_text("---\n" + "---\n".join(texts))
    yield crds


def chart(release: Release, folder: Path) -> Iterator[Path]:
    """Write the chart's package and the index that names it."""
    source = release.tree / "deploy/chart"
    facts = yaml.safe_load((source / "Chart.yaml").read_text())
    package = folder / f"{facts['name']}-{facts['version']}.tgz"
    pack(package, files_below(source, f"{facts['name']}/"), release.epoch)
    yield package
    created = datetime.fromtimestamp(release.epoch, UTC).isoformat()
    entry = {
        **facts,
        "created": created,
        "digest": sha256(package),
        "urls": [f"{release.downloads}/{package.name}"],
    }
    index = {"apiVersion": "v1", "entries": {facts["name"]: [entry]}}
    path = folder / "index.yaml"
    path.write_text(yaml.safe_dump({**index, "generated": created}))
    yield path


def action(release: Release, folder: Path) -> Iterator[Path]:
    """Write the action with what it installs, for forges that reach no other one."""
    files: dict[str, Path] = {}
    for name in _ACTION:
        path = release.tree / name
        files |= files_below(path, f"{name}/") if path.is_dir() else {name: path}
    target = folder / f"kyverno-mp-action-{release.version}.tar.gz"
    pack(target, files, release.epoch)
    yield target
