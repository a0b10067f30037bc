"""Accept the logging flags that pipelines pass to upstream's program.

Room: cli. Takes: argv. Gives: argv without those flags. Next: main.
Source: docs/behaviour/cli 1.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.cli.shell.errors import CommandFailed

_LEVEL: Final = frozenset({"-v", "--v"})
_WITH_VALUE: Final = frozenset(
    {
        "--vmodule",
        "--stderrthreshold",
        "--log_dir",
        "--log_file",
        "--log_file_max_size",
        "--log_backtrace_at",
    }
)
_SWITCHES: Final = frozenset(
    {
        "--logtostderr",
        "--alsologtostderr",
        "--add_dir_header",
        "--skip_headers",
        "--skip_log_headers",
        "--one_output",
    }
)


def without_log_flags(
    arguments: Sequence[str], *, keep_level: bool = False
) -> list[str]:
    """Remove klog's flags; arguments after ``--`` are kept. Raises CommandFailed.

    ``keep_level``: the command itself reads ``-v``. This version has no log levels: it
    always reports errors on standard error.
    """
    remaining: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*remaining, argument, *rest]
        name, equals, value = argument.partition("=")
        if name in _LEVEL and not keep_level:
            # KYVERNO: as the last argument, the flag means level 2 (docs/behaviour/cli
            # 1).
            _check_level(value if equals else next(rest, "2"))
        elif name in _WITH_VALUE:
            if not equals:
                next(rest, "")
        elif name not in _SWITCHES:
            remaining.append(argument)
    return remaining


def _check_level(level: str) -> None:
    try:
        int(level)
    except ValueError as error:
        raise CommandFailed(
            f'Failed to setup logging (strconv.Atoi: parsing "{level}": invalid syntax)'
        ) from error
