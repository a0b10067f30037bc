"""Load the objects that policies are applied to.

Room: cli. Takes: paths, ``-`` for standard input. Gives: lists of objects, normalised
as the real program does. Next: evaluate.
May touch: files named by the user, standard input. Source: spec/cli.md 5.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.errors import InputError
from kyverno_mp.policy.load import load
from kyverno_mp.values.jsonvalue import Json

_DIVIDER = "-" * 70
_EMPTY_FOR_NULL = frozenset(
    {"annotations", "labels", "matchLabels", "nodeSelector", "data", "stringData"}
)


def load_resources(paths: Sequence[str], *, quiet: bool = False) -> list[Json]:
    """Return the objects of all paths; raises CommandFailed on unparsable files.

    KYVERNO: only the first path may be a folder, and it then replaces the list
    (cli.md 5); an unreadable later file is reported and left out.
    """
    if not paths:
        return []
    if paths[0] == "-":
        return [] if sys.stdin.isatty() else parse(sys.stdin.buffer.read(), "-")
    first = Path(paths[0])
    if not first.exists():
        raise CommandFailed(
            f"failed to load resources (stat {first}: no such file or directory)"
        )
    files = _children(first) if first.is_dir() else [Path(path) for path in paths]
    objects: list[Json] = []
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            if not quiet:
                print(  # noqa: T201 - the command's output
                    f"\n{_DIVIDER}\nfailed to load resources: {file}. "
                    f"\nerror: {error.strerror}\n{_DIVIDER}"
                )
            continue
        objects.extend(parse(data, str(file)))
    return objects


def _children(folder: Path) -> list[Path]:
    return sorted(
        child for child in folder.iterdir() if child.suffix in (".yaml", ".yml")
    )


def parse(data: bytes, file: str, *, floats: bool = True) -> list[Json]:
    """Return the objects in the text; raises CommandFailed naming the file."""
    try:
        documents = load(data, file=file)
    except InputError as error:
        raise CommandFailed(f"failed to load resources ({error.message})") from error
    objects = []
    for document in documents:
        raw = document.raw
        if not isinstance(raw, dict) or not raw.get("kind"):
            raise CommandFailed(
                f"failed to load resources ({file}: document"
                f" {document.index} has no kind)"
            )
        objects.append(normalised(raw, floats=floats))
    return objects


def normalised(raw: dict[str, Json], *, floats: bool = True) -> dict[str, Json]:
    """Give the object its default namespace, empty maps and float numbers."""
    fixed: dict[str, Json] = _fixed(raw, floats=floats)
    metadata = fixed.get("metadata")
    if not isinstance(metadata, dict):
        metadata = fixed["metadata"] = {}
    if not metadata.get("namespace"):
        # KYVERNO: cluster-scoped objects, too (cli.md 22.1).
        metadata["namespace"] = "default"
    return fixed


def _fixed(value: Json, *, floats: bool) -> Json:
    kind = type(value)
    if kind is dict:
        return {
            key: {}
            if item is None and key in _EMPTY_FOR_NULL
            else _fixed(item, floats=floats)
            for key, item in value.items()
        }
    if kind is list:
        return [_fixed(item, floats=floats) for item in value]
    if kind is int and floats:
        return float(value)
    return value
