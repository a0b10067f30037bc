"""Link one filter of match or exclude: each criterion is a test with its message.

Room: program. Takes: FilterIR. Gives: FilterProgram. Next: program/matching/match.
Source: docs/behaviour/engine 1.1 to 1.6, 8.7; Kyverno pkg/engine/utils/match.go.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeAlias

from kyverno_mp.ir.match import FilterIR, SelectorIR, SubjectIR
from kyverno_mp.program.matching.kind import link_kinds
from kyverno_mp.program.matching.subject import (
    criterion_namespace,
    metadata_of,
    resource_kind,
    resource_name,
)
from kyverno_mp.program.request import Request
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, TEXT_LIGHT_MAX, Charge
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import compile_selector, labels_of
from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard

Test: TypeAlias = Callable[[Request, dict[str, Json]], bool]

_WEIGHT_LIGHT_MAX = 64
"""Up to this weight, matching one short string costs no more than the rest of a
rule."""
_LENGTH_LIGHT_MAX = 32
_LENGTH_MAX = 1000
_ROLES = "user info does not match roles for the given conditionBlock"
_CLUSTER_ROLES = "user info does not match clustersRoles for the given conditionBlock"
_SUBJECTS = "user info does not match subject for the given conditionBlock"
_NO_NAMESPACE_LABELS = (
    "namespace selector is not applicable for namespace resource",
    "namespace selector does not match labels",
)


class _Criterion(NamedTuple):
    test: Test
    reason: Callable[[Request, dict[str, Json]], str]


class FilterProgram(NamedTuple):
    """One linked filter.

    ``test`` returns whether all criteria are met. ``anonymous_test`` omits the user
    criteria; without user criteria it is the same function as ``test``. ``reasons``
    lists upstream's messages for the criteria that are not met.
    """

    test: Test
    anonymous_test: Test
    reasons: Callable[[Request, dict[str, Json]], list[str]]


def link_filter(
    record: FilterIR, *, for_exception: bool, keeps_user_info: bool = False
) -> FilterProgram:
    """Link one filter; ``keeps_user_info``: keep user criteria, as ``exclude`` does.

    KYVERNO: an exception's filter ignores operations and always keeps its user info,
    and its namespaceSelector matches every Namespace (8.7).
    """
    about_object = _object_criteria(record, for_exception=for_exception)
    about_user = _user_criteria(record)
    if record == FilterIR():
        about_object = [_never("match cannot be empty")]
    criteria = [*about_object, *about_user]
    operations = () if for_exception else record.operations
    test = _link_tests(operations, criteria)
    dropped: list[_Criterion] | None = None
    anonymous = test
    if about_user and not (for_exception or keeps_user_info):
        has_rest = bool(about_object) or bool(operations)
        dropped = about_object if has_rest else [_never("match cannot be empty")]
        anonymous = _link_tests(operations, dropped)

    def reasons(request: Request, resource: dict[str, Json]) -> list[str]:
        if operations and request.operation not in operations:
            return ["operation does not match"]
        uses_all = dropped is None or request.has_user_info
        return [
            criterion.reason(request, resource)
            for criterion in (criteria if uses_all else dropped or ())
            if not criterion.test(request, resource)
        ]

    return FilterProgram(test, anonymous, reasons)


def _link_tests(operations: tuple[str, ...], criteria: list[_Criterion]) -> Test:
    tests = [criterion.test for criterion in criteria]
    if operations:
        allowed = frozenset(operations)
        tests.insert(0, lambda request, _: request.operation in allowed)
    if not tests:
        return lambda _request, _resource: True
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:  # noqa: PLR2004 - the most common shape (kinds and one more)
        first, second = tests
        return lambda request, resource: (
            first(request, resource) and second(request, resource)
        )

    def every(request: Request, resource: dict[str, Json]) -> bool:
        for test in tests:  # noqa: SIM110 - a generator costs more than the tests
            if not test(request, resource):
                return False
        return True

    return every


def _fixed(test: Test, reason: str) -> _Criterion:
    return _Criterion(test, lambda _request, _resource: reason)


def _never(reason: str) -> _Criterion:
    return _fixed(lambda _request, _resource: False, reason)


def _object_criteria(record: FilterIR, *, for_exception: bool) -> list[_Criterion]:
    criteria: list[_Criterion] = []
    if record.kinds:
        kind_holds = link_kinds(record.kinds)
        kinds = " ".join(kind.text for kind in record.kinds)
        criteria.append(
            _fixed(
                lambda request, _: kind_holds(request), f"kind does not match [{kinds}]"
            )
        )
    if record.name:
        criteria.append(_fixed(_name_test((record.name,)), "name does not match"))
    if record.names:
        criteria.append(_fixed(_name_test(record.names), "none of the names match"))
    if record.namespaces:
        criteria.append(
            _fixed(_namespace_test(record.namespaces), "namespace does not match")
        )
    if record.annotations:
        criteria.append(
            _fixed(_annotation_test(record.annotations), "annotations does not match")
        )
    if record.selector is not None:
        criteria.append(_selector_criterion(record.selector))
    if record.namespace_selector is not None:
        criteria.append(_namespace_selector(record, for_exception=for_exception))
    return criteria


def _text_test(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a test that is true if any pattern matches the text."""
    exact = frozenset(p for p in patterns if not contains_wildcard(p))
    wild = [compile_wildcard(p) for p in patterns if contains_wildcard(p)]
    if not wild:
        return exact.__contains__
    if len(wild) == 1 and not exact:
        return wild[0]
    return lambda value: value in exact or any(test(value) for test in wild)


