"""Write what package managers read: a Krew manifest and a Homebrew formula.

Takes: the archives of the command line. Gives: kyverno-mp.krew.yaml, kyverno-mp.rb.
Next: verify.py, which reads them back. May touch: the folder of artefacts.
Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest;
https://docs.brew.sh/Formula-Cookbook.

The plugin is `kyverno-mp`, so it never stands in the way of Kyverno's own plugin.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from deploy.release.archives import sha256
from deploy.release.source import Refused, Release

_SUMMARY: Final = "Kyverno policies: lint, apply, test, explain, report"
_NAME: Final = re.compile(r"kyverno-mp-\d[\d.]*-(linux|darwin)-(amd64|arm64)\.tar\.gz")
_HOMEBREW: Final = {
    "darwin": "on_macos",
    "linux": "on_linux",
    "amd64": "on_intel",
    "arm64": "on_arm",
}


class Program(NamedTuple):
    """An archive of the command line."""

    system: str
    architecture: str
    path: Path


def programs_in(folder: Path) -> list[Program]:
    """Return the archives of all platforms. Raises: Refused if there is none."""
    matches = ((path, _NAME.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    programs = [Program(name[1], name[2], path) for path, name in matches if name]
    if not programs:
        raise Refused("there is no archive of the command line")
    return programs


def krew(release: Release, programs: Sequence[Program], folder: Path) -> Path:
    """Write the manifest of the plugin `kyverno-mp`."""
    platforms = [
        {
            "selector": {
                "matchLabels": {"os": program.system, "arch": program.architecture}
            },
            "uri": f"{release.downloads}/{program.path.name}",
            "sha256": sha256(program.path),
            "files": [{"from": f"{_folder(program)}/*", "to": "."}],
            "bin": "kyverno-mp",
        }
        for program in programs
    ]
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "kyverno-mp"},
        "spec": {
            "version": f"v{release.version}",
            "homepage": release.page,
            "shortDescription": _SUMMARY,
            "description": "Runs policies of kyverno.io and policies.kyverno.io on"
            " files and clusters. It is not Kyverno's own plugin `kyverno`.\n",
            "platforms": platforms,
        },
    }
    path = folder / "kyverno-mp.krew.yaml"
    path.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return path


def homebrew(release: Release, programs: Sequence[Program], folder: Path) -> Path:
    """Write the formula for a tap."""
    lines = [
        "class KyvernoMp < Formula",
        f'  desc "{_SUMMARY}"',
        f'  homepage "{release.page}"',
        f'  version "{release.version}"',
        '  license "Apache-2.0"',
        *(line for program in programs for line in _block(release, program)),
        "",
        "  def install",
        '    libexec.install Dir["*"]',
        '    bin.install_symlink libexec/"kyverno-mp"',
        '    share = libexec/"python/share"',
        '    bash_completion.install share/"bash-completion/completions/kyverno-mp"',
        '    fish_completion.install share/"fish/vendor_completions.d/kyverno-mp.fish"',
        '    zsh_completion.install share/"zsh/site-functions/_kyverno-mp"',
        '    man1.install Dir[share/"man/man1/*.1"]',
        "  end",
        "",
        "  test do",
        '    assert_match version.to_s, shell_output("#{bin}/kyverno-mp version")',
        "  end",
        "end",
    ]
    path = folder / "kyverno-mp.rb"
    path.write_text("\n".join(lines) + "\n")
    return path


def _block(release: Release, program: Program) -> Iterator[str]:
    yield ""
    yield f"  {_HOMEBREW[program.system]} do"
    yield f"    {_HOMEBREW[program.architecture]} do"
    yield f'      url "{release.downloads}/{program.path.name}"'
    yield f'      sha256 "{sha256(program.path)}"'
    yield "    end"
    yield "  end"


def _folder(program: Program) -> str:
    return program.path.name.removesuffix(".tar.gz")
