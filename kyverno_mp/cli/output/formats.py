"""Define the output formats that commands accept.

Room: cli. Gives: names of formats, for flags and for the code that writes them.
Next: github.py, tap.py.
Source: docs/behaviour/cli 2, 15.
"""

from typing import Final

STRUCTURED: Final = ("sarif", "junit", "markdown", "github", "tap")
"""Formats of ``apply`` that replace its text."""
OF_APPLY: Final = ("yaml", "json", *STRUCTURED)
OF_TEST: Final = ("json", "yaml", "markdown", "junit", "sarif", "github", "tap")
OF_LINT: Final = ("text", "json", "sarif", "github")
OF_REPORT: Final = ("table", "json", "sarif", "junit", "markdown", "html")
