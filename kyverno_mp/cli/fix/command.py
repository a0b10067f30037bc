"""``fix``: rewrite policies and tests to the current schema.

Room: cli. Takes: folders or files. Gives: messages; with ``--save`` changed files.
May touch: files below the named paths. Source: docs/behaviour/cli 18.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kyverno_mp.cli.fix.policy import fix_policy
from kyverno_mp.cli.fix.test_file import fix_head, fix_test
from kyverno_mp.cli.output.files import write_in_folder
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.output.yaml_text import dump_in_blocks
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.shell.exit_codes import FAILED
from kyverno_mp.cli.sources.folders import YAML, files_below, named_below
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.decode import POLICIES
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_GROUP,
    OF_TYPE,
    WITH_RULES,
)

if TYPE_CHECKING:
    from kyverno_mp.cli.fix.to_cel import Rewrite

_DIFFERENCES_SHOWN: Final = 3
_USUAL: Final = OF_TYPE["validate"].name
CEL: Final = "CEL"
"""The choice of `--to` that stands for all kinds in CEL."""


def policy(paths: tuple[str, ...], *, save: bool, to: str | None) -> None:
    """Fix all policies below the paths; ``to``: rewrite them as this kind."""
    if not paths:
        raise CommandFailed("at least one directory is required")
    if to:
        _rewrite_all(paths, to, save=save)
        return
    for file in _yaml_files(paths):
        documents = _documents(file)
        if documents is None:
            continue
        before = deepcopy(documents)
        for raw in documents:
            if _is_policy(raw, POLICIES):
                say(f"Processing file ({file})...")
                _warn(fix_policy(raw))
        if save and documents != before:
            _save(file, documents, f"  Saving file ({file})...")
    say("Done.")


def _rewrite_all(paths: tuple[str, ...], to: str, *, save: bool) -> None:
    """Rewrite all policies that may have a counterpart; exit with 1 if one has none."""
    # Imported late: nothing else in this module needs the engine.
    from kyverno_mp.cli.fix.to_cel import CLEANUP, Rewrite, rewrite

    kinds = {WITH_RULES.name} | (CLEANUP if to == CEL else frozenset())
    read = {file: _documents(file) for file in _yaml_files(paths)}
    # A file that cannot be read may have a policy that is not moved.
    withheld = sum(documents is None for documents in read.values())
    files = {file: documents or [] for file, documents in read.items()}
    exempted, taken = _named_elsewhere(chain.from_iterable(files.values()))
    for file, documents in files.items():
        made: list[Json] = []
        for raw in documents:
            if not _is_policy(raw, kinds):
                made.append(raw)
                continue
            name = _name_of(raw)
            outcome = (
                Rewrite(name, (), exempted[name])
                if name in exempted and raw["kind"] not in CLEANUP
                else rewrite(raw)
            )
            reason = _why_not(outcome, taken, to)
            if reason:
                outcome = outcome._replace(documents=(), reason=reason)
            _report(file, outcome)
            withheld += not outcome.documents
            made += outcome.documents or [raw]
            if not save and outcome.documents:
                click.echo(_yaml(outcome.documents), nl=False)
        if save and made != documents:
            _save(file, made, f"  Saving file ({file})...")
    if withheld:
        raise click.exceptions.Exit(FAILED)


def _why_not(outcome: "Rewrite", taken: set[tuple[str, str]], to: str) -> str:
    """Return why documents are withheld, "" if they are not."""
    for document in outcome.documents:
        kind = str(document["kind"])
        if (kind, outcome.name) in taken:
            return f"a {kind} has the same name"
        if to not in (kind, CEL):
            return f"it becomes a {kind} (--to {CEL})"
    return ""


def _named_elsewhere(
    documents: Iterable[Json],
) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Return the policies that exceptions name, with the reason, and policies in CEL.

    Exceptions do not apply to the new policy, and two policies of one kind and name
    would replace each other.
    """
    exempted: dict[str, str] = {}
    taken: set[tuple[str, str]] = set()
    for raw in documents:
        head = str(raw.get("apiVersion", "")) if type(raw) is dict else ""
        if not head:
            continue
        group, name, spec = head.partition("/")[0], _name_of(raw), raw.get("spec")
        if group == CEL_GROUP:
            taken.add((str(raw.get("kind")), name))
        if (group, raw.get("kind")) == ("kyverno.io", "PolicyException"):
            for exception in (
                spec.get("exceptions") if type(spec) is dict else None
            ) or ():
                if type(exception) is dict:
                    policy = str(exception.get("policyName"))
                    exempted[policy] = f"PolicyException {name} exempts from it"
    return exempted, taken


def _name_of(raw: Json) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get("name", "")) if type(metadata) is dict else ""


