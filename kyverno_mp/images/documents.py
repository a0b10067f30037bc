"""Decode the JSON and base64 of bundles and log entries.

Room: images. Takes: strings. Gives: plain data, bytes. Next: images/sigstore/rekor.py.
Source: docs/behaviour/images 3.5 (bundles).

Integers stay integers here, because a log signs them; values/go/gojson returns floats.
"""

import base64

import msgspec

from kyverno_mp.values.jsonvalue import Json


def json_value(data: str | bytes) -> Json:
    """Return the value. Raises: ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def base64_bytes(encoded: Json) -> bytes | None:
    """Decode standard base64; return None for any other value."""
    if type(encoded) is not str:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
