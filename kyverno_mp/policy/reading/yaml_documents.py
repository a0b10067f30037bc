"""Parse YAML text into the values of its documents, with libyaml's events.

Room: policy. Takes: the text of a file. Gives: YamlDocument records. Next: load.py,
compiler/cel_kinds/template.py.
Source: docs/behaviour/cli 4; sigs.k8s.io/yaml (YAML 1.1 to JSON, duplicate keys: last
one wins).
"""

import base64
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import yaml
from yaml.cyaml import CParser  # type: ignore[attr-defined]  # stubs lag behind

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import JSON_DEPTH_MAX, POLICY_FILE_NODES_MAX
from kyverno_mp.policy.problems import too_deep
from kyverno_mp.policy.reading import yaml_scalar
from kyverno_mp.values.go.gotext import replaced_bytes
from kyverno_mp.values.jsonvalue import Json

_MERGE_KEY: Final = "<<"
_MERGE: Final = object()
"""Placeholder for the key ``<<`` while its mapping is built."""
_PREFIX: Final = "tag:yaml.org,2002:"
_BINARY: Final = f"{_PREFIX}binary"
_PLAIN_TAGS: Final = frozenset(
    f"{_PREFIX}{tag}" for tag in ("int", "float", "bool", "null")
)
_NODE_STEPS: Final = 3
"""Steps charged for each YAML node inside a policy (patches)."""
PLACEHOLDER: Final = "(("
"""The beginning of a placeholder in a template."""
_YAML_1_2_BOOLS: Final = ("true", "false")


class YamlDocument(NamedTuple):
    """One document: index from 0, line from 1, a duplicate key or ""."""

    raw: Json
    number: int
    line: int
    duplicate_key: str


def parse_yaml(source: bytes | str, file: str) -> list[YamlDocument]:
    """Parse all documents; skip empty ones. Raises: PolicyInvalid, as ``load``."""
    return _DocumentBuilder(source, file).documents()


class _Mark(Protocol):
    """A position in the text, counted from 0."""

    line: int
    column: int


class _Event(Protocol):
    """The union of libyaml's events; each event has only its type's fields."""

    anchor: str
    tag: str | None
    value: str
    style: str | None
    implicit: tuple[bool, bool]
    explicit: bool
    start_mark: _Mark
    end_mark: _Mark


class _Open:
    """A mapping or sequence whose end has not been read yet."""

    __slots__ = ("anchor", "before", "key", "merged", "value", "wants_key")

    def __init__(self, value: Json, anchor: str | None, before: int) -> None:
        self.value = value
        self.anchor = anchor
        self.before = before
        self.key: Json = None
        self.wants_key = type(value) is dict
        self.merged: set[Json] | None = None
        """Keys that were merged and can still be set in a template; None = no ``<<``
        so far."""


