"""Parse YAML or JSON text into raw documents, each with its position in the file.

Room: policy. Takes: bytes or text of one file. Gives: RawDocument records; Lists are
split. Next: yaml_documents.py; policy/reading/decode.py.
Source: docs/behaviour/cli 4; sigs.k8s.io/yaml (YAML 1.1 to JSON, duplicate keys: last
one wins).
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import structs

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.limits import JSON_DEPTH_MAX, POLICY_FILE_BYTES_MAX
from kyverno_mp.policy.problems import too_deep
from kyverno_mp.policy.reading import yaml_scalar
from kyverno_mp.values.jsonvalue import Json

_LIST: Final = "List"
_END: Final = re.compile(
    rb"(?m)^\.\.\.(?=\s|\Z)"
)  # a constant pattern, linear in the text
_NEXT: Final = re.compile(rb"(?m)^---(?=\s|\Z)")


class RawDocument(msgspec.Struct, frozen=True):
    """One document of a file. ``index`` counts from 0; ``line`` from 1.

    ``item`` is the index in a List, -1 for a separate document. ``duplicate_key`` is a
    key that a mapping contains twice, "" if there is none; the key's last value counts.
    """

    raw: Json
    file: str
    index: int
    line: int
    item: int = -1
    duplicate_key: str = ""


def load(
    source: bytes | str, *, file: str = "", with_lists: bool = False
) -> list[RawDocument]:
    """Parse all documents of a file; skip empty ones.

    ``with_lists``: do not split Lists.

    Raises: PolicyInvalid with code ``policy.syntax`` (line and column in ``where``),
    ``policy.too_large``, ``policy.too_deep`` or ``policy.alias_bomb``.
    """
    size = len(source)
    if size > POLICY_FILE_BYTES_MAX:
        message = f"file has {size} bytes, more than {POLICY_FILE_BYTES_MAX}"
        raise PolicyInvalid("policy.too_large", message, Where(file=file))
    documents = _load_json(source, file)
    if documents is None:
        # PERF: faster start of the CLI; the service imports this before it forks.
        from kyverno_mp.policy.reading.yaml_documents import parse_yaml

        documents = [
            RawDocument(
                document.raw,
                file,
                document.number,
                document.line,
                duplicate_key=document.duplicate_key,
            )
            for document in parse_yaml(without_strays(source), file)
        ]
    if with_lists:
        return documents
    return [entry for document in documents for entry in _take_apart(document)]


def without_strays(source: bytes | str) -> bytes | str:
    """Remove the text between a line ``...`` and the next ``---``.

    KYVERNO: a file is split at its ``---`` lines, and only the first document of each
    part is read; text after ``...`` is ignored. Line numbers do not change.
    """
    data = source.encode() if isinstance(source, str) else source
    if _END.search(data) is None:
        return source
    parts, at = [], 0
    while (end := _END.search(data, at)) is not None:
        next_start = _NEXT.search(data, end.start())
        after = next_start.start() if next_start is not None else len(data)
        before = [match.end() for match in _NEXT.finditer(data, at, end.start())]
        if _has_content(data[before[-1] if before else at : end.start()]):
            parts.append(data[at : end.start()])
            parts.append(b"\n" * data.count(b"\n", end.start(), after))
        else:
            # Nothing precedes this ``...``, so it is kept and YAML reports an error.
            parts.append(data[at:after])
        at = after
    return b"".join([*parts, data[at:]])


def _has_content(data: bytes) -> bool:
    lines = (line.strip() for line in data.split(b"\n"))
    return any(line and not line.startswith(b"#") for line in lines)


def _take_apart(document: RawDocument) -> list[RawDocument]:
    items = items_of(document.raw)
    if items is None:
        return [document]
    return [
        structs.replace(document, raw=item, item=position)
        for position, item in items
        if item is not None
    ]


def items_of(raw: Json) -> Iterator[tuple[int, Json]] | None:
    """Return the objects of a List or another kind of list; None if it is not a list.

    Each object has its index in the outer list; nested lists are split, too. Items of
    ``PodList`` and similar kinds may omit apiVersion and kind. K8S: lists have no name,
    so a named object whose kind ends in List is not a list.
    """
    if type(raw) is not dict or type(raw.get("kind")) is not str:
        return None
    kind, items, metadata = raw["kind"], raw.get("items"), raw.get("metadata")
    is_named = type(metadata) is dict and bool(metadata.get("name"))
    if not kind.endswith(_LIST) or is_named or "items" not in raw:
        return None
    if type(items) is not list and items is not None:
        return None
    return _flat(raw, items or [])


def _flat(raw: dict[str, Json], items: list[Json]) -> Iterator[tuple[int, Json]]:
    head = {}
    if raw["kind"] != _LIST:
        kind = raw["kind"].removesuffix(_LIST)
        head = {"apiVersion": raw.get("apiVersion"), "kind": kind}
    for position, item in enumerate(items):
        merged = {**head, **item} if head and type(item) is dict else item
        inner = items_of(merged)
        if inner is None:
            yield position, merged
        else:
            yield from ((position, document) for _, document in inner)


def _load_json(source: bytes | str, file: str) -> list[RawDocument] | None:
    """Parse a file with one JSON object; return None if it must be parsed as YAML."""
    start = source[:64].lstrip()
    if start[:1] not in (b"{", "{"):
        return None
    try:
        raw = msgspec.json.decode(source)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return [RawDocument(_whole_numbers(raw, file), file, 0, 1)]


def _whole_numbers(root: dict[str, Json], file: str) -> dict[str, Json]:
    """Convert whole floats to ints in place; reject documents that are too deep."""
    level: list[Json] = [root]
    for _ in range(JSON_DEPTH_MAX):
        below: list[Json] = []
        for holder in level:
            places = holder.items() if type(holder) is dict else enumerate(holder)
            for pointer, value in places:
                if type(value) is dict or type(value) is list:
                    below.append(value)
                elif type(value) is float:
                    holder[pointer] = yaml_scalar.whole(value)
                elif type(value) is int:
                    holder[pointer] = yaml_scalar.in_range(value)
        if not below:
            return root
        level = below
    raise too_deep(Where(file=file, line=1))
