"""Find duplicate keys in a JSON policy file.

Room: policy. Takes: documents and the text that they were read from. Gives: the
documents, each with its first duplicate key. Next: cli/sources/policies.
Source: docs/behaviour/cli 4.

PERF: separate from ``load``, because files of objects are large and are not checked.
The YAML reader of ``load`` finds such keys anyway.
"""

import json
from contextlib import suppress
from typing import Final

from msgspec import structs

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.policy.reading.load import RawDocument
from kyverno_mp.values.jsonvalue import Json

KEY_TWICE: Final = "policy.key_twice"
_STRICT: Final = (
    "kyverno.io/",
    "policies.kyverno.io/",
    "admissionregistration.k8s.io/",
)


def with_duplicate_keys(
    documents: list[RawDocument], source: bytes
) -> list[RawDocument]:
    """Return the documents of one text, with the first duplicate key."""
    if not documents or documents[0].duplicate_key or source[:64].lstrip()[:1] != b"{":
        return documents
    duplicates: list[str] = []

    def note_duplicate(pairs: list[tuple[str, Json]]) -> None:
        if len(set(keys := [key for key, _ in pairs])) != len(keys):
            duplicates.append(next(key for key in keys if keys.count(key) > 1))

    with suppress(ValueError, RecursionError):
        json.loads(source, object_pairs_hook=note_duplicate)
    return (
        [
            structs.replace(document, duplicate_key=duplicates[0])
            for document in documents
        ]
        if duplicates
        else documents
    )


def refuse_duplicate_key(document: RawDocument) -> None:
    """Raise PolicyInvalid for a duplicate key of a mapping."""
    if document.duplicate_key:
        message = f'key "{document.duplicate_key}" already set in map'
        location = Where(file=document.file, line=document.line)
        raise PolicyInvalid(KEY_TWICE, message, location)


def refuses_duplicate_keys(raw: Json) -> bool:
    """Return whether a document is a policy or an exception, which has strict YAML."""
    api = raw.get("apiVersion") if type(raw) is dict else None
    return type(api) is str and api.startswith(_STRICT)
