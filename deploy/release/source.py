"""Copy the tree of a release, and set its version, its repository and its image.

Takes: the checkout. Gives: a Release, which all other steps read, and a copy of the
tree that is only for this release, so that a dry run changes nothing.
Next: __main__.py. May touch: the folder that it is told to write, git.

The name of the repository is known only where a release is published, so wheel, chart
and manifests get it here.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_OWN: Final = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
INSTALLS: Final = (
    *("install.yaml", "install-split.yaml", "install-without-crds.yaml"),
    "authorizer.yaml",
)
"""The manifests of deploy/ that name the image."""
_NEWS: Final = ("CHANGELOG.md", "docs/changes.md")
_TIME: Final = ("log", "-1", "--format=%ct")
_UNRELEASED: Final = "\n## Unreleased\n"


class Refused(Exception):
    """A release cannot be made from this tree, or an artefact is not what it claims."""


@dataclass(frozen=True)
class Release:
    """What is released. ``tree``: its copy; ``epoch``: the time of its commit."""

    version: str
    repository: str
    tree: Path
    epoch: int
    notes: str
    image_digest: str = ""

    @property
    def image(self) -> str:
        """Return the image without tag; registries know only small letters."""
        return f"ghcr.io/{self.repository.lower()}"

    @property
    def page(self) -> str:
        """Return the address of the repository."""
        return f"https://github.com/{self.repository}"

    @property
    def downloads(self) -> str:
        """Return the address below which the artefacts will be."""
        return f"{self.page}/releases/download/v{self.version}"

    @property
    def workflow(self) -> str:
        """Return the identity with which the workflow signs."""
        return workflow_of(self.repository, self.version)


def workflow_of(repository: str, version: str) -> str:
    """Return the identity in the certificates of a release's workflow."""
    file = f"{repository}/.github/workflows/release.yml"
    return f"https://github.com/{file}@refs/tags/v{version}"


def own_version(tree: Path) -> str:
    """Return the version of the package."""
    found = _OWN.search((tree / "kyverno_mp/__init__.py").read_text())
    if found is None:
        raise Refused("kyverno_mp/__init__.py has no version")
    return found[1]


def stage(
    folder: Path, version: str, repository: str, *, image_digest: str = ""
) -> Release:
    """Copy the tree; another version is prepared in the copy. Raises: Refused."""
    if version and not _VERSION.fullmatch(version):
        raise Refused(f"the version {version} is not MAJOR.MINOR.PATCH")
    if not _REPOSITORY.fullmatch(repository):
        raise Refused(f"the repository {repository} is not OWNER/NAME")
    if image_digest and not _DIGEST.fullmatch(image_digest):
        raise Refused(f"{image_digest} is not the digest of an image")
    copy_tree(folder)
    if version and version != own_version(folder):
        prepare(folder, version)
    release = Release(
        own_version(folder),
        repository,
        folder,
        commit_time(),
        notes_of((folder / _NEWS[0]).read_text(), own_version(folder)),
        image_digest,
    )
    _publish_names(release)
    _write_pages(folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (release.epoch, release.epoch), follow_symlinks=False)
    return release


def copy_tree(folder: Path) -> None:
    """Copy what git knows or would add, so neither caches nor ignored files."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in names.split("\0"):
        source, copy = ROOT / name, folder / name
        if name and source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def commit_time() -> int:
    """Return the time of all files in archives, in seconds since 1970."""
    return int(environment().get("SOURCE_DATE_EPOCH") or git(*_TIME))


def check_publishable(version: str) -> None:
    """Require a commit with the tag and nothing unreleased. Raises: Refused."""
    if git("status", "--porcelain"):
        raise Refused("the checkout has changes that are not committed")
    tag = f"v{version or own_version(ROOT)}"
    if tag not in git("tag", "--points-at", "HEAD").split():
        raise Refused(f"the commit has no tag {tag}")
    for name in _NEWS:
        text = (ROOT / name).read_text().partition(_UNRELEASED)[2]
        if text.partition("\n## ")[0].strip():
            raise Refused(f"{name} has changes under Unreleased")


def check_repository(repository: str) -> None:
    """Require that the published facts name this repository. Raises: Refused."""
    page = f"https://github.com/{repository}"
    if page not in (ROOT / "SECURITY-INSIGHTS.yml").read_text():
        raise Refused(f"SECURITY-INSIGHTS.yml does not name {page}")


def git(*words: str) -> str:
    """Return what git prints about the checkout."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def clean_environment() -> dict[str, str]:
    """Return the environment without what makes a checkout importable."""
    names = ("PYTHON", "KYVERNO_MP_", "VIRTUAL_ENV")
    own = environment().items()
    return {name: value for name, value in own if not name.startswith(names)}


