"""An unreadable entry is reported once for each reason, by name and uid."""

from kyverno_mp.controllers.global_context_events import GlobalContextEvents
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo
from tests.unit.kube.fake_api import running

ENTRIES = "/apis/kyverno.io/v2beta1/globalcontextentries"


def test_each_failure_is_reported_once() -> None:
    with running() as api:
        uid = api.put(f"{ENTRIES}/a", spec={})["metadata"]["uid"]
        submitted: list[EventInfo] = []

        def submit(info: EventInfo) -> bool:
            submitted.append(info)
            return True

        events = GlobalContextEvents(Objects(api.client()), submit)
        good, bad = (True, "", None), (False, "no answer", None)
        api.fault("GET", 403)
        for states in (
            {"a": good, "b": bad},
            {"a": bad},
            {"a": bad},
            {"a": (False, "other", None)},
            {"a": good},
            {"a": bad},
            {},
        ):
            events.report(states)
        assert [one.note for one in submitted] == ["no answer", "other", "no answer"]
        (first, *_) = submitted
        assert first.regarding.as_json() == {
            "apiVersion": "kyverno.io/v2beta1",
            "kind": "GlobalContextEntry",
            "name": "a",
            "uid": uid,
        }
        assert (first.reason, first.action) == ("PolicyError", "Retrying")
        assert first.controller == "globalcontext-controller"
