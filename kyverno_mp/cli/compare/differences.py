"""Compare what two sides of a change do with each object.

Room: cli. Takes: two Sides. Gives: Differences. Next: output.
Source: docs/preview.md (changes).
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import yaml

from kyverno_mp.cli.compare.generated import GeneratedObject
from kyverno_mp.cli.compare.manifests import Key, Manifest, shared_objects
from kyverno_mp.cli.compare.sides import Outcome, Side
from kyverno_mp.cli.replay.changes import (
    MUTATED,
    NOT_DECIDABLE,
    NOW_ALLOWED,
    NOW_DENIED,
    UNCHANGED,
    decide_alike,
    unchanged_policies,
)
from kyverno_mp.cli.replay.verdicts import ALLOWED, DENIED, UNDECIDABLE, Verdict
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.values.jsonvalue import Json

AUDITED: Final = "audited"
GENERATED: Final = "generated"
CHANGES: Final = (NOW_DENIED, NOT_DECIDABLE, AUDITED, MUTATED, GENERATED, NOW_ALLOWED)
"""Values of --fail-on, in the order of the output."""
_ABSENT: Final = Verdict(ALLOWED)
_SECRET_FIELDS: Final = ("data", "stringData")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that happens on one side only."""

    change: str
    object: str
    """``Deployment apps/web``."""
    policies: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Missing data of undecided policies: "policy p: ConfigMap a/b"."""
    diff: tuple[str, ...] = ()
    """Lines of a unified diff."""


class _Generated(NamedTuple):
    object: GeneratedObject
    trigger: Manifest


@dataclass(slots=True)
class Differences:
    """All differences of two sides."""

    objects: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    """Change -> number of objects."""
    listed: list[Difference] = field(default_factory=list)

    def add(self, difference: Difference) -> None:
        """Count and keep a difference."""
        self.changes[difference.change] += 1
        self.listed.append(difference)


def differences_of(
    base: Side, head: Side, advance: Callable[[int], None]
) -> Differences:
    """Evaluate both sides; ``advance`` is called for each object.

    Equal policies that lack the same data decide alike, if all else they read is equal.
    """
    reads_alike = shared_objects(base.manifests.values()) == shared_objects(
        head.manifests.values()
    )
    unchanged = (
        unchanged_policies(base.served.by_key(), head.served.by_key())
        if reads_alike
        else frozenset()
    )
    is_one = reads_alike and base.served is head.served
    differences = Differences()
    outcomes: dict[Key, tuple[Outcome | None, Outcome | None]] = {}
    for key in sorted({*base.manifests, *head.manifests}):
        manifest = head.manifests.get(key)
        is_same = base.manifests.get(key) == manifest
        before = _outcome(base, key)
        after = before if is_one and is_same else _outcome(head, key)
        outcomes[key] = before, after
        if manifest is not None and after is not None:
            differences.objects += 1
            rows = list(
                _differences(manifest, before, after, unchanged, is_same=is_same)
            )
            for row in rows:
                differences.add(row)
            differences.changes[UNCHANGED] += not rows
        advance(1)
    for row in _generated_differences(base, head, outcomes):
        differences.add(row)
    differences.listed.sort(key=lambda row: CHANGES.index(row.change))
    return differences


def _outcome(side: Side, key: Key) -> Outcome | None:
    manifest = side.manifests.get(key)
    return None if manifest is None else side.outcome(manifest)


def _differences(
    manifest: Manifest,
    before: Outcome | None,
    after: Outcome,
    unchanged: frozenset[str],
    *,
    is_same: bool,
) -> Iterator[Difference]:
    """Yield what differs for one object. ``is_same``: both sides have it as it is."""
    old = _ABSENT if before is None else before.verdict
    new = after.verdict
    alike = unchanged if is_same else frozenset()
    path = manifest.path
    needs: list[str] = []
    if UNDECIDABLE in (old.outcome, new.outcome):
        if not (is_same and decide_alike(old, new, unchanged)):
            needs += _needs({*old.undecided, *new.undecided})
    elif new.outcome == DENIED and old.outcome == ALLOWED:
        yield Difference(
            change=NOW_DENIED, object=path, policies=new.policies, reasons=new.reasons
        )
    elif new.outcome == ALLOWED and old.outcome == DENIED:
        yield Difference(
            change=NOW_ALLOWED, object=path, policies=old.policies, reasons=old.reasons
        )
    for was, now in (
        (old.audits_undecided, new.audits_undecided),
        (_undecided(before), _undecided(after)),
    ):
        needs += _needs(
            each
            for each in {*was, *now}
            if not (each[0] in alike and each in was and each in now)
        )
    if needs:
        yield Difference(
            change=NOT_DECIDABLE, object=path, needs=tuple(dict.fromkeys(needs))
        )
    failures = [each for each in new.audited if each not in old.audited]
    if failures:
        yield Difference(
            change=AUDITED,
            object=path,
            policies=tuple(sorted({policy for policy, _ in failures})),
            reasons=tuple(failure for _, failure in failures),
        )
    if new.outcome == ALLOWED == old.outcome and new.patch != old.patch:
        unmutated = before.object if is_same and before else manifest.raw
        yield Difference(
            change=MUTATED,
            object=path,
            policies=tuple(sorted({*old.policies, *new.policies} - alike)),
            diff=tuple(_diff(unmutated, after.object)),
        )


def _undecided(outcome: Outcome | None) -> list[tuple[str, str]]:
    return [] if outcome is None else outcome.generation.undecided


def _needs(undecided: "Iterator[tuple[str, str]] | set[tuple[str, str]]") -> list[str]:
    return [
        f"policy {policy}: {need}" if policy else need
        for policy, need in sorted(undecided)
    ]


def _generated_differences(
    base: Side,
    head: Side,
    outcomes: dict[Key, tuple[Outcome | None, Outcome | None]],
) -> Iterator[Difference]:
    """Yield the generated objects that only one side has, or that differ."""
    sides = [
        _generated(side, {key: pair[position] for key, pair in outcomes.items()})
        for position, side in enumerate((base, head))
    ]
    unknown = [
        {
            key
            for key, pair in outcomes.items()
            if (outcome := pair[position]) is not None
            and (outcome.verdict.outcome == UNDECIDABLE or outcome.generation.undecided)
        }
        for position in (0, 1)
    ]
    for path in sorted({*sides[0], *sides[1]}):
        was, now = (side.get(path) for side in sides)
        if now is None and was is not None and was.trigger.key not in unknown[1]:
            yield _of_generated(path, "no longer generated", was, was, None)
        elif was is None and now is not None and now.trigger.key not in unknown[0]:
            yield _of_generated(path, "generated", now, None, now)
        elif was is not None and now is not None and was.object.raw != now.object.raw:
            yield _of_generated(path, "generated differently", now, was, now)


def _of_generated(
    path: str,
    what: str,
    generated: _Generated,
    before: _Generated | None,
    after: _Generated | None,
) -> Difference:
    each = generated.object
    reason = f"{what} for {generated.trigger.path}"
    if each.sources:
        reason += f", if this exists: {', '.join(each.sources)}"
    old, new = (None if side is None else side.object.raw for side in (before, after))
    return Difference(
        change=GENERATED,
        object=path,
        policies=(each.policy,),
        reasons=(reason,),
        diff=tuple(_diff(old, new)),
    )


def _generated(
    side: Side, outcomes: dict[Key, Outcome | None]
) -> dict[str, _Generated]:
    """Return the generated objects of a side by their paths."""
    generated = {}
    for key, outcome in outcomes.items():
        for each in () if outcome is None else outcome.generation.objects:
            raw = each.raw
            names = (metadata_text(raw, "namespace"), metadata_text(raw, "name"))
            path = f"{raw.get('kind')} {'/'.join(filter(None, names))}"
            generated[path] = _Generated(each, side.manifests[key])
    return generated


def _diff(
    before: dict[str, Json] | None, after: dict[str, Json] | None
) -> Iterator[str]:
    """Yield the lines of a unified diff, without its heads."""
    old, new = (
        [] if raw is None else yaml.safe_dump(_shown(raw)).splitlines()
        for raw in (before, after)
    )
    lines = difflib.unified_diff(old, new, lineterm="", n=2)
    yield from (line for line in lines if not line.startswith(("---", "+++")))


def _shown(raw: dict[str, Json]) -> dict[str, Json]:
    """Return an object as it can be shown: a diff ends in logs and comments."""
    if raw.get("kind") != "Secret":
        return raw
    hidden = {
        name: dict.fromkeys(raw[name], "***")
        for name in _SECRET_FIELDS
        if type(raw.get(name)) is dict
    }
    return {**raw, **hidden}
