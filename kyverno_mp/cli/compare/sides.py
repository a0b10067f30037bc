"""Evaluate the creation of objects with the policies of one side of a change.

Room: cli. Takes: Served policies, manifests, ClusterFacts, a user. Gives: an Outcome
for each object. Next: differences. May touch: the clock.
Source: docs/preview.md; Kubernetes, "Dynamic Admission Control" (the order of calls).

The code is the server's, as in a replay: mutating webhooks first, then the validating
ones with the mutated object.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from kyverno_mp.admission.decode import decode
from kyverno_mp.cli.compare.generated import Generation, Generator
from kyverno_mp.cli.compare.manifests import Key, Manifest
from kyverno_mp.cli.compare.unknown import (
    MayMatch,
    Readers,
    reads_labels,
    reads_user,
    unnamed,
)
from kyverno_mp.cli.replay.facts import ClusterFacts
from kyverno_mp.cli.replay.policies import Served
from kyverno_mp.cli.replay.verdicts import (
    ALLOWED,
    DENIED,
    UNDECIDABLE,
    Replayer,
    Verdict,
)
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.errors import InputError, RequestInvalid
from kyverno_mp.program.engine import Clock
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.webhook.route import (
    BOTH,
    MPOL,
    MUTATE,
    NMPOL,
    NVPOL,
    VALIDATE,
    VPOL,
    Route,
)

_MUTATING: Final = (MUTATE, MPOL, NMPOL)
_VALIDATING: Final = (VALIDATE, VPOL, NVPOL)
_NAMESPACED: Final = frozenset({NMPOL, NVPOL})
_ROUTES: Final = {
    webhook: Route(f"/{webhook}", webhook, BOTH)
    for webhook in (*_MUTATING, *_VALIDATING)
}
IMAGES: Final = "images, which only a service verifies"
USER: Final = "the user, see --userinfo"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cluster with one side's policies does with one object."""

    verdict: Verdict
    """Of all webhooks together."""
    object: dict[str, Json]
    """As it would be stored."""
    generation: Generation = field(default_factory=Generation)


