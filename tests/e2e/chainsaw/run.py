"""Run one chainsaw test against a cluster.

Takes: a Test, a connection, an environment for its commands. Gives: nothing, or raises
Failed naming the operation. Everything that the test made is removed in the end.
May touch: the cluster, the processes that the test's scripts start.
Source: chainsaw pkg/engine: an operation is repeated until it comes out as expected or
its time is over; an ``expect`` that matches decides instead of the plain outcome.
"""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kyverno_mp.errors import Error
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS
from tests.e2e.api import Api, Refused
from tests.e2e.chainsaw.commands import (
    COLLECTORS,
    Shell,
    collect,
    run_command,
    wait,
)
from tests.e2e.chainsaw.documents import Binding, Failed, Operation, Step, Test
from tests.e2e.chainsaw.expressions import Names, fill, fill_reference, problems
from tests.e2e.chainsaw.manifests import read_objects
from tests.e2e.chainsaw.objects import Objects
from tests.e2e.chainsaw.read import duration_s
from tests.e2e.chainsaw.surroundings import as_called_by_service

POLL_S: Final = 0.1
SETTLED_S: Final = 1.0
LONG_S: Final = 5.0
"""Shortening a shorter sleep saves too little."""
FORGOTTEN_S: Final = 2.5
"""The API server re-reads its own admission policies each second.

Until then it mutates or rejects objects of the next test
(policy/generic/policy_source.go).
"""
_WRITES: Final = frozenset({"apply", "create", "patch", "update"})
_KEPT: Final = frozenset({"PATH", "HOME", "LANG", "TMPDIR"})


EndNamespace = Callable[[str], None]
"""Deletes the namespace of that name, with its content."""
PolicyKey = tuple[str, str, str]
"""Kind, namespace, name."""
AwaitPolicy = Callable[[PolicyKey, int], None]
"""Waits until this generation of a policy is in force."""


class Hooks(NamedTuple):
    """What a product and its control plane can do for a run."""

    end_namespace: EndNamespace | None = None
    await_policy: AwaitPolicy | None = None


_NO_HOOKS: Final = Hooks()
_IN_REVIEWS: Final = {
    stored.kind for row in POLICY_KINDS if row.segment for stored in row.stored
}


@dataclass
class _Run:
    test: Test
    objects: Objects
    shell: Shell
    created: list[dict[str, Any]] = field(default_factory=list)
    own_namespace: dict[str, Any] | None = None
    brief: frozenset[str] = frozenset()
    hooks: Hooks = _NO_HOOKS


def run_test(
    test: Test,
    api: Api,
    environment: Mapping[str, str],
    *,
    pause_s: float = 0.0,
    is_brief: bool = False,
    hooks: Hooks = _NO_HOOKS,
) -> None:
    """Run all steps; raises Failed.

    ``environment``: KUBECONFIG and PATH of the commands; ``pause_s``: the time between
    two steps, where chainsaw starts processes; ``is_brief``: a long sleep between an
    assertion and a write takes SETTLED_S, as what was asserted is to be in force by
    then; ``hooks``: a cheaper deletion of the namespaces that are left when all steps
    have run; ``await_policy`` is called for each written policy: one that was
    changed says Ready because of its earlier version.
    """
    namespace = test.namespace or f"chainsaw-{uuid.uuid4().hex[:10]}"
    objects = Objects(api, namespace)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    shell = Shell(test.folder, kept | dict(environment), namespace)
    run = _Run(test, objects, shell, hooks=hooks)
    run.brief = _settling(test) if is_brief else run.brief
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    names: dict[str, Any] = {
        "namespace": namespace,
        "server_version": api.get("/version"),
        "test": {"metadata": {"name": test.name}},
    }
    if _uses_namespace(run, names) and objects.find_one(made) is None:
        _make_namespace(run, made)
    try:
        names |= _bound(test.bindings, names)
        for step in test.steps:
            _run_step(run, step, names)
            time.sleep(pause_s)
    finally:
        _clean_up(run, names)


def _uses_namespace(run: _Run, outer: Names) -> bool:
    """Return whether a step may use the test's namespace.

    Most tests name all their namespaces, and one more costs CPU time.
    """
    if run.test.namespace:
        return True
    try:
        names = {**outer, **_bound(run.test.bindings, outer)}
        return any(
            _names_namespace(run, operation, {**names, **_bound(step.bindings, names)})
            for step in run.test.steps
            for operation in (*step.tries, *step.finals, *step.cleanups)
        )
    except (Failed, Error, Refused, LookupError):
        # It depends on what earlier operations output or install.
        return True


