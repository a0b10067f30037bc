"""Load the objects that policies are applied to.

Room: cli. Takes: paths, URLs, ``-`` for standard input. Gives: lists of objects,
normalised as by upstream. Next: cli/apply/evaluate.
May touch: files and URLs named by the user, standard input. Source: docs/behaviour/cli
5.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import one_line
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import YAML, Bounds, may_be_folder
from kyverno_mp.cli.sources.reading import read_file, read_standard_input
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.load import RawDocument, load
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.values.jsonvalue import Json

_DIVIDER = "-" * 70
_URLS = ("http://", "https://")
_EMPTY_FOR_NULL = frozenset(
    {"annotations", "labels", "matchLabels", "nodeSelector", "data", "stringData"}
)


class Location(msgspec.Struct, frozen=True):
    """The location of an object: file, document from 0, entry of a List or -1, line."""

    file: str
    index: int
    item: int
    line: int


def load_resources(
    paths: Sequence[str],
    *,
    locations: list[Location] | None = None,
    floats: bool = True,
    echo: Callable[[str], None] = click.echo,
    unread: list[str] | None = None,
    are_arguments: bool = True,
) -> list[Json]:
    """Return the objects of all paths; raises CommandFailed for unparsable files.

    ``locations`` collects the location of each object. ``echo`` receives read errors.
    ``unread`` collects unreadable folders and parts of folders.
    ``are_arguments``: see ``read_file``.

    KYVERNO: only the first path can be a folder, which then replaces the list; only
    later paths can be URLs (docs/behaviour/cli 5). Unreadable files are reported and
    skipped.
    """
    if not paths:
        return []
    if paths[0] == "-":
        if sys.stdin.isatty():
            return []
        return parse(read_standard_input(), "-", floats=floats, locations=locations)
    first = Path(paths[0])
    if not first.exists():
        raise CommandFailed(
            f"failed to load resources (stat {paths[0]}: no such file or directory)"
        )
    try:
        files = _children(first) if first.is_dir() else paths
    except OSError as error:
        message = f"failed to load resources ({read_error(error, first)})"
        raise CommandFailed(message) from error
    objects: list[Json] = []
    with progress("Reading objects", len(files), "files") as advance:
        for file in files:
            advance(1)
            try:
                data = _read(file, is_argument=are_arguments and files is paths)
            except OSError as error:
                if unread is not None and (files is not paths or may_be_folder(file)):
                    unread.append(file)
                advance.hide()
                echo(
                    f"\n{_DIVIDER}\nfailed to load resources: {one_line(file)}. "
                    f"\nerror: {one_line(read_error(error, file))}\n{_DIVIDER}"
                )
                continue
            objects.extend(parse(data, file, floats=floats, locations=locations))
    return objects


def _read(file: str, *, is_argument: bool) -> bytes:
    if not file.startswith(_URLS):
        return read_file(file, is_argument=is_argument)
    # Imported late: this takes 50 ms, and only runs with a URL need it.
    from kyverno_mp.cli.sources.url import fetch

    return fetch(file)


def _children(folder: Path) -> list[str]:
    bounds = Bounds(folder)
    return sorted(
        str(bounds.check(child)) for child in folder.iterdir() if child.suffix in YAML
    )


def parse(
    data: bytes,
    file: str,
    *,
    floats: bool = True,
    locations: list[Location] | None = None,
) -> list[Json]:
    """Return the objects in the text; raises CommandFailed, which names the file."""
    try:
        documents = load(data, file=file)
    except InputError as error:
        line = f"line {error.where.line}: " if error.where.line else ""
        raise CommandFailed(
            f"failed to load resources ({file}: {line}{error.message})"
        ) from error
    objects = []
    for document in documents:
        raw = document.raw
        for name in ("kind", "apiVersion"):
            if not isinstance(raw, dict) or not raw.get(name):
                raise CommandFailed(
                    f"failed to load resources ({file}: {_name_of(document)} has no"
                    f" {name})"
                )
        _check_names(raw, f"{file}: {_name_of(document)}")
        objects.append(normalised(raw, floats=floats))
        if locations is not None:
            locations.append(
                Location(document.file, document.index, document.item, document.line)
            )
    return objects


def _name_of(document: RawDocument) -> str:
    item = f", item {document.item}" if document.item >= 0 else ""
    return f"document {document.index}{item}"


def _check_names(raw: dict[str, Json], location: str) -> None:
    """Raise CommandFailed if apiVersion or kind is not a string.

    KYVERNO: other fields that are not strings are read as "" (docs/behaviour/cli 5).
    """
    for name in ("apiVersion", "kind"):
        if type(raw[name]) is not str:
            raise CommandFailed(
                f"failed to load resources ({location}: {name} is not text)"
            )


def normalised(raw: dict[str, Json], *, floats: bool = True) -> dict[str, Json]:
    """Set the object's default namespace, empty maps and float numbers, in place."""
    _fix(raw, floats=floats)
    metadata = raw.setdefault("metadata", {})
    # KYVERNO: a value that is not a map stays unchanged.
    if type(metadata) is dict and not metadata_text(raw, "namespace"):
        # KYVERNO: even for cluster-scoped objects (docs/behaviour/cli 22.1).
        metadata["namespace"] = "default"
    return raw


def with_floats(raw: dict[str, Json]) -> dict[str, Json]:
    """Set empty maps and float numbers in a cluster's object, in place."""
    _fix(raw, floats=True)
    return raw


def _fix(root: dict[str, Json], *, floats: bool) -> None:
    """Set empty maps and float numbers. PERF: 1,000 Pods: no copies, no recursion."""
    stack: list[Json] = [root]
    while stack:
        holder = stack.pop()
        is_map = type(holder) is dict
        for key, value in list(holder.items() if is_map else enumerate(holder)):
            kind = type(value)
            if kind is dict or kind is list:
                stack.append(value)
            elif kind is int and floats:
                holder[key] = float(value)
            elif value is None and is_map and key in _EMPTY_FOR_NULL:
                holder[key] = {}
