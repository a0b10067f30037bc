"""Find keys that stand twice in a policy file of JSON.

Room: policy. Takes: documents and the text that they were read from. Gives: the
documents, which say what stands twice. Next: cli/sources/policies.
May touch: nothing outside its arguments. Source: docs/behaviour/cli 4.

PERF: apart from ``load``, whose YAML reader sees such keys by itself: files of objects
are large, and nobody asks there.
"""

import json
from contextlib import suppress
from dataclasses import replace

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.policy.load import RawDocument
from kyverno_mp.values.jsonvalue import Json


def with_twice(documents: list[RawDocument], text: bytes) -> list[RawDocument]:
    """Return the documents of one text, with the first key that stands twice."""
    if not documents or documents[0].twice or text[:64].lstrip()[:1] != b"{":
        return documents
    found: list[str] = []

    def look(pairs: list[tuple[str, Json]]) -> None:
        if len(set(keys := [key for key, _ in pairs])) != len(keys):
            found.append(next(key for key in keys if keys.count(key) > 1))

    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=look)
    return [replace(one, twice=found[0]) for one in documents] if found else documents


def refuse_twice(document: RawDocument) -> None:
    """Raise PolicyInvalid for a key that stands twice in one mapping."""
    if document.twice:
        text = f'key "{document.twice}" already set in map'
        where = Where(file=document.file, line=document.line)
        raise PolicyInvalid("policy.key_twice", text, where)
