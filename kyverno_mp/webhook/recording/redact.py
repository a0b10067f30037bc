"""Remove the values of Secrets, tokens and configured fields from a review.

Room: webhook. Takes: the settings KYVERNO_MP_RECORD_REDACT and KYVERNO_MP_RECORD_PLAIN,
reviews and patches. Gives: copies without these values, and pointers to the removed
values. Next: recorder.py.
Source: docs/replay.md (what is not stored).

SAFETY: values are replaced before a review is serialized; field names stay. Tokens and
passwords are often in environment variables, arguments and annotations, of Pods as well
as of any custom resource. They are therefore recognized by the names of their fields.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kyverno_mp.values.field_paths import EACH, FieldPath, Tokens, field_paths
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

REDACTED: Final = "***"
"""The replacement for a value; it is not base64, so no Secret can have this value."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_ANNOTATIONS: Final[Tokens] = ("metadata", "annotations")
COPIES: Final = (
    LAST_APPLIED,
    "kapp.k14s.io/original",
    "kapp.k14s.io/original-diff",
    "objectset.rio.cattle.io/applied",
    "banzaicloud.com/last-applied",
)
"""Annotations in which tools store the whole object, and so every redacted field."""
_COPIES: Final[tuple[Tokens, ...]] = tuple((*_ANNOTATIONS, copy) for copy in COPIES)
_ALWAYS: Final = (
    FieldPath("Secret", ("data",)),
    FieldPath("Secret", ("stringData",)),
    # Arguments of commands often contain passwords.
    FieldPath("PodExecOptions", ("command",)),
    FieldPath("TokenRequest", ("status", "token")),
    FieldPath("TokenReview", ("spec", "token")),
)
_KNOWN_EXTRA: Final = "authentication.kubernetes.io/"
"""Keys of the user's ``extra`` that name pods, nodes and credentials, not secrets."""
_OBJECTS: Final = ("object", "oldObject")
ENV: Final = "env"
ARGS: Final = "args"
ANNOTATIONS: Final = "annotations"
HIDDEN: Final = (ENV, ARGS, ANNOTATIONS)
"""What is redacted in objects of all kinds unless the operator keeps it plain."""
_ARGUMENTS: Final = frozenset({"args", "command"})
_KNOWN_ANNOTATIONS: Final = ("kubernetes.io", "k8s.io", "kyverno.io")
"""Domains whose annotations configure the cluster and contain no secrets."""


