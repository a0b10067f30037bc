"""``lint --fix``: mend what lint finds, where it means the same.

Room: cli. Takes: paths. Gives: a diff, or changed files. Next: cli/fix/edits.py.
May touch: with ``--write`` the files below the named paths.
Source: docs/cli-pipelines.md (lint).

Each change is proved before it is shown: both texts are read, and have to be the same
policies in the current notation.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from difflib import unified_diff
from pathlib import Path

from kyverno_mp.cli.fix.edits import Edit, edits_of, mended
from kyverno_mp.cli.fix.policy import fix_policy
from kyverno_mp.cli.output.files import write_in_folder
from kyverno_mp.cli.output.screen import say, show
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.shell.exit_codes import FAILED, OK
from kyverno_mp.cli.sources.folders import YAML, files_below
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.decode import POLICIES
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

_ACTION = "validationFailureAction"


def mend(paths: Sequence[str], *, write: bool) -> int:
    """Print a diff of what can be mended, or write it. Raises: CommandFailed."""
    count = 0
    for file in _files(paths):
        source, edits = _read(file)
        if not edits:
            continue
        count += 1
        after = mended(source, edits)
        reasons = dict.fromkeys(edit.what for edit in edits)
        say(f"{file}: {'; '.join(reasons)}", err=True)
        if write:
            _write(file, after)
            continue
        old, new = source.splitlines(keepends=True), after.splitlines(keepends=True)
        show("".join(unified_diff(old, new, f"a/{file}", f"b/{file}")))
    return FAILED if count and not write else OK


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in paths:
        root = Path(path)
        try:
            if root.is_dir():
                yield from sorted(files_below(root))
            elif root.suffix in YAML:
                yield root
            else:
                raise CommandFailed(f"{path}: --fix needs YAML files or folders")
        except OSError as error:
            raise CommandFailed(read_error(error, error.filename or path)) from error


def _read(file: Path) -> tuple[str, list[Edit]]:
    """Return a file's text, and edits that are proved."""
    try:
        source = read_file(file).decode()
        before = [document.raw for document in load(source, file=str(file))]
        edits = edits_of(source)
        after = [
            document.raw for document in load(mended(source, edits), file=str(file))
        ]
    except UnicodeDecodeError:
        return "", []
    except (InputError, OSError) as error:
        say(f"skipped: {file}: {error}", err=True)
        return "", []
    if list(map(current, before)) != list(map(current, after)):
        say(f"skipped: {file}: the changes cannot be proved", err=True)
        return "", []
    return source, edits


def current(raw: Json) -> Json:
    """Return a document in the current notation; equal documents mean the same."""
    if type(raw) is not dict or raw.get("kind") not in POLICIES:
        return raw
    updated = deepcopy(raw)
    fix_policy(updated)
    spec = updated.get("spec")
    rules = spec.get("rules") if type(spec) is dict else None
    if type(spec) is not dict or type(rules) is not list or not rules:
        return updated
    blocks = [
        block
        for rule in rules
        if type(rule) is dict
        for block in (rule.get("validate"), *(rule.get("verifyImages") or ()))
        if type(block) is dict
    ]
    overrides = spec.get(f"{_ACTION}Overrides")
    has_own = any(
        "failureAction" in block or "failureActionOverrides" in block
        for block in blocks
    )
    if blocks and _ACTION in spec and not has_own and not overrides:
        action = str(spec.pop(_ACTION)).capitalize()
        for block in blocks:
            block["failureAction"] = action
    return updated


def _write(file: Path, source: str) -> None:
    try:
        write_in_folder(file, source)
    except OSError as error:
        raise CommandFailed(read_error(error, str(file))) from error
