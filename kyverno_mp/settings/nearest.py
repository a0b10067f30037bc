"""Find the setting or flag that the user most likely meant.

Room: settings. Takes: an unknown name, the known ones. Gives: one of the known names.
Next: settings/read.py, cli/serve.py.
Source: docs/settings.md.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Final

_CLOSE: Final = 0.9
"""A name with this share of equal letters counts as a misspelling."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the known name with the most words in common, then the most letters.

    ``KYVERNO_MP_PORT`` means ``KYVERNO_MP_HEALTH_PORT``, although other names share
    more letters with it. Cost: one comparison of strings for each known name.
    """
    words = _words(name)

    def score(candidate: str) -> tuple[int, int, float]:
        candidate_words = _words(candidate)
        ratio = difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        return (ratio >= _CLOSE, len(words & candidate_words), ratio)

    return max(names, key=score)


def _words(name: str) -> set[str]:
    """Return the words of a name in singular: ``--policy`` means ``--policies``."""
    words = (word.lower() for word in _WORDS.findall(name))
    return {re.sub("ies$", "y", word).removesuffix("s") for word in words}
