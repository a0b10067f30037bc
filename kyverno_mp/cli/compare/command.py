"""``apply --base --head``: what policies would say about a change, without a cluster.

Room: cli. Takes: the flags of ``apply``. Gives: the differences of two sides on
standard output, and the exit code. Next: sides, differences, output.
May touch: files named by the user, standard output, the clock.
Source: docs/preview.md.
"""

import sys
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from kyverno_mp.cli.apply.options import Options, options_of
from kyverno_mp.cli.compare.differences import CHANGES, Differences, differences_of
from kyverno_mp.cli.compare.manifests import manifests_of, shared_objects
from kyverno_mp.cli.compare.output import as_json, markdown, table
from kyverno_mp.cli.compare.sides import Side
from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.replay.changes import NOT_DECIDABLE, NOW_DENIED
from kyverno_mp.cli.replay.facts import clustered, fact_objects
from kyverno_mp.cli.replay.policies import served
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.user_info import load_user_info

_NOTHING: Final = "none"
_DEFAULT_CHANGES: Final = (NOW_DENIED, NOT_DECIDABLE)
_FORMATS: Final = ("yaml", "json", "markdown")
"""The default of the flag, ``yaml``, gives tables here as well."""
_POLICIES: Final = "policies"
_OTHER_FLAGS: Final = frozenset(
    {
        "policies",
        "resources",
        "user_info",
        "crd_paths",
        "output_format",
        "base",
        "head",
        "compare",
        "facts",
        "fail_on",
    }
)
"""The flags that a comparison knows."""


def called(policies: tuple[str, ...], **flags: object) -> int:
    """Run the command with the flags that click parsed. Raises: CommandFailed."""
    options = options_of(policies, **flags)
    _check(options)
    base, head = _sides(options)
    total = len({*base.manifests, *head.manifests})
    with progress("Comparing", total, "objects") as advance:
        differences = differences_of(base, head, advance)
    sys.stdout.write(_output(differences, options))
    selected = options.fail_on or _DEFAULT_CHANGES
    return int(any(differences.changes[each] for each in selected if each != _NOTHING))


def _check(options: Options) -> None:
    """Raise CommandFailed for flags that are missing, or that nothing would read."""
    if not (options.base and options.head):
        raise CommandFailed("--base and --head belong together")
    if options.output_format not in _FORMATS:
        message = f"--output-format {options.output_format} cannot be used with --base"
        raise CommandFailed(f"{message}: {', '.join(_FORMATS)}")
    context = click.get_current_context()
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name not in _OTHER_FLAGS and source is ParameterSource.COMMANDLINE:
            flag = max(param.opts, key=len)
            raise CommandFailed(f"{flag} cannot be used with --base and --head")
    of_policies = options.compare == _POLICIES
    if of_policies and (options.policies or not options.resources):
        raise CommandFailed(
            "--compare policies: --base and --head have the policies, and --resource"
            " names the manifests"
        )
    if not of_policies and (options.resources or not options.policies):
        raise CommandFailed(
            "--base and --head have the manifests, and arguments name the policies; see"
            " --compare policies"
        )
    for change in options.fail_on:
        if change not in (*CHANGES, _NOTHING):
            names = ", ".join((*CHANGES, _NOTHING))
            raise CommandFailed(f"--fail-on: {change!r} is not one of {names}")


def _sides(options: Options) -> list[Side]:
    """Return base and head."""
    paths = ((options.base,), (options.head,))
    of_policies = options.compare == _POLICIES
    if of_policies:
        manifests = [manifests_of(options.resources, options.crd_paths)] * 2
    else:
        manifests = [manifests_of(side, options.crd_paths) for side in paths]
    if not any(manifests):
        raise CommandFailed("no objects in the manifests")
    objects = fact_objects(options.facts) if options.facts else []
    facts = [
        clustered(options.facts, objects, shared_objects(side.values()))
        for side in manifests
    ]
    if of_policies:
        policies = [served(side, facts[0], whole=True) for side in paths]
    else:
        policies = [served(options.policies, facts[0], whole=True)] * 2
    user = (
        load_user_info(Path(options.user_info), is_argument=True)
        if options.user_info
        else None
    )
    return [Side(*side, user) for side in zip(policies, manifests, facts, strict=True)]


def _output(differences: Differences, options: Options) -> str:
    noun = "policies" if options.compare == _POLICIES else "manifests"
    about = (
        f"objects: {differences.objects:,}; {noun} in {options.base} compared with"
        f" {options.head}"
    )
    if options.output_format == "json":
        return as_json(differences, about)
    show = markdown if options.output_format == "markdown" else table
    return show(differences, about)
