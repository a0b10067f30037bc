"""``crds``: write the CustomResourceDefinitions of every kind.

Room: cli. Takes: a folder, or nothing for standard output. Gives: a YAML file per kind.
May touch: files ``<group>_<plural>.yaml`` in the folder named by the user.
"""

from pathlib import Path

import click

from kyverno_mp.cli.output.files import write_in_folder
from kyverno_mp.policy.crd.generate import render


def called(folder: Path | None) -> None:
    """Write every CustomResourceDefinition."""
    files = render()
    if folder is None:
        click.echo("---\n".join(files.values()), nl=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in files.items():
        write_in_folder(folder / name, document)
    click.echo(f"Wrote {len(files)} files to {folder}")
