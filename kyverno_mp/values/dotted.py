"""Set values in a JSON tree by dotted names, for ``--set`` and values files.

Room: values. Takes: ``a."b.c".d`` and a value. Gives: keys, nested maps, deep merges.
May touch: nothing outside its arguments; ``merged`` copies the maps that it changes.
Source: docs/behaviour/cli 6 (keys are split CSV-style on dots);
docs/behaviour/engine 3.4 (merging).
"""

from kyverno_mp.values.jsonvalue import Json


def split_name(name: str) -> list[str]:
    """Split a dotted name; a segment in double quotes keeps its dots.

    Shape: ``a."b.c".d`` -> ["a", "b.c", "d"]; ``""`` inside quotes is one quote.
    """
    keys: list[str] = []
    rest = name
    while True:
        if rest.startswith('"'):
            key, rest = _quoted(rest[1:])
        else:
            key, dot, tail = rest.partition(".")
            rest = dot + tail
        keys.append(key)
        if not rest.startswith("."):
            return keys
        rest = rest[1:]


def _quoted(rest: str) -> tuple[str, str]:
    key: list[str] = []
    position = 0
    while position < len(rest):
        if rest.startswith('""', position):
            key.append('"')
            position += 2
        elif rest[position] == '"':
            return "".join(key), rest[position + 1 :]
        else:
            key.append(rest[position])
            position += 1
    return "".join(key), ""


def nested(name: str, value: Json) -> dict[str, Json]:
    """Return ``{"a": {"b": value}}`` for the name ``a.b``."""
    tree = value
    for key in reversed(split_name(name)):
        tree = {key: tree}
    result: dict[str, Json] = tree
    return result


def merged(base: Json, addition: Json) -> Json:
    """Return a deep merge; lists and scalars of ``addition`` take precedence."""
    if not (isinstance(base, dict) and isinstance(addition, dict)):
        return addition
    out = dict(base)
    for key, value in addition.items():
        out[key] = merged(out[key], value) if key in out else value
    return out