def _names_namespace(run: _Run, operation: Operation, names: Names) -> bool:
    own = str(names["namespace"])
    if operation.name in _WRITES:
        filled = {**names, **_bound(operation.bindings, names)}
        located = [run.objects.locate(raw) for raw in _read(run, operation, filled)]
        return own in json.dumps(located)
    if operation.name in ("script", "command"):
        return "namespace" in json.dumps(operation.fields).lower()
    return operation.name not in ("assert", "error", "delete", "sleep")


def _settling(test: Test) -> frozenset[str]:
    """Return the places of the sleeps between an assertion and a write."""
    tries = [one for step in test.steps for one in step.tries]
    return frozenset(
        one.place
        for before, one, after in zip(tries, tries[1:], tries[2:], strict=False)
        if (before.name, one.name) == ("assert", "sleep") and after.name in _WRITES
    )


def _make_namespace(run: _Run, made: dict[str, Any]) -> None:
    """Create the test's namespace; the previous test's policy may still be in force."""
    deadline = time.monotonic() + run.test.timeouts_s["apply"]
    while True:
        try:
            run.objects.create(made)
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            run.own_namespace = made
            return


def _run_step(run: _Run, step: Step, outer: Names) -> None:
    names = dict(outer)
    try:
        try:
            names |= _bound(step.bindings, names)
            for operation in step.tries:
                names |= _run_operation(run, operation, names)
        except (Failed, Error):
            for operation in (*step.catches, *run.test.catches):
                with contextlib.suppress(Failed, Error):
                    _run_operation(run, operation, names)
            raise
    finally:
        for operation in step.finals:
            _run_operation(run, operation, names)


def _remove(run: _Run, made: dict[str, Any], deadline: float) -> None:
    """Delete and wait; a policy that was just deleted may reject it for a moment."""
    while True:
        try:
            if run.hooks.end_namespace is not None and _is_namespace(made):
                run.hooks.end_namespace(made["metadata"]["name"])
            else:
                run.objects.delete(made)
            break
        except Refused:
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)
    # K8S: deleting a namespace takes at least five seconds; recreating it waits for
    # that.
    if not _is_namespace(made):
        _wait_gone(run, made, deadline)


def _is_namespace(made: dict[str, Any]) -> bool:
    return (made["apiVersion"], made["kind"]) == ("v1", "Namespace")


def _wait_gone(run: _Run, made: dict[str, Any], deadline: float) -> None:
    while run.objects.find_one(made) is not None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _wait_for_last_test(run: _Run, wanted: dict[str, Any]) -> None:
    """Wait until a terminating namespace is gone."""
    if _is_namespace(wanted) and _is_leaving(run.objects.find_one(wanted)):
        _wait_gone(run, wanted, time.monotonic() + run.test.timeouts_s["cleanup"])


def _is_leaving(found: dict[str, Any] | None) -> bool:
    return found is not None and "deletionTimestamp" in found["metadata"]


def _clean_up(run: _Run, names: Names) -> None:
    for step in reversed(run.test.steps):
        for operation in step.cleanups:
            with contextlib.suppress(Failed, Error):
                _run_operation(run, operation, names)
    deadline = time.monotonic() + run.test.timeouts_s["cleanup"]
    for made in reversed(run.created):
        _remove(run, made, deadline)
    if any(made["kind"].endswith("AdmissionPolicy") for made in run.created):
        time.sleep(FORGOTTEN_S)
    if run.own_namespace is not None:
        # It deletes its content, has a unique name, and is not waited for.
        _remove(run, run.own_namespace, deadline)


def _run_operation(run: _Run, operation: Operation, outer: Names) -> dict[str, Any]:
    """Run one operation; return the bindings that it outputs."""
    names = {**outer}
    names |= _bound(operation.bindings, names)
    match operation.name:
        case "apply" | "create" | "patch" | "update":
            found = _write(run, operation, names)
        case "assert" | "error":
            found = _hold(run, operation, names)
        case "delete":
            found = _delete(run, operation, names)
        case "script" | "command":
            found = run_command(run.shell, operation, names)
        case "sleep":
            given_s = duration_s(operation.fields["duration"])
            is_brief = operation.place in run.brief and given_s >= LONG_S
            time.sleep(SETTLED_S if is_brief else given_s)
            found = {}
        case "wait":
            wait(run.shell, operation, names)
            found = {}
        case _:
            assert operation.name in COLLECTORS
            with contextlib.suppress(Failed):
                collect(run.shell, operation, names)
            found = {}
    return _bound(operation.outputs, {**names, **found})


