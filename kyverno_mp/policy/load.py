"""Parse YAML or JSON text into raw documents, each with its position in the file.

Room: policy. Takes: bytes or text of one file. Gives: RawDocument records; Lists are
split. Next: policy/decode.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cli 4; sigs.k8s.io/yaml (YAML 1.1 to JSON, duplicate keys: last
one wins).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec
import yaml
from yaml.cyaml import CParser  # type: ignore[attr-defined]  # stubs lag behind

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import (
    JSON_DEPTH_MAX,
    POLICY_FILE_BYTES_MAX,
    POLICY_FILE_NODES_MAX,
)
from kyverno_mp.policy import yaml_scalar
from kyverno_mp.values.jsonvalue import Json

_MERGE: Final = object()
"""Replaces the key ``<<`` while its mapping is built."""
_LIST: Final = "List"
_PREFIX: Final = "tag:yaml.org,2002:"
_END: Final = re.compile(
    rb"(?m)^\.\.\.(?=\s|\Z)"
)  # our own pattern, linear in the text
_NEXT: Final = re.compile(rb"(?m)^---(?=\s|\Z)")
_PLAIN_TAGS: Final = frozenset(
    f"{_PREFIX}{tag}" for tag in ("int", "float", "bool", "null")
)


class _Mark(Protocol):
    """A position in the text, counted from 0."""

    line: int
    column: int


class _Event(Protocol):
    """The union of libyaml's events; each has the fields that its type uses."""

    anchor: str
    tag: str | None
    value: str
    style: str | None
    implicit: tuple[bool, bool]
    explicit: bool
    start_mark: _Mark
    end_mark: _Mark


_NODE_STEPS: Final = 3
"""To read one value of YAML within a policy (patches)."""


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document of a file. ``index`` counts from 0; ``line`` from 1.

    ``item`` is the index in a List, -1 for a separate document. ``twice`` is a
    duplicate key of a mapping, "" if there is none; its last value counts.
    """

    raw: Json
    file: str
    index: int
    line: int
    item: int = -1
    twice: str = ""


def load(
    text: bytes | str, *, file: str = "", with_lists: bool = False
) -> list[RawDocument]:
    """Parse all documents of a file; skip empty ones.

    ``with_lists``: do not split Lists.

    Raises: PolicyInvalid with code ``policy.syntax`` (line and column in ``where``),
    ``policy.too_large``, ``policy.too_deep`` or ``policy.alias_bomb``.
    """
    size = len(text)
    if size > POLICY_FILE_BYTES_MAX:
        message = f"file has {size} bytes, more than {POLICY_FILE_BYTES_MAX}"
        raise PolicyInvalid("policy.too_large", message, Where(file=file))
    documents = _load_json(text, file)
    if documents is None:
        documents = _DocumentBuilder(without_strays(text), file).documents()
    if with_lists:
        return documents
    return [entry for document in documents for entry in _take_apart(document)]


def without_strays(text: bytes | str) -> bytes | str:
    """Blank out the text between a line ``...`` and the next ``---``.

    KYVERNO: a file is split at its ``---`` lines, and only the first document of each
    part is read; text after ``...`` is ignored. Line numbers do not change.
    """
    data = text.encode() if isinstance(text, str) else text
    if _END.search(data) is None:
        return text
    parts, at = [], 0
    while (end := _END.search(data, at)) is not None:
        found = _NEXT.search(data, end.start())
        after = found.start() if found is not None else len(data)
        before = [one.end() for one in _NEXT.finditer(data, at, end.start())]
        if _has_content(data[before[-1] if before else at : end.start()]):
            parts.append(data[at : end.start()])
            parts.append(b"\n" * data.count(b"\n", end.start(), after))
        else:
            # There is nothing before it: no document ends here, so YAML reports it.
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
        replace(document, raw=item, item=position)
        for position, item in items
        if item is not None
    ]


def items_of(raw: Json) -> Iterator[tuple[int, Json]] | None:
    """Return the objects of a List or another kind of list; None when it is no list.

    Each comes with its index in the outer list; nested lists are split, too.
    Items of ``PodList`` and the like may omit apiVersion and kind.
    K8S: a list has no name, so a named object is of a kind whose name ends in List.
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
        whole = {**head, **item} if head and type(item) is dict else item
        inner = items_of(whole)
        if inner is None:
            yield position, whole
        else:
            yield from ((position, one) for _, one in inner)