def environment() -> Mapping[str, str]:
    """Return the variables of this process."""
    return os.environ  # noqa: TID251 - of a tool; the program has settings/read.py


def program_file(name: str) -> str:
    """Return a program that the extra ``release`` has installed in this environment."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise Refused(f"{name} is missing: pip install '.[release]'")
    return path


def notes_of(news: str, version: str) -> str:
    """Return the paragraph of the changelog about a version. Raises: Refused."""
    found = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)",
        news,
        re.MULTILINE | re.DOTALL,
    )
    if found is None or not found[1].strip():
        raise Refused(f"CHANGELOG.md has no paragraph about {version}")
    return found[1].strip() + "\n"


def prepare(tree: Path, version: str) -> None:
    """Turn what is unreleased into a version, in all files that name it."""
    old = own_version(tree)
    new = f'__version__ = "{version}"'
    _replace(tree / "kyverno_mp/__init__.py", f'__version__ = "{old}"', new)
    for name in _NEWS:
        _replace(tree / name, _UNRELEASED, f"{_UNRELEASED}\n## {version}\n")
    for name in ("deploy/Dockerfile", "README.md", "docs/install.md"):
        _replace(tree / name, old, version)
    parts = [path for path in _versioned_manifests(tree) if old in path.read_text()]
    for path in parts:
        text = path.read_text()
        for before in ("app.kubernetes.io/version: ", "image: kyverno-mp:"):
            text = text.replace(f"{before}{old}", f"{before}{version}")
        path.write_text(text)
    for command in (["deploy/compose.py"], ["-m", "deploy.chart"]):
        subprocess.run(
            [sys.executable, "-B", *command],
            cwd=tree,
            check=True,
            env={**clean_environment(), "PYTHONPATH": str(tree)},
        )


def _versioned_manifests(tree: Path) -> list[Path]:
    """Return the manifests that are written by hand; others are made of them."""
    deploy = tree / "deploy"
    return [*sorted((deploy / "parts").glob("*.yaml")), deploy / "authorizer.yaml"]


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise Refused(f"{path.name} does not contain {old.strip()}")
    path.write_text(text.replace(old, new))


def _publish_names(release: Release) -> None:
    """Name the repository in the metadata of the wheel, and our image in manifests."""
    tree, page = release.tree, release.page
    urls = {
        "Homepage": page,
        "Source": page,
        "Issues": f"{page}/issues",
        "Documentation": f"{page}/tree/v{release.version}/docs",
        "Changelog": f"{page}/blob/v{release.version}/CHANGELOG.md",
    }
    lines = "\n".join(f"    {name} = {url}" for name, url in urls.items())
    before = "long_description = file: README.md\n"
    _replace(tree / "setup.cfg", before, f"{before}project_urls =\n{lines}\n")
    digest = f"@{release.image_digest}" if release.image_digest else ""
    tagged = f"image: kyverno-mp:{release.version}"
    image = f"image: {release.image}:{release.version}{digest}"
    for name in INSTALLS:
        _replace(tree / "deploy" / name, tagged, image)
    _replace(
        tree / "deploy/chart/values.yaml",
        "repository: kyverno-mp\n",
        f"repository: {release.image}\n",
    )
    # The defaults with which the chart compares: a value that differs was set.
    _replace(
        tree / "deploy/chart/values-of-split.json",
        '.image.repository": "kyverno-mp"',
        f'.image.repository": "{release.image}"',
    )


_COMPLETIONS: Final = {
    "bash": "bash-completion/completions/kyverno-mp",
    "fish": "fish/vendor_completions.d/kyverno-mp.fish",
    "zsh": "zsh/site-functions/_kyverno-mp",
}
"""Shell -> where it looks below ``share``."""
_DATA: Final = "[options.data_files]\n"


def _write_pages(tree: Path) -> None:
    """Write manual pages and completions, and let wheel and archive contain them."""
    share = tree / "share"
    _command(tree, "docs", "--man", "-o", str(share / "man/man1"))
    for shell, name in _COMPLETIONS.items():
        path = share / name
        path.parent.mkdir(parents=True)
        path.write_text(_command(tree, "completion", shell))
    names = ("man/man1/*", *_COMPLETIONS.values())
    lines = (f"share/{Path(name).parent} = share/{name}\n" for name in names)
    _replace(tree / "setup.cfg", _DATA, _DATA + "".join(lines))
    with (tree / "MANIFEST.in").open("a") as manifest:
        manifest.write("recursive-include share *\n")


def _command(tree: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-m", "kyverno_mp", *words],
        cwd=tree,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(tree)},
    )
    return done.stdout


def main() -> None:
    """Prepare the version that the command line names, in the checkout."""
    prepare(ROOT, sys.argv[1])


if __name__ == "__main__":
    main()