def _write(run: _Run, operation: Operation, names: Names) -> dict[str, Any]:
    how = {
        "apply": run.objects.apply,
        "create": run.objects.create,
        "patch": run.objects.patch,
        "update": run.objects.update,
    }[operation.name]
    dry_run = bool(operation.fields.get("dryRun", False))
    for raw in _read(run, operation, names):
        _wait_for_last_test(run, raw)

        def attempt(raw: dict[str, Any] = raw) -> str:
            try:
                wanted = run.objects.locate(raw)
                # Objects that existed before the test stay after it.
                is_new = operation.name == "create" or (
                    operation.name == "apply" and run.objects.find_one(wanted) is None
                )
                written = how(wanted, dry_run=dry_run)
            except Refused as refused:
                return _outcome(operation, raw, names, _message(refused))
            if is_new and not dry_run:
                run.created.append(run.objects.locate(written))
            if (
                run.hooks.await_policy
                and written["kind"] in _IN_REVIEWS
                and not dry_run
            ):
                metadata = written["metadata"]
                key = written["kind"], metadata.get("namespace", ""), metadata["name"]
                run.hooks.await_policy(key, metadata["generation"])
            return _outcome(operation, written, names, None)

        _until(operation, attempt)
    return {}


def _outcome(
    operation: Operation, item: dict[str, Any], names: Names, error: str | None
) -> str:
    """Return the error of an outcome; "" if it is as expected."""
    bound = {**names, "error": error}
    for expectation in operation.expect:
        if expectation.match is not None and problems(expectation.match, item, bound):
            continue
        return "; ".join(problems(expectation.check, item, bound))
    return error or ""


def _hold(run: _Run, operation: Operation, names: Names) -> dict[str, Any]:
    is_error = operation.name == "error"
    for raw in _read(run, operation, names):

        def attempt(raw: dict[str, Any] = raw) -> str:
            try:
                found = run.objects.find(run.objects.locate(raw))
            except Refused as refused:
                return "" if is_error else _message(refused)
            wrong = [problems(raw, as_called_by_service(one), names) for one in found]
            if is_error:
                return "" if all(wrong) else "an object is there that must not be"
            if not found:
                return "no actual resource found"
            return "" if not all(wrong) else "; ".join(wrong[0])

        _until(operation, attempt)
    return {}


def _delete(run: _Run, operation: Operation, names: Names) -> dict[str, Any]:
    if "ref" in operation.fields:
        wanted = [_named(fill(operation.fields["ref"], names))]
    else:
        wanted = _read(run, operation, names)
    propagation = operation.fields.get("deletionPropagationPolicy", "Background")
    for raw in wanted:

        def attempt(raw: dict[str, Any] = raw) -> str:
            try:
                found = run.objects.find(run.objects.locate(raw))
                for one in found:
                    run.objects.delete(one, propagation)
            except Refused as refused:
                return _outcome(operation, raw, names, _message(refused))
            if operation.expect:
                return _outcome(operation, raw, names, None)
            return f"still there: {len(found)}" if found else ""

        _until(operation, attempt)
    return {}


def _named(ref: dict[str, Any]) -> dict[str, Any]:
    meta = {key: ref[key] for key in ("name", "namespace", "labels") if key in ref}
    return {"apiVersion": ref["apiVersion"], "kind": ref["kind"], "metadata": meta}


def _read(run: _Run, operation: Operation, names: Names) -> list[dict[str, Any]]:
    """Return the operation's objects; for expected objects, only fill the reference."""
    objects = read_objects(operation.fields, run.test.folder, names)
    if not operation.is_templated:
        return objects
    how = fill_reference if operation.name in ("assert", "error") else fill
    return [how(one, names) for one in objects]


def _bound(bindings: tuple[Binding, ...], names: Names) -> dict[str, Any]:
    """Evaluate bindings in order; each can use the previous ones."""
    found: dict[str, Any] = {}
    for binding in bindings:
        found[binding.name] = fill(binding.value, {**names, **found})
    return found


def _until(operation: Operation, attempt: Callable[[], str]) -> None:
    """Repeat until there is no error; raises Failed when the time is over."""
    deadline = time.monotonic() + operation.timeout_s
    for wrong in _attempts(attempt):
        if not wrong:
            return
        if time.monotonic() > deadline:
            raise Failed(f"{operation.place}: {wrong}")


def _attempts(attempt: Callable[[], str]) -> Iterator[str]:
    while True:
        yield attempt()
        time.sleep(POLL_S)


def _message(refused: Refused) -> str:
    body = refused.body
    return str(body.get("message", body)) if isinstance(body, dict) else str(body)