def _load_json(text: bytes | str, file: str) -> list[RawDocument] | None:
    """Parse a file that is one JSON object; None: it must be parsed as YAML."""
    start = text[:64].lstrip()
    if start[:1] not in (b"{", "{"):
        return None
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return [RawDocument(_whole_numbers(raw, file), file, 0, 1)]


def _whole_numbers(root: dict[str, Json], file: str) -> dict[str, Json]:
    """Convert whole floats to ints, in place; deeper documents are refused."""
    level: list[Json] = [root]
    for _ in range(JSON_DEPTH_MAX):
        below: list[Json] = []
        for holder in level:
            places = holder.items() if type(holder) is dict else enumerate(holder)
            for place, value in places:
                if type(value) is dict or type(value) is list:
                    below.append(value)
                elif type(value) is float:
                    holder[place] = yaml_scalar.whole(value)
                elif type(value) is int:
                    holder[place] = yaml_scalar.in_range(value)
        if not below:
            return root
        level = below
    raise _too_deep(Where(file=file, line=1))


def _too_deep(where: Where) -> PolicyInvalid:
    message = f"nested deeper than {JSON_DEPTH_MAX} levels"
    return PolicyInvalid("policy.too_deep", message, where)


class _Open:
    """A mapping or sequence whose end has not been read yet."""

    __slots__ = ("anchor", "before", "key", "value", "wants_key")

    def __init__(self, value: Json, anchor: str | None, before: int) -> None:
        self.value = value
        self.anchor = anchor
        self.before = before
        self.key: Json = None
        self.wants_key = type(value) is dict