def _name_test(patterns: tuple[str, ...]) -> Test:
    test, weight = _text_test(patterns), _weight(patterns)

    def holds(request: Request, resource: dict[str, Json]) -> bool:
        name = resource_name(resource)
        if len(name) > TEXT_LIGHT_MAX or weight > _WEIGHT_LIGHT_MAX:
            request.charge(_steps(weight, 1, len(name)))
        return test(name)

    return holds


def _namespace_test(patterns: tuple[str, ...]) -> Test:
    test, weight = _text_test(patterns), _weight(patterns)

    def holds(request: Request, resource: dict[str, Json]) -> bool:
        namespace = criterion_namespace(request, resource)
        if len(namespace) > TEXT_LIGHT_MAX or weight > _WEIGHT_LIGHT_MAX:
            request.charge(_steps(weight, 1, len(namespace)))
        return test(namespace)

    return holds


def _weight(patterns: Iterable[str]) -> int:
    """Return the wildcards' cost per matched character; a short wildcard costs one."""
    weight = 0
    for pattern in patterns:
        if contains_wildcard(pattern):
            weight += 1 + min(len(pattern), _LENGTH_MAX) // _LENGTH_LIGHT_MAX
            weight += len(pattern) if "?" in pattern else 0
    return weight


def _steps(weight: int, count: int, characters: int) -> int:
    """Return the steps for matching ``count`` strings with this total length."""
    return weight * (count + characters // CHARACTERS_PER_STEP)


def pairs_weight(pairs: Iterable[tuple[str, str]]) -> int:
    """Return the total weight of the wildcards in the pairs."""
    return sum(map(_weight, pairs))


def charge_pairs(
    charge: Charge, weight: int, actual: Collection[tuple[str, str]]
) -> None:
    """Charge for matching labels or annotations against pairs of wildcards."""
    charge(2 * len(actual))
    characters = sum([len(key) + len(value) for key, value in actual])
    charge(_steps(weight, 2 * len(actual), characters))


def _annotation_test(pairs: tuple[tuple[str, str], ...]) -> Test:
    tests = [(compile_wildcard(key), compile_wildcard(value)) for key, value in pairs]
    weight = len(pairs) + pairs_weight(pairs)

    def holds(request: Request, resource: dict[str, Json]) -> bool:
        actual = labels_of(metadata_of(resource).get("annotations")).items()
        charge_pairs(request.charge, weight, actual)
        return all(
            any(key_holds(key) and value_holds(value) for key, value in actual)
            for key_holds, value_holds in tests
        )

    return holds


def _selector_criterion(selector: SelectorIR) -> _Criterion:
    if selector.error:
        return _never(f"failed to parse selector: {selector.error}")
    holds = _link_selector(selector)
    weight = _selector_weight(selector)

    def test(request: Request, resource: dict[str, Json]) -> bool:
        actual = labels_of(metadata_of(resource).get("labels"))
        if weight:
            charge_pairs(request.charge, weight, actual.items())
        return holds(actual)

    return _fixed(test, "selector does not match")


def _selector_weight(selector: SelectorIR) -> int:
    """Return the weight of a selector's wildcards; each is matched against all labels.

    A very large number of terms adds to the weight.
    """
    weight = pairs_weight(selector.labels)
    terms = len(selector.labels) + len(selector.terms)
    return weight + (terms if terms > _WEIGHT_LIGHT_MAX else 0)


def _link_selector(selector: SelectorIR) -> Callable[[dict[str, str]], bool]:
    return compile_selector(
        selector.labels, [(t.key, t.operator, t.values) for t in selector.terms]
    )


def _namespace_selector(record: FilterIR, *, for_exception: bool) -> _Criterion:
    # KYVERNO: a namespaceSelector never matches a Namespace in match and exclude, but
    # always does in exceptions. It matches an object without a kind unless kinds has a
    # bare ``*`` (1.5).
    selector = record.namespace_selector
    assert selector is not None
    holds = (lambda _: False) if selector.error else _link_selector(selector)
    weight = _selector_weight(selector)
    matches_kindless = not for_exception and any(k.text == "*" for k in record.kinds)

    def test(request: Request, resource: dict[str, Json]) -> bool:
        kind = resource_kind(request, resource)
        if kind == "Namespace":
            return for_exception
        if not kind and not matches_kindless:
            return True
        if weight:
            charge_pairs(request.charge, weight, request.namespace_labels.items())
        return holds(request.namespace_labels)

    def reason(request: Request, resource: dict[str, Json]) -> str:
        if resource_kind(request, resource) == "Namespace":
            return _NO_NAMESPACE_LABELS[0]
        if selector.error:
            return f"failed to parse namespace selector: {selector.error}"
        return _NO_NAMESPACE_LABELS[1]

    return _Criterion(test, reason)


def _user_criteria(record: FilterIR) -> list[_Criterion]:
    criteria: list[_Criterion] = []
    if record.roles:
        roles = frozenset(record.roles)
        criteria.append(
            _fixed(lambda request, _: not roles.isdisjoint(request.roles), _ROLES)
        )
    if record.cluster_roles:
        cluster_roles = frozenset(record.cluster_roles)
        criteria.append(
            _fixed(
                lambda request, _: not cluster_roles.isdisjoint(request.cluster_roles),
                _CLUSTER_ROLES,
            )
        )
    if record.subjects:
        criteria.append(_fixed(_subject_test(record.subjects), _SUBJECTS))
    return criteria


def _subject_test(subjects: tuple[SubjectIR, ...]) -> Test:
    """Link subjects; kinds except User, Group, ServiceAccount are ignored (1.6)."""
    users = [s.name for s in subjects if s.kind == "User"]
    users += [
        f"system:serviceaccount:{s.namespace}:{s.name}"
        for s in subjects
        if s.kind == "ServiceAccount"
    ]
    is_user = _text_test(tuple(users))
    in_group = _text_test(tuple(s.name for s in subjects if s.kind == "Group"))
    return lambda request, _: (
        is_user(request.username) or any(in_group(group) for group in request.groups)
    )
