"""Accept the underscores that Go's strconv.ParseFloat accepts in numbers.

Room: values. Takes: texts. Gives: without_underscores. Next:
expr/conditions/numbers.py, expr/pattern/leaf.py,
expr/jmespath/functions/numbers.py. May touch: nothing.
Source: GO: strconv readFloat, underscoreOK.
"""

import re
from typing import Final

# An underscore must separate digits; the prefix 0x counts as a digit.
_WRONG: Final = re.compile(r"(?<![0-9])_|_(?![0-9])")
_WRONG_HEX: Final = re.compile(r"(?<![0-9a-fA-FxX])_|_(?![0-9a-fA-F])")
_HEX_START: Final = re.compile(r"[+-]?0[xX]")


def without_underscores(text: str) -> str | None:
    """Return a number's text without its underscores; None if one is misplaced."""
    if "_" not in text:
        return text
    wrong = _WRONG_HEX if _HEX_START.match(text) else _WRONG
    return None if wrong.search(text) else text.replace("_", "")
