"""Compare a ClusterPolicy and the policy in CEL that replaces it on the same requests.

Room: cli. Takes: both documents, AdmissionReviews. Gives: the requests that the two
policies decide differently. Next: cli/fix/command.py. May touch: the clock, for
deadlines.
Source: docs/architecture.md 3 (the webhook uses the same engine).
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.admission.decode import decode
from kyverno_mp.cli.apply.stages.cel import generator_of
from kyverno_mp.cli.fix.rewrite.generated_cluster import GeneratedCluster
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.replay.unrecorded import unrecorded
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.policy.cel_kinds.served import decode_cel_document
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.program.cel_sources import EXECUTED
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.generate.generation import (
    evaluate_generations,
    generate,
    link_generations,
)
from kyverno_mp.program.mutation import link_mutations, mutate_request
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, RuleResult
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import OF_TYPE

_DENIED: Final = frozenset({FAIL, ERROR})
_MANAGED: Final = "app.kubernetes.io/managed-by"
_ORIGIN: Final = "generate.kyverno.io/"
_UNORDERED: Final = frozenset(
    {
        *("containers", "ephemeralContainers", "imagePullSecrets"),
        *("volumeMounts", "volumes"),
    }
)
"""Lists by key whose order decides nothing: a merge moves what it changes to the front,
an apply configuration leaves it in its place."""
_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Difference(NamedTuple):
    """One request, and the decisions of both policies, or the changed objects."""

    request: str
    before: str
    after: str
    kind: str = OF_TYPE["validate"].name


class _NoLabels:
    """Namespaces without labels."""

    def labels(self, _namespace: str) -> dict[str, str]:
        """Return no labels."""
        return {}


class Pair:
    """Both policies, linked for evaluation."""

    def __init__(self, before: AnyPolicy, after: Json) -> None:
        self._cluster = GeneratedCluster(before.spec.rules)
        self._engine = Engine(
            _data_of(self._cluster),
            Clock(now=lambda: _TIME, monotonic_ns=time.monotonic_ns),
        )
        # KYVERNO: failurePolicy Ignore allows errors of a ClusterPolicy's rules, but
        # not errors of a ValidatingPolicy's expressions.
        self._ignores = before.spec.failure_policy == "Ignore"
        self._kind = str(after["kind"])
        compiled = compile_policy(before)
        row = row_of(self._kind)
        self._type = row.kind.rule_type
        self._after: Any = None
        self._generates: Callable[[Facts], list[Json]] | None = None
        self._before = link_policy(compiled)
        self._mutations = link_mutations(compiled)
        self._generations = link_generations(compiled)
        compiled_after = row.compile(decode_cel_document(after), ())
        if self._type == "generate":
            self._generates = generator_of(compiled_after)
        else:
            self._after = EXECUTED[row.kind].linked(compiled_after)

    def differences(self, reviews: Iterable[tuple[str, bytes]]) -> Iterator[Difference]:
        """Yield the requests that one policy denies and the other allows.

        Of mutating policies, also those that both change otherwise; of generating ones,
        those for which both generate other objects. Raises: NotRewritten if no request
        makes a policy generate, which would prove nothing.
        """
        has_generated = self._generates is None
        for number, (shown, body) in enumerate(reviews):
            request = decode(body)
            self._cluster.turn(number, request)
            if self._type == "mutate":
                before, old_object = self._mutated(request)
                after, new_object = self._mutated_after(request)
            elif self._generates is not None:
                before = after = ""
                old_object = self._generated(request)
                new_object = self._generates(self._facts(request))
                has_generated |= bool(old_object)
            else:
                before, after = self.verdicts(request)
                old_object = new_object = None
            if bool(before) != bool(after):
                yield Difference(self._all(shown), before, after, self._kind)
            elif not before and _comparable(old_object) != _comparable(new_object):
                objects = _shown(old_object), _shown(new_object)
                yield Difference(self._all(shown), *objects, self._kind)
        if not has_generated:
            raise NotRewritten("no request that was tried generates an object")

    def _all(self, shown: str) -> str:
        """Return a request with what was read for it."""
        answers = self._cluster.answers()
        return f"{shown}; read: {_shown(answers)}" if answers else shown

    def verdicts(self, request: Request) -> tuple[str, str]:
        """Return the reason of each policy's denial, "" if it allows the request."""
        if self._type == "mutate":
            return self._mutated(request)[0], self._mutated_after(request)[0]
        context = self._engine.open(request)
        response = self._engine.explain(self._before, context)
        found = self._after.evaluate(self._facts(request), ReviewShared(request))
        answers = [one.result for one in found if one.result is not None]
        denied = _DENIED - {ERROR} if self._ignores else _DENIED
        return _why(response.results, denied), _why(answers, _DENIED)

    def changed(self, request: Request) -> tuple[Json, Json]:
        """Return the object as each policy leaves it."""
        return self._mutated(request)[1], self._mutated_after(request)[1]

    def _facts(self, request: Request) -> Facts:
        return Facts(
            request,
            self._engine.open(request).runtime,
            self._engine.cluster_data.cel,
            is_review=True,
            faults=[],
        )

    def _mutated(self, request: Request) -> tuple[str, Json]:
        """Return the ClusterPolicy's denial and object."""
        if request.operation == "DELETE":
            return "", None
        policy = self._before.ir
        context = self._engine.open(request)
        done = mutate_request([(policy, self._mutations)], context)
        changed: Json = request.object
        if done.responses and not done.refusal:
            response = done.responses[0]
            if not response.errored():
                changed = response.patched_object
        return done.refusal, changed

    def _mutated_after(self, request: Request) -> tuple[str, Json]:
        """Return the policy's denial and object."""
        if request.operation == "DELETE":
            return "", None
        changed: Json = request.object
        errors = []
        for one in self._after.evaluate(self._facts(request), ReviewShared(request)):
            if one.result is not None and one.result.status == ERROR:
                errors.append(one.result)
            elif one.patched is not None:
                changed = one.patched
        denial = "" if self._ignores else _why(errors, _DENIED)
        return denial, request.object if errors else changed

    def _generated(self, request: Request) -> list[Json]:
        """Return what the ClusterPolicy generates; a rule with an error nothing."""
        found: list[Json] = []
        if request.operation == "DELETE":
            return found
        context = self._engine.open(request)
        for rule in self._generations:
            response = evaluate_generations(self._before.ir, [rule], context)
            # A rule that applied to the old object alone generates nothing.
            response.results = [r for r in response.results if r.status == PASS]
            if not generate([rule], response, context, lambda _each: True):
                found += [raw for one in response.results for raw in one.generated]
        return [_without_origin(raw) for raw in found]