class Side:
    """The policies and objects of one side."""

    def __init__(
        self,
        served: Served,
        manifests: Mapping[Key, Manifest],
        facts: ClusterFacts,
        user: UserInfo | None,
    ) -> None:
        """``facts``: of a cluster in which the manifests are applied."""
        self.served = served
        self.manifests = manifests
        self._facts = facts
        self._user = user or UserInfo()
        self._of_user = None if user is not None else Readers(served, reads_user)
        """The policies that read a user whom nobody has named."""
        self._images = MayMatch(served.image_rules, served.image_policies)
        policies = served if self._of_user is None else self._of_user.others
        self._known = policies
        self._replayer = self._replayer_of(policies)
        self._time_ms = time.time_ns() // 1_000_000

    def _replayer_of(self, served: Served) -> Replayer:
        return Replayer(served.policies, served.cel, self._facts, audits=True)

    @cached_property
    def _of_labels(self) -> tuple[Readers, Replayer]:
        """The policies that read labels of namespaces, and a Replayer without them."""
        readers = Readers(self._known, reads_labels)
        return readers, self._replayer_of(readers.others)

    @cached_property
    def _generator(self) -> Generator:
        now = datetime.fromtimestamp(self._time_ms / 1000, UTC)
        return Generator(
            self._known,
            self._facts,
            self.manifests.values(),
            self._user,
            Clock(now=lambda: now, monotonic_ns=time.monotonic_ns),
            {
                (each.group, each.kind): each.plural
                for each in self.manifests.values()
                if each.plural
            },
        )

    def outcome(self, manifest: Manifest) -> Outcome:
        """Evaluate the creation of an object."""
        try:
            return self._outcome(manifest)
        except RequestInvalid as error:
            # No service decodes its review; the failurePolicies decide.
            need = ("", f"a review that can be read: {error.message}")
            return Outcome(Verdict(UNDECIDABLE, undecided=(need,)), manifest.raw)

    def _outcome(self, manifest: Manifest) -> Outcome:
        labels = self._labels(manifest)
        request = self._request(manifest, manifest.raw, labels)
        replayer = self._replayer
        keys, changes = self._images.of(request)
        undecided = {(key, IMAGES) for key in keys}
        if self._of_user is not None:
            keys, is_changing = self._of_user.of(request)
            undecided |= {(key, USER) for key in keys}
            changes |= is_changing
        if labels is None and manifest.namespace:
            readers, replayer = self._of_labels
            keys, is_changing = readers.of(request)
            need = f"Namespace {manifest.namespace}"
            undecided |= {(key, need) for key in keys}
            changes |= is_changing
        if not manifest.plural:
            keys = unnamed(self.served, request)
            need = f"the resource name of {manifest.kind}, see --crd-paths"
            undecided |= {(key, need) for key in keys}
            changes |= bool(keys)
        verdict, raw = self._admitted(replayer, manifest, labels)
        verdict = _with_undecided(verdict, undecided, changes=changes)
        if verdict.outcome != ALLOWED:
            return Outcome(verdict, raw)
        try:
            generation = self._generator.generate(self._request(manifest, raw, labels))
        except InputError as error:
            generation = Generation(undecided=[("", error.message)])
        return Outcome(verdict, raw, generation)

    def _labels(self, manifest: Manifest) -> Mapping[str, str] | None:
        if not manifest.review_namespace:
            return {}
        return self._facts.namespace_labels(manifest.review_namespace)

    def _request(
        self, manifest: Manifest, raw: Json, labels: Mapping[str, str] | None
    ) -> Request:
        _, body = manifest.review(raw, self._user, labels, self._time_ms)
        request = decode(body)
        request.namespace_labels = dict(labels or {})
        request.namespace_known = labels is not None
        request.roles = self._user.roles
        request.cluster_roles = self._user.cluster_roles
        return request

    def _admitted(
        self,
        replayer: Replayer,
        manifest: Manifest,
        labels: Mapping[str, str] | None,
    ) -> tuple[Verdict, dict[str, Json]]:
        """Return the verdict of all webhooks, and the mutated object."""
        raw = manifest.raw
        verdicts: list[Verdict] = []
        for webhook in (*_MUTATING, *_VALIDATING):
            if webhook in _NAMESPACED and not manifest.namespace:
                continue
            if webhook == VALIDATE and any(
                each.outcome != ALLOWED for each in verdicts
            ):
                break
            line, body = manifest.review(raw, self._user, labels, self._time_ms)
            verdict = replayer.verdict(line, body, _ROUTES[webhook])
            verdicts.append(verdict)
            if verdict.patch:
                raw = apply_patch(raw, verdict.patch, strict=True)
        return _together(verdicts), raw


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of several webhooks about one request."""
    outcomes = [each.outcome for each in verdicts]
    outcome = next((o for o in (DENIED, UNDECIDABLE) if o in outcomes), ALLOWED)
    deciding = [each for each in verdicts if outcome in (ALLOWED, each.outcome)]
    return Verdict(
        outcome=outcome,
        policies=tuple(sorted({key for each in deciding for key in each.policies})),
        reasons=tuple(_joined(each.reasons for each in deciding)),
        patch=tuple(_joined(each.patch for each in verdicts)),
        undecided=tuple(sorted({*_joined(each.undecided for each in verdicts)})),
        took_part=frozenset(_joined(each.took_part for each in verdicts)),
        is_validated=all(each.is_validated for each in verdicts),
        audited=tuple(_joined(each.audited for each in verdicts)),
        audits_undecided=tuple(
            sorted({*_joined(each.audits_undecided for each in verdicts)})
        ),
    )


def _joined(lists: Iterable[Iterable[object]]) -> list:  # type: ignore[type-arg]
    return [each for listed in lists for each in listed]


def _with_undecided(
    verdict: Verdict, undecided: set[tuple[str, str]], *, changes: bool
) -> Verdict:
    """Add policies that were not evaluated; ``changes``: one can change the object."""
    if not undecided:
        return verdict
    is_denied = verdict.outcome == DENIED and not changes
    return replace(
        verdict,
        outcome=DENIED if is_denied else UNDECIDABLE,
        undecided=tuple(sorted({*verdict.undecided, *undecided})),
        took_part=verdict.took_part | {policy for policy, _ in undecided},
        is_validated=verdict.is_validated and not changes,
    )
