"""Load the objects that policies are applied to.

Room: cli. Takes: paths, URLs, ``-`` for standard input. Gives: lists of objects,
normalised as by upstream, or their texts one after the other. Next: cli/apply/evaluate,
cli/cluster/dump (parts of them).
May touch: files and URLs named by the user, standard input. Source: docs/behaviour/cli
5.
"""

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import msgspec

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import one_line
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import YAML, Bounds, may_be_folder
from kyverno_mp.cli.sources.reading import opened, read
from kyverno_mp.errors import InputError
from kyverno_mp.limits import POLICY_FILE_BYTES_MAX
from kyverno_mp.policy.reading.load import RawDocument, load
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.values.jsonvalue import Json

GLOBAL_ENTRY = "GlobalContextEntry"
"""The kind of objects that read other objects of a run."""
_DIVIDER = "-" * 70
_URLS = ("http://", "https://")
_LINES = (".jsonl", ".ndjson")
_EMPTY_FOR_NULL = frozenset(
    {"annotations", "labels", "matchLabels", "nodeSelector", "data", "stringData"}
)


class Location(msgspec.Struct, frozen=True):
    """The location of an object: file, document from 0, entry of a List or -1, line."""

    file: str
    index: int
    item: int
    line: int


class Text(NamedTuple):
    """The text of a file, or one line of a file with one JSON object per line."""

    data: bytes
    file: str
    document: int = 0
    """The number of documents before it in the file."""
    line: int = 1


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
    """
    objects: list[Json] = []
    for piece in texts(paths, echo=echo, unread=unread, are_arguments=are_arguments):
        objects.extend(parse(piece, floats=floats, locations=locations))
    return objects


def texts(
    paths: Sequence[str],
    *,
    echo: Callable[[str], None] = click.echo,
    unread: list[str] | None = None,
    are_arguments: bool = True,
) -> Iterator[Text]:
    """Yield the texts of all paths; with JSON lines, one line is in memory at a time.

    KYVERNO: only the first path can be a folder, which then replaces the list; only
    later paths can be URLs (docs/behaviour/cli 5). Unreadable files are reported and
    skipped.
    """
    if not paths:
        return
    if paths[0] == "-":
        if not sys.stdin.isatty():
            yield from _texts(sys.stdin.buffer, "-")
        return
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
    with progress("Reading objects", len(files), "files") as advance:
        for file in files:
            advance(1)
            try:
                yield from _read(file, is_argument=are_arguments and files is paths)
            except OSError as error:
                if unread is not None and (files is not paths or may_be_folder(file)):
                    unread.append(file)
                advance.hide()
                echo(
                    f"\n{_DIVIDER}\nfailed to load resources: {one_line(file)}. "
                    f"\nerror: {one_line(read_error(error, file))}\n{_DIVIDER}"
                )


def _read(file: str, *, is_argument: bool) -> Iterator[Text]:
    if not file.startswith(_URLS):
        with opened(file, is_argument=is_argument) as content:
            yield from _texts(content, file)
        return
    # Imported late: this takes 50 ms, and only runs with a URL need it.
    from kyverno_mp.cli.sources.url import fetch

    yield Text(fetch(file), file)


def _texts(content: BinaryIO, file: str) -> Iterator[Text]:
    """Yield the whole text, or the lines of a file with one JSON object per line.

    The first two lines decide: in YAML, an object cannot follow another one.
    """
    number, line, blank = _next_line(content, file)
    start = line.strip()
    if not (start.startswith(b"{") and start.endswith(b"}") and _is_json(start)):
        yield Text(read(content, file, head=blank + line), file)
        return
    after, second, between = _next_line(content, file)
    if not second.lstrip().startswith(b"{"):
        head = blank + line + between + second
        yield Text(read(content, file, head=head), file)
        return
    yield Text(line, file, line=number)
    index, number = 1, number + after
    while second:
        yield Text(second, file, index, number)
        index += 1
        try:
            after, second, _ = _next_line(content, file)
        except OSError as error:
            # The objects before this line are used, so the file cannot be skipped.
            message = f"failed to load resources ({read_error(error, file)})"
            raise CommandFailed(message) from error
        number += after


def _next_line(content: BinaryIO, file: str) -> tuple[int, bytes, bytes]:
    """Return the number of lines, the next line with content, the lines before it.

    Raises: OSError, also if they are larger than a file may be.
    """
    left, blank = POLICY_FILE_BYTES_MAX + 1, []
    while (line := content.readline(left)).isspace():
        blank.append(line)
        left -= len(line)
    if len(line) >= left:
        message = f"larger than {POLICY_FILE_BYTES_MAX} bytes"
        raise OSError(errno.EFBIG, message, file)
    return len(blank) + 1, line, b"".join(blank)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _children(folder: Path) -> list[str]:
    bounds = Bounds(folder)
    return sorted(
        str(bounds.check(child))
        for child in folder.iterdir()
        if child.suffix in (*YAML, *_LINES)
    )


def parse(
    piece: Text, *, floats: bool = True, locations: list[Location] | None = None
) -> list[Json]:
    """Return the objects in the text; raises CommandFailed, which names the file."""
    file, before = piece.file, piece.line - 1
    try:
        documents = load(piece.data, file=file)
    except InputError as error:
        line = f"line {error.where.line + before}: " if error.where.line else ""
        raise CommandFailed(
            f"failed to load resources ({file}: {line}{error.message})"
        ) from error
    objects = []
    for document in documents:
        raw = document.raw
        for name in ("kind", "apiVersion"):
            if not isinstance(raw, dict) or not raw.get(name):
                raise CommandFailed(
                    f"failed to load resources ({file}: {_name_of(document, piece)} has"
                    f" no {name})"
                )
        _check_names(raw, f"{file}: {_name_of(document, piece)}")
        objects.append(normalised(raw, floats=floats))
        if locations is not None:
            index, at = document.index + piece.document, document.line + before
            locations.append(Location(file, index, document.item, at))
    return objects


def _name_of(document: RawDocument, piece: Text) -> str:
    item = f", item {document.item}" if document.item >= 0 else ""
    return f"document {document.index + piece.document}{item}"


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
