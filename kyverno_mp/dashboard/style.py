"""Read the style sheet that all pages for people share.

Room: dashboard. Takes: nothing. Gives: CSS. Next: render.py; process/pages.py, whose
process does without templates. May touch: ``templates/style.css``, read once.
"""

from functools import cache
from pathlib import Path
from typing import Final

TEMPLATES: Final = Path(__file__).with_name("templates")


@cache
def style_sheet() -> str:
    """Return the style sheet; the digest in a page's policy is that of this text."""
    return (TEMPLATES / "style.css").read_text("utf-8")