def _without_origin(raw: Json) -> Json:
    """Return an object without the labels that tell which rule generated it."""
    metadata = dict(raw["metadata"])
    labels = {
        name: value
        for name, value in (metadata.pop("labels", None) or {}).items()
        if name != _MANAGED and not name.startswith(_ORIGIN)
    }
    return {**raw, "metadata": {**metadata, **({"labels": labels} if labels else {})}}


def _data_of(cluster: GeneratedCluster) -> ClusterData:
    ports = unrecorded(lambda _what: None, _NoLabels(), lambda _what: None)
    return dataclasses.replace(
        ports,
        config_maps=cluster,
        api_calls=cluster,
        cel=ports.cel._replace(resources=cluster),
    )


def _comparable(value: Json, key: str = "") -> Json:
    """Return a value in which lists without an order are sorted."""
    if type(value) is dict:
        return {name: _comparable(one, name) for name, one in value.items()}
    if type(value) is not list:
        return value
    items = [_comparable(one) for one in value]
    return sorted(items, key=_sorted_text) if key in _UNORDERED else items


def _sorted_text(value: Json) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _shown(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _why(results: Iterable[RuleResult], denied: frozenset[str]) -> str:
    bad = (result for result in results if result.status in denied)
    return "; ".join(f"{one.status}: {one.message}" for one in bad)