class _DocumentBuilder:
    """Builds values from libyaml's events, without recursion.

    PERF: compile 1,000 policies: events cost a third of yaml.load with the
    C loader, which resolves each scalar by a list of patterns.
    ``nodes`` counts the nodes of the documents with every alias expanded, so that a few
    aliases cannot expand to billions of nodes.
    """

    def __init__(self, text: bytes | str, file: str) -> None:
        self.text = text
        self.file = file
        self.nodes = 0
        self.anchors: dict[str, tuple[Json, int]] = {}
        self.open: list[_Open] = []
        self.root: Json = None
        self.twice = ""

    def documents(self) -> list[RawDocument]:
        try:
            return self._documents()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = error.problem or error.context or "not YAML"
            raise self._syntax(f"{message}", mark) from error
        except yaml.reader.ReaderError as error:
            reason = f"unacceptable character #x{error.character:02x}: {error.reason}"
            where = self._after(error.position)
            raise PolicyInvalid("policy.syntax", reason, where) from error
        except (yaml.YAMLError, UnicodeError, ValueError) as error:
            raise self._syntax(str(error), None) from error

    def _documents(self) -> list[RawDocument]:
        next_event: Callable[[], Json] = CParser(self.text).get_event
        found: list[RawDocument] = []
        index, line = 0, 1
        while True:
            event: _Event = next_event()
            kind: object = type(event)
            if kind is yaml.ScalarEvent:
                self._add(self._scalar(event), event.anchor, self.nodes, event)
            elif kind is yaml.MappingStartEvent:
                self._start({}, event)
            elif kind is yaml.SequenceStartEvent:
                self._start([], event)
            elif kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
                done = self.open.pop()
                self._add(done.value, done.anchor, done.before, event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self.root, self.anchors, self.twice = None, {}, ""
                line = event.end_mark.line + 1 + (1 if event.explicit else 0)
            elif kind is yaml.DocumentEndEvent:
                if self.root is not None:
                    found.append(
                        RawDocument(self.root, self.file, index, line, twice=self.twice)
                    )
                index += 1
            elif kind is yaml.StreamEndEvent:
                return found

    def _start(self, value: Json, event: _Event) -> None:
        if len(self.open) >= JSON_DEPTH_MAX:
            raise _too_deep(self._where(event.start_mark))
        self.open.append(_Open(value, event.anchor, self.nodes))
        self.anchors.pop(event.anchor, None)

    def _alias(self, event: _Event) -> None:
        known = self.anchors.get(event.anchor)
        if known is None:
            text = f"unknown anchor '{event.anchor}' referenced"
            if any(one.anchor == event.anchor for one in self.open):
                text = f"anchor '{event.anchor}' value contains itself"
            raise self._syntax(text, event.start_mark)
        value, size = known
        before = self.nodes
        self.nodes += size
        self._add(value, None, before, event)

    def _scalar(self, event: _Event) -> Json:
        text: str = event.value
        tag = event.tag
        if event.implicit[0] and not event.style:
            if text == "<<" and self.open and self.open[-1].wants_key:
                return _MERGE
            return yaml_scalar.resolve(text)
        if tag in _PLAIN_TAGS:
            return yaml_scalar.resolve(text)
        return text

    def _add(self, value: Json, anchor: str | None, before: int, event: _Event) -> None:
        """Put a finished value into its parent."""
        self.nodes += 1
        spend(_NODE_STEPS)
        if self.nodes > POLICY_FILE_NODES_MAX:
            message = f"aliases expand to more than {POLICY_FILE_NODES_MAX} nodes"
            where = self._where(event.start_mark)
            raise PolicyInvalid("policy.alias_bomb", message, where)
        if anchor is not None:
            self.anchors[anchor] = (value, self.nodes - before)
        if not self.open:
            self.root = value
            return
        parent = self.open[-1]
        if type(parent.value) is list:
            parent.value.append(self._number(value, event))
        elif parent.wants_key:
            parent.key = self._key(value, event)
            parent.wants_key = False
        else:
            parent.wants_key = True
            if parent.key is _MERGE:
                self._merge(parent, value, event)
            else:
                if parent.key in parent.value:
                    self.twice = parent.key
                parent.value[parent.key] = self._number(value, event)

    def _key(self, key: Json, event: _Event) -> Json:
        if key is _MERGE:
            return key
        text = yaml_scalar.key_text(key)
        if text is None:
            reason = f"unsupported map key of type {type(key).__name__}"
            raise self._syntax(reason, event.start_mark)
        return text

    def _merge(self, parent: _Open, value: Json, event: _Event) -> None:
        sources = value if type(value) is list else [value]
        for source in sources:
            if type(source) is not dict:
                text = "map merge requires map or sequence of maps as the value"
                raise self._syntax(text, event.start_mark)
            for key, one in source.items():
                if key in parent.value:
                    self.twice = key
                parent.value.setdefault(key, one)

    def _number(self, value: Json, event: _Event) -> Json:
        if type(value) is float and value - value != 0:
            text = f"unsupported value: {value}"
            raise self._syntax(text, event.start_mark)
        return value

    def _where(self, mark: _Mark | None) -> Where:
        if mark is None:
            return Where(file=self.file)
        return Where(file=self.file, line=mark.line + 1, column=mark.column + 1)

    def _after(self, offset: int) -> Where:
        """Return the position of a byte; libyaml has no mark for unread input."""
        text = self.text if isinstance(self.text, bytes) else self.text.encode()
        line_start = text.rfind(b"\n", 0, offset) + 1
        line = text.count(b"\n", 0, offset) + 1
        return Where(file=self.file, line=line, column=offset - line_start + 1)

    def _syntax(self, message: str, mark: _Mark | None) -> PolicyInvalid:
        return PolicyInvalid("policy.syntax", message, self._where(mark))