class _DocumentBuilder:
    """A builder of values from libyaml's events, without recursion.

    PERF: compile 1,000 policies: events take a third of the time of yaml.load with the
    C loader, which resolves each scalar with a list of patterns. SAFETY: ``nodes``
    counts nodes with every alias expanded, so that a few aliases cannot expand to
    billions of nodes.
    """

    def __init__(self, source: bytes | str, file: str) -> None:
        self.text = source
        self.file = file
        self.nodes = 0
        self.anchors: dict[str, tuple[Json, int]] = {}
        self.open: list[_Open] = []
        self.root: Json = None
        self.duplicate_key = ""

    def documents(self) -> list[YamlDocument]:
        try:
            return self._documents()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = error.problem or error.context or "not YAML"
            raise self._syntax(f"{message}", mark) from error
        except yaml.reader.ReaderError as error:
            reason = f"unacceptable character #x{error.character:02x}: {error.reason}"
            if error.character < 0:  # the bytes end within a character
                reason = error.reason
            location = self._after(error.position)
            raise PolicyInvalid("policy.syntax", reason, location) from error
        except (yaml.YAMLError, UnicodeError, ValueError) as error:
            raise self._syntax(str(error), None) from error

    def _documents(self) -> list[YamlDocument]:
        next_event: Callable[[], Json] = CParser(self.text).get_event
        documents: list[YamlDocument] = []
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
                self.root, self.anchors, self.duplicate_key = None, {}, ""
                line = event.end_mark.line + 1 + (1 if event.explicit else 0)
            elif kind is yaml.DocumentEndEvent:
                if self.root is not None:
                    documents.append(
                        YamlDocument(self.root, index, line, self.duplicate_key)
                    )
                index += 1
            elif kind is yaml.StreamEndEvent:
                return documents

    def _start(self, value: Json, event: _Event) -> None:
        if len(self.open) >= JSON_DEPTH_MAX:
            raise too_deep(self._where(event.start_mark))
        self.open.append(_Open(value, event.anchor, self.nodes))
        self.anchors.pop(event.anchor, None)

    def _alias(self, event: _Event) -> None:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            message = f"unknown anchor '{event.anchor}' referenced"
            if any(opened.anchor == event.anchor for opened in self.open):
                message = f"anchor '{event.anchor}' value contains itself"
            raise self._syntax(message, event.start_mark)
        value, size = anchored
        before = self.nodes
        self.nodes += size
        self._add(value, None, before, event)

    def _scalar(self, event: _Event) -> Json:
        scalar: str = event.value
        tag = event.tag
        if event.implicit[0] and not event.style:
            if scalar == _MERGE_KEY and self.open and self.open[-1].wants_key:
                return _MERGE
            return yaml_scalar.resolve(scalar)
        if tag in _PLAIN_TAGS:
            return self._tagged(event, tag.removeprefix(_PREFIX))
        return self._binary(event) if tag == _BINARY else scalar

    def _tagged(self, event: _Event, tag: str) -> Json:
        """Resolve a scalar that must have its tag's type; a float can be an int."""
        scalar: str = event.value
        kind = yaml_scalar.kind_of(scalar)
        if kind != tag and (kind, tag) != ("int", "float"):
            message = f"cannot decode !!{kind} `{scalar}` as a !!{tag}"
            raise self._syntax(message, event.start_mark)
        return yaml_scalar.resolve(scalar)

    def _binary(self, event: _Event) -> str:
        """Decode Base64; replace bytes that are not UTF-8 like Go's JSON encoder."""
        encoded = event.value.replace("\n", "").replace("\r", "")
        try:
            decoded = base64.b64decode(encoded, validate=True)
        except ValueError:
            message = "!!binary value contains invalid base64 data"
            raise self._syntax(message, event.start_mark) from None
        return replaced_bytes(decoded.decode(errors="surrogateescape"))

    def _add(self, value: Json, anchor: str | None, before: int, event: _Event) -> None:
        """Add a finished value to its parent."""
        self.nodes += 1
        spend(_NODE_STEPS)
        if self.nodes > POLICY_FILE_NODES_MAX:
            message = f"aliases expand to more than {POLICY_FILE_NODES_MAX} nodes"
            location = self._where(event.start_mark)
            raise PolicyInvalid("policy.alias_bomb", message, location)
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
                if parent.merged and parent.key in parent.merged:
                    parent.merged.remove(parent.key)
                elif parent.key in parent.value:
                    self.duplicate_key = parent.key
                parent.value[parent.key] = self._number(value, event)

    def _key(self, key: Json, event: _Event) -> Json:
        if key is _MERGE:
            return key
        name = yaml_scalar.key_text(key)
        if name is None:
            reason = f"unsupported map key of type {type(key).__name__}"
            raise self._syntax(reason, event.start_mark)
        return name

    def _merge(self, parent: _Open, value: Json, event: _Event) -> None:
        sources = value if type(value) is list else [value]
        for source in sources:
            if type(source) is not dict:
                message = "map merge requires map or sequence of maps as the value"
                raise self._syntax(message, event.start_mark)
            for key, merged_value in source.items():
                if key in parent.value:
                    self.duplicate_key = key
                parent.value.setdefault(key, merged_value)

    def _number(self, value: Json, event: _Event) -> Json:
        if type(value) is float and value - value != 0:
            message = f"unsupported value: {value}"
            raise self._syntax(message, event.start_mark)
        return value

    def _where(self, mark: _Mark | None) -> Where:
        if mark is None:
            return Where(file=self.file)
        return Where(file=self.file, line=mark.line + 1, column=mark.column + 1)

    def _after(self, offset: int) -> Where:
        """Return a byte's position, because libyaml has no mark for unread input."""
        source = self.text if isinstance(self.text, bytes) else self.text.encode()
        line_start = source.rfind(b"\n", 0, offset) + 1
        line = source.count(b"\n", 0, offset) + 1
        return Where(file=self.file, line=line, column=offset - line_start + 1)

    def _syntax(self, message: str, mark: _Mark | None) -> PolicyInvalid:
        return PolicyInvalid("policy.syntax", message, self._where(mark))


class PlacedText(str):
    """A text that may have placeholders, with its line in the file, from 1."""

    __slots__ = ("line",)
    line: int


class _TemplateBuilder(_DocumentBuilder):
    """Builds values as go.yaml.in/yaml/v3 does, whose ``yes`` and ``on`` are texts."""

    def _scalar(self, event: _Event) -> Json:
        value = super()._scalar(event)
        if type(value) is bool and event.value.lower() not in _YAML_1_2_BOOLS:
            return event.value
        if type(value) is not str or PLACEHOLDER not in value:
            return value
        placed = PlacedText(value)
        placed.line = event.start_mark.line + 1
        return placed

    def _merge(self, parent: _Open, value: Json, event: _Event) -> None:
        """Merge keys; a merged key is no duplicate, but a second ``<<`` is."""
        if parent.merged is not None:
            self.duplicate_key = _MERGE_KEY
            return
        duplicate, own_keys = self.duplicate_key, set(parent.value)
        super()._merge(parent, value, event)
        self.duplicate_key = duplicate
        parent.merged = set(parent.value) - own_keys

    def _key(self, key: Json, event: _Event) -> Json:
        return key if type(key) is PlacedText else super()._key(key, event)


def parse_template(source: str) -> list[YamlDocument]:
    """Parse the documents of a template; texts with ``((`` are PlacedTexts.

    Raises: PolicyInvalid, as ``load``.
    """
    return _TemplateBuilder(source, "").documents()
