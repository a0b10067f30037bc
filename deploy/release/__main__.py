"""Make all artefacts of a release in one folder, and verify them.

`tox -e release -- --dry-run [VERSION]` tries it; `.github/workflows/release.yml` runs
it without that flag, and adds what only the forge can do: images, signatures, uploads.

Takes: the checkout; archives of other platforms. Gives: the folder. Next: source.py,
then the modules in the order of `_make`. May touch: the folder, the package index, git.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.release.archives import sums_text
from deploy.release.bom import boms
from deploy.release.distributions import distributions
from deploy.release.image_policy import image_policy
from deploy.release.indexes import homebrew, krew, programs_in
from deploy.release.manifests import action, chart, manifests
from deploy.release.program import platform_name, program_archive, unpack
from deploy.release.provenance import BUNDLE, statement
from deploy.release.source import (
    Refused,
    Release,
    check_publishable,
    check_repository,
    environment,
    stage,
)
from deploy.release.trial import ROOT_FILE, signed
from deploy.release.verify import SUMS, Origin, verify

_EXAMPLE: Final = "example/kyverno-mp"
"""The repository of a dry run that names none."""


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="tox -e release --")
    parser.add_argument("version", nargs="?", default="", help="the tree's by default")
    parser.add_argument("--dry-run", action="store_true", help="publishable or not")
    parser.add_argument("--output", type=Path, default=Path("dist/release"))
    parser.add_argument(
        "--repository", default=environment().get("GITHUB_REPOSITORY", ""),
        help="OWNER/NAME where it is published",
    )  # fmt: skip
    parser.add_argument("--image-digest", default="", help="of the pushed image")
    parser.add_argument("--programs", type=Path, help="folder of archives to include")
    parser.add_argument(
        "--only-program", action="store_true", help="make this platform's archive only"
    )
    parser.add_argument("--interpreter", type=Path, default=Path(sys.base_prefix))
    given = parser.parse_args()
    if not given.repository and not given.dry_run:
        parser.error("the repository is missing")
    return given


def main() -> int:
    """Make and verify the folder."""
    given = arguments()
    output = given.output.resolve()
    try:
        if not given.dry_run:
            check_publishable(given.version)
            check_repository(given.repository)
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            release = stage(
                Path(folder) / "tree",
                given.version,
                given.repository or _EXAMPLE,
                image_digest=given.image_digest,
            )
            if given.only_program:
                _only_program(release, output, given)
                return 0
            for path in _make(release, output, given):
                _say(f"made {path.name}")
        origin = _sign(release, output) if given.dry_run else None
        for line in verify(output, origin):
            _say(f"verified {line}")
    except Refused as error:
        sys.stderr.write(f"refused: {error}\n")
        return 1
    _say(f"{release.version} is in {given.output}")
    return 0


def _make(release: Release, output: Path, given: argparse.Namespace) -> Iterator[Path]:
    yield from distributions(release, output)
    yield from chart(release, output)
    yield from manifests(release, output)
    yield from action(release, output)
    yield from _programs(release, output, given)
    programs = programs_in(output)
    yield krew(release, programs, output)
    yield homebrew(release, programs, output)
    here = next(p.path for p in programs if platform_name() in p.path.name)
    home = unpack(here, release.tree.parent / "program", has_code=False)
    yield from boms(release, output, home)
    yield image_policy(release, output)
    notes = output / "release-notes.md"
    notes.write_text(release.notes)
    yield notes
    sums = output / SUMS
    sums.write_text(sums_text(path for path in output.iterdir() if path != sums))
    yield sums


def _programs(
    release: Release, output: Path, given: argparse.Namespace
) -> Iterator[Path]:
    """Copy the archives that other jobs have made, or make this platform's."""
    if given.programs:
        for program in programs_in(given.programs):
            yield Path(shutil.copy2(program.path, output / program.path.name))
        return
    (wheel,) = output.glob("*.whl")
    yield _program(release, output, given, wheel)


def _only_program(release: Release, output: Path, given: argparse.Namespace) -> None:
    """Make this platform's archive; equal trees give the same wheel everywhere."""
    folder = release.tree.parent / "distributions"
    folder.mkdir()
    wheel, _ = distributions(release, folder)
    path = _program(release, output, given, wheel)
    unpacked = unpack(path, release.tree.parent / "program")
    subprocess.run([unpacked / "kyverno-mp", "version"], check=True)
    _say(f"made {path.name}")


def _program(
    release: Release, output: Path, given: argparse.Namespace, wheel: Path
) -> Path:
    return program_archive(
        wheel,
        output,
        given.interpreter,
        version=release.version,
        epoch=release.epoch,
    )


def _sign(release: Release, output: Path) -> Origin:
    """Sign the sums as the workflow would; only this dry run believes it."""
    listed = [path for path in output.iterdir() if path.name != SUMS]
    made = statement(release, listed)
    bundle, root = signed(made, release.workflow)
    (output / BUNDLE).write_text(json.dumps(bundle))
    (output / ROOT_FILE).write_text(json.dumps(root))
    _say(f"signed {BUNDLE}, for this dry run only")
    return Origin(release.repository, json.dumps(root).encode(), is_trial=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
