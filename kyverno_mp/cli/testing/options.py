"""The flags of ``test``.

Room: cli. Takes: the arguments that click parsed. Gives: Options. Next:
cli/testing/command.
Source: docs/behaviour/cli 14.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Options:
    """The flags of ``test``."""

    folders: tuple[str, ...]
    file_name: str = "kyverno-test.yaml"
    test_case_selector: str = "policy=*,rule=*,resource=*"
    output_format: str = ""
    registry: bool = False
    image_layout: str = ""
    fail_only: bool = False
    remove_color: bool = False
    detailed_results: bool = False
    require_tests: bool = False
    require_valid: bool = False
    warnings_as_errors: bool = False
    allow_skipped: bool = False
    git_branch: str = ""
    output_file: str = ""
    jobs: int = 0
    watch: bool = False