class Redaction:
    """The fields that are never stored."""

    def __init__(self, text: str = "", plain: str = "") -> None:
        """Compile further fields (values/field_paths.py) in addition to _ALWAYS.

        ``plain``: the parts of HIDDEN to keep, comma-separated.
        """
        self._fields = [*_ALWAYS, *field_paths(text)]
        self._hidden = frozenset(HIDDEN) - {one.strip() for one in plain.split(",")}

    def tokens_of(self, kinds: Iterable[str]) -> list[Tokens]:
        """Return the paths that are redacted in objects of any of these kinds."""
        names = tuple(kinds)
        found = [
            field.tokens
            for field in self._fields
            if any(matches(field.kind, name) for name in names)
        ]
        return [*found, *_COPIES] if found else []

    def review(
        self, raw: dict[str, Json], kind: str
    ) -> tuple[dict[str, Json], tuple[str, ...]]:
        """Return the AdmissionRequest without the values, and JSON pointers to them.

        ``kind`` is the kind that policies match, e.g. Pod for an exec.
        """
        found = dict(raw)
        missing: list[str] = []
        for name in _OBJECTS:
            resource = raw.get(name)
            if type(resource) is dict:
                places = self.tokens_of((kind, _kind_of(resource)))
                for tokens in places:
                    before = found[name]
                    found[name] = without(before, tokens)
                    if found[name] is not before:
                        missing.append(pointer((name, *tokens)))
                hidden: dict[Tokens, None] = {}
                found[name] = self._hide(found[name], (), hidden)
                missing += [pointer((name, *tokens)) for tokens in hidden]
        user = raw.get("userInfo")
        if type(user) is dict and type(user.get("extra")) is dict:
            extra = user["extra"]
            secret = [one for one in extra if not one.startswith(_KNOWN_EXTRA)]
            if secret:
                kept = {
                    key: value if key not in secret else without(value, ())
                    for key, value in extra.items()
                }
                found["userInfo"] = {**user, "extra": kept}
                missing += [pointer(("userInfo", "extra", key)) for key in secret]
        return found, tuple(missing)

    def patch(
        self,
        operations: Sequence[dict[str, Json]],
        kinds: Iterable[str],
        *,
        is_whole: bool = False,
    ) -> list[dict[str, Json]]:
        """Return the JSON patch without values at, below or above redacted fields.

        ``is_whole``: redact all values.
        """
        places = [()] if is_whole else self.tokens_of(kinds)
        return [self._plain(_operation(operation, places)) for operation in operations]

    def _plain(self, raw: dict[str, Json]) -> dict[str, Json]:
        """Return an operation of a patch without hidden values."""
        if "value" not in raw:
            return raw
        at = tokens_of_pointer(str(raw.get("path", "")))
        tokens = tuple(EACH if one.isdigit() or one == "-" else one for one in at)
        return {**raw, "value": self._hide(raw["value"], tokens, {})}

    def _hide(self, value: Json, at: Tokens, missing: dict[Tokens, None]) -> Json:
        """Return a copy without hidden values; the same value if it has none.

        ``at``: the path of the value. The paths of hidden values are added to
        ``missing``.
        """
        if type(value) is dict:
            changed = {
                name: new
                for name, old in value.items()
                if (new := self._hide(old, (*at, name), missing)) is not old
            }
            return {**value, **changed} if changed else value
        if type(value) is list:
            items = [self._hide(one, (*at, EACH), missing) for one in value]
            is_new = any(new is not old for new, old in zip(items, value, strict=True))
            return items if is_new else value
        if value is None or value == REDACTED or not self._hides(at):
            return value
        missing[at] = None
        return REDACTED

    def _hides(self, at: Tokens) -> bool:
        """Return whether a scalar at this path is not stored."""
        grandparent, parent, name = ("", "", "", *at)[-3:]
        if ENV in self._hidden and (
            (grandparent == ENV and name == "value") or parent == ENV
        ):
            return True
        if ARGS in self._hidden and not _ARGUMENTS.isdisjoint((parent, name)):
            return True
        if (grandparent, parent) != _ANNOTATIONS or not self._hidden:
            return False
        # A copy of the object contains everything that is hidden in the object.
        return name in COPIES or (ANNOTATIONS in self._hidden and not _is_known(name))


def _is_known(annotation: str) -> bool:
    domain, slash, _ = annotation.rpartition("/")
    if not slash:
        return False
    return any(
        domain == one or domain.endswith(f".{one}") for one in _KNOWN_ANNOTATIONS
    )


def _kind_of(resource: dict[str, Json]) -> str:
    kind = resource.get("kind")
    return kind if type(kind) is str else ""


def without(value: Json, tokens: Tokens) -> Json:
    """Return a copy without the scalars below a path; the same value if it has none.

    Containers stay, so that field names and lengths of lists are visible.
    """
    if type(value) is dict:
        if not tokens or tokens[0] == EACH:
            names: Iterable[str] = value
        else:
            names = (tokens[0],) if tokens[0] in value else ()
        changed = {
            name: new
            for name in names
            if (new := without(value[name], tokens[1:])) is not value[name]
        }
        return {**value, **changed} if changed else value
    if type(value) is list:
        if tokens and tokens[0] != EACH:
            return value
        items = [without(one, tokens[1:]) for one in value]
        is_new = any(new is not old for new, old in zip(items, value, strict=True))
        return items if is_new else value
    return REDACTED if not tokens and value is not None else value


def pointer(tokens: Iterable[str]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join(
        f"/{token.replace('~', '~0').replace('/', '~1')}" for token in tokens
    )


def tokens_of_pointer(text: str) -> Tokens:
    """Return the parts of a JSON pointer."""
    parts = text.split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def _operation(raw: dict[str, Json], places: Sequence[Tokens]) -> dict[str, Json]:
    if "value" not in raw:
        return raw
    at = tokens_of_pointer(str(raw.get("path", "")))
    value = raw["value"]
    for tokens in places:
        shared = zip(at, tokens, strict=False)
        if all(EACH in (one, other) or one == other for one, other in shared):
            value = without(value, tokens[len(at) :])
    return {**raw, "value": value}
