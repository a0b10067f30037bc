"""``merge``: put the shards of a run together, and print what one run prints.

Room: cli. Takes: the files that ``apply --shard`` wrote. Gives: the output and the exit
code of ``apply``. Next: cli/apply/finish.
May touch: files named by the user, standard output. Source: docs/fleets.md.
"""

import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import click
import msgspec

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.finish import finish
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.shard import (
    FORMAT,
    LINE,
    OUTPUT,
    End,
    Head,
    Row,
    responses_of,
)
from kyverno_mp.cli.output.warned import refuse_warnings
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.exit_codes import INPUT
from kyverno_mp.cli.sources.reading import opened
from kyverno_mp.errors import RequestInvalid, Where
from kyverno_mp.limits import POLICY_FILE_BYTES_MAX

_NAMED_MAX: Final = 20


class Shard(msgspec.Struct):
    """The records of one shard; without ``end``, it is not complete."""

    name: str
    head: Head
    rows: list[Row]
    end: End | None = None


def called(files: Sequence[str]) -> int:
    """Run the command with the files that click parsed. Raises: InputError."""
    shards = []
    for name in files:
        with opened(name, is_argument=True) as file:
            # A longer line counts as cut.
            lines = iter(partial(file.readline, 2 * POLICY_FILE_BYTES_MAX), b"")
            shards.append(read_shard(lines, name))
    return merge([shard for shard in shards if shard is not None])


def read_shard(lines: Iterable[bytes], name: str) -> Shard | None:
    """Return the records, None for a shard that ended before its first record.

    A process that was killed leaves a file whose last line is cut or missing.
    """
    shard = None
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = LINE.decode(line)
        except msgspec.DecodeError as error:
            message = "is not a record of `apply --shard`"
            raise _invalid("merge.record", message, name, number) from error
        if isinstance(record, Head):
            is_part = 1 <= record.shard <= record.of
            if shard is not None or record.format != FORMAT or not is_part:
                message = "has a shard of another version, a second one or none"
                raise _invalid("merge.record", message, name, number)
            shard = Shard(name, record, [])
        elif shard is None or shard.end is not None:
            raise _invalid("merge.record", "belongs to no shard", name, number)
        elif isinstance(record, Row):
            shard.rows.append(record)
        elif record.rows == len(shard.rows):
            shard.end = record
        else:
            raise _invalid("merge.record", "counts other rows", name, number)
    return shard


def merge(shards: Sequence[Shard]) -> int:
    """Print what one run prints, and return its exit code. Raises: InputError."""
    complete = _complete(shards)
    heads = [shard.head for shard in complete]
    ends = [shard.end for shard in complete if shard.end is not None]
    options = _options(heads[0])
    counts = Counts()
    for end in ends:
        counts.include(end.counts)
    rows = [row for shard in complete for row in shard.rows]
    rows.sort(key=lambda row: (row.object, row.response))
    click.echo(ends[0].heading, nl=False)
    code = finish([*responses_of(rows)], counts, ends[0].rest, options)
    if not code:
        number = max(end.warnings for end in ends)
        refuse_warnings(number, as_errors=options.warnings_as_errors)
    return code


def _complete(shards: Sequence[Shard]) -> list[Shard]:
    """Return all shards of one run, in their order. Raises: InputError."""
    if not shards:
        raise RequestInvalid("merge.lost", "no file has a record")
    first = shards[0].head
    by_number: dict[int, Shard] = {}
    for shard in shards:
        head = shard.head
        if (head.run, head.of, head.output) != (first.run, first.of, first.output):
            other = "policies, values or flags"
            if head.of != first.of:
                other = "number of shards"
            message = f"belongs to another run than {shards[0].name}: other {other}"
            raise _invalid("merge.other_run", message, shard.name)
        if shard.end is not None:
            # A scheduler may have run a shard twice.
            by_number.setdefault(head.shard, shard)
    number_lost = first.of - len(by_number)
    if number_lost:
        every = range(1, first.of + 1)
        lost = islice((one for one in every if one not in by_number), _NAMED_MAX)
        # Without a code, so that the last line can be copied.
        raise CommandFailed(_message_of([*lost], number_lost, first), INPUT)
    complete = [by_number[number] for number in sorted(by_number)]
    read = {
        (shard.end.total, shard.end.fingerprint): shard.name
        for shard in complete
        if shard.end is not None
    }
    if len(read) > 1:
        names = " and ".join([*read.values()][:2])
        message = f"the objects changed between the shards: {names} read other ones"
        raise RequestInvalid("merge.other_objects", message)
    return complete


def _message_of(lost: Sequence[int], number_lost: int, head: Head) -> str:
    """Return which shards are lost, and the commands that run the first ones."""
    program = click.get_current_context().find_root().info_name
    lines = [
        f"  {program} apply --shard {number}/{head.of} {shlex.join(head.arguments)}"
        for number in lost
    ]
    if number_lost > len(lost):
        lines.append(f"  and {number_lost - len(lost)} more")
    numbers = ", ".join(map(str, lost))
    noun = "shard" if number_lost == 1 else "shards"
    return "\n".join(
        (f"{noun} {numbers} of {head.of} lost or incomplete; run again:", *lines)
    )


def _options(head: Head) -> Options:
    """Return the flags that decide what is printed; no others come from a file."""
    shown = {name: value for name, value in head.output.items() if name in OUTPUT}
    return msgspec.convert({"policies": (), **shown}, Options)


def _invalid(code: str, message: str, name: str, line: int = 0) -> RequestInvalid:
    return RequestInvalid(code, f"the file {message}", Where(file=name, line=line))