def _report(file: Path, rewrite: "Rewrite") -> None:
    """Report on standard error whether a policy was rewritten."""
    place = f"{file}: {rewrite.kind} {rewrite.name}"
    inputs = "requests" if rewrite.kind == WITH_RULES.name else "objects"
    if rewrite.documents:
        kinds = [str(document["kind"]) for document in rewrite.documents]
        others = "" if kinds == [_USUAL] else f" as {' and '.join(kinds)}"
        text = f"rewritten{others}; both decide {rewrite.requests} {inputs} alike"
    elif rewrite.reason:
        text = f"not rewritten: {rewrite.reason}"
    else:
        count = len(rewrite.differences)
        text = f"not rewritten: {count} of {rewrite.requests} {inputs} differ"
    say(f"{place}: {text}", err=True)
    for difference in rewrite.differences[:_DIFFERENCES_SHOWN]:
        before, after = difference.before or "allowed", difference.after or "allowed"
        say(f"  {difference.request}", err=True)
        say(f"    {rewrite.kind}: {before}", err=True)
        say(f"    {difference.kind}: {after}", err=True)


def test(
    paths: tuple[str, ...], file_name: str, *, save: bool, force: bool, compress: bool
) -> None:
    """Fix all tests below the folders."""
    if not paths:
        raise CommandFailed("at least one test directory is required")
    if not file_name:
        raise CommandFailed("file-name must not be set to an empty string")
    for path in paths:
        for file in _found(path, named_below(Path(path), file_name)):
            _fix_test_file(file, save=save, force=force, compress=compress)
    say("Done.")


def _fix_test_file(file: Path, *, save: bool, force: bool, compress: bool) -> None:
    documents = _documents(file)
    fixed: list[Json] = []
    for raw in documents or []:
        say(f"Processing test file ({file})...")
        try:
            document, messages = fix_test(raw, file.name, compress=compress)
        except CommandFailed as error:
            say(f"  ERROR: {error.message}")
            fixed.append(raw)
            continue
        _warn(messages)
        fixed.append(document)
        for name, kind, label in (
            ("userinfo", "UserInfo", "user info"),
            ("variables", "Values", "values"),
        ):
            if raw.get(name):
                other = file.parent / str(raw[name])
                _fix_other(other, kind, label, save=save, force=force)
        click.echo()
    if save and (force or _order_of(fixed) != _order_of(documents or [])):
        _save(file, fixed, f"  Saving test file ({file})...")


def _order_of(documents: Sequence[Json]) -> str:
    """Return a text that also changes if only the order of fields changes."""
    return repr(documents)


def _fix_other(file: Path, kind: str, label: str, *, save: bool, force: bool) -> None:
    say(f"  Processing {label} file ({file.name})...")
    documents = _documents(file)
    if not documents or not isinstance(documents[0], dict):
        say(f"    ERROR: failed to load {label}")
        return
    fixed, messages = fix_head(documents[0], kind)
    _warn(messages)
    if save and (force or messages):
        _save(file, [fixed], f"  Saving {label} file ({file})...")


def _yaml_files(paths: Sequence[str]) -> Iterator[Path]:
    for path in paths:
        root = Path(path)
        named = iter([root] if root.suffix in YAML else [])
        is_other = root.exists() and not root.is_dir()
        yield from _found(path, named if is_other else files_below(root))


def _found(path: str, files: Iterator[Path]) -> list[Path]:
    """Return all files, listed before any is changed. Raises: CommandFailed."""
    try:
        return list(files)
    except OSError as error:
        raise CommandFailed(read_error(error, error.filename or path)) from error


def _documents(file: Path) -> list[Json] | None:
    """Return the raw documents of a file, None if it cannot be used."""
    try:
        loaded = load(read_file(file), file=str(file))
    except (InputError, OSError) as error:
        say(f"skipped: {file}: {error}", err=True)
        return None
    if any(document.item >= 0 for document in loaded):
        say(f"skipped: {file}: a List is not supported", err=True)
        return None
    return [document.raw for document in loaded]


def _is_policy(raw: Json, kinds: Container[str]) -> bool:
    return (
        type(raw) is dict
        and type(raw.get("kind")) is str
        and raw["kind"] in kinds
        and str(raw.get("apiVersion", "")).startswith("kyverno.io/")
    )


def _warn(messages: Sequence[str]) -> None:
    for message in messages:
        say(f"  WARNING: {message}")


def _save(file: Path, documents: Sequence[Json], label: str) -> None:
    say(label)
    try:
        write_in_folder(file, _yaml(documents))
    except OSError as error:
        say(f"    ERROR: saving file ({file}): {error.strerror}")
        return
    say("    OK")


def _yaml(documents: Sequence[Json]) -> str:
    return dump_in_blocks(*documents)
