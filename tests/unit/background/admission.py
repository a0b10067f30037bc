"""Changes by users: each is admitted by our webhook and then stored.

The webhook's records pass through its journal and the leader's writer, which turns them
into UpdateRequests on the fake API server.
"""

import json
from pathlib import Path
from typing import Any

from kyverno_mp.leader.triggers.writer import TriggerWriter
from kyverno_mp.queues.journal import LOST, TRIGGERS, Journal, JournalReader
from kyverno_mp.webhook.triggers.lost import LostPolicies
from kyverno_mp.webhook.triggers.sink import TriggerSink
from tests.fuzz.bench import Bench, Recorded
from tests.unit.background.world import POLICIES, stored
from tests.unit.kube.fake_api import FakeApi

Json = Any
POOL = "system:serviceaccount:kyverno:kyverno-background-controller"


class User:
    """Creates, updates and deletes objects; reviews use the current policies."""

    def __init__(self, api: FakeApi, folder: Path, most: int = 1000) -> None:
        """``most`` is the capacity of the journal in reviews."""
        folder.mkdir(exist_ok=True)
        self.api = api
        self.name = "alice"
        self.is_proved = True
        """Whether reviews prove that the API server sends them."""
        self.records = Recorded()
        self._time_ns = 1_760_000_000 * 10**9  # in 2025
        self._journal = Journal.claim(folder, most, TRIGGERS.ring_bytes)
        lost_folder = folder / "lost"
        lost_folder.mkdir(exist_ok=True)
        self._lost = Journal.claim(lost_folder, 1000, LOST.ring_bytes)
        self._readers = [JournalReader(one) for one in (folder, lost_folder)]
        self._writer = TriggerWriter(
            self._readers, api.client(), "kyverno", lambda: 1000, lambda: 0.0
        )

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._journal.close()
        self._lost.close()

    def create(self, path: str, **fields: Json) -> Json:
        """Create an object."""
        self._time_ns += 1
        namespace, name = _names(path)
        metadata = {
            **fields.pop("metadata", {}),
            "name": name,
            "namespace": namespace,
            "uid": f"created-{self._time_ns}",
        }
        raw = {**fields, "metadata": metadata}
        self.review("CREATE", raw, None)
        self.api.put(path, **raw)
        self.write()
        found = stored(self.api, path)
        assert found is not None
        return found

    def update(self, path: str, **fields: Json) -> None:
        """Replace fields of an object."""
        self.api.put(path, **self.refused_update(path, write=False, **fields))
        self.write()

    def refused_update(self, path: str, *, write: bool = True, **fields: Json) -> Json:
        """Request an update that another webhook denies; return the new object."""
        old = stored(self.api, path)
        assert old is not None
        metadata = {**old["metadata"], **fields.get("metadata", {})}
        new = {**old, **fields, "metadata": metadata}
        self.review("UPDATE", new, old)
        if write:
            self.write()
        return new

    def delete(self, path: str) -> None:
        """Delete an object."""
        self.refused_delete(path, write=False)
        self.api.remove(path)
        self.write()

    def refused_delete(self, path: str, *, write: bool = True) -> None:
        """Request a deletion that another webhook denies."""
        self.review("DELETE", None, stored(self.api, path))
        if write:
            self.write()

    def review(self, operation: str, new: Json, old: Json) -> None:
        """Let the webhook answer a review; its records wait in the journal."""
        sink = self.sink()
        bench = Bench(
            self._policies(),
            triggers=sink,
            unproved_triggers=sink.without_proof(self._exists),
            is_proved=self.is_proved,
            background_user=POOL,
        )
        shown = new or old
        answer = bench.ask(
            shown,
            operation=operation,
            object=new,
            oldObject=old,
            name=shown["metadata"]["name"],
            namespace=shown["metadata"]["namespace"],
            userInfo={"username": self.name, "groups": []},
        )
        assert answer["allowed"]
        assert bench.records.errors == ["webhook.unproved"] * (not self.is_proved)

    def sink(self) -> TriggerSink:
        """Return a worker's sink; all sinks use the same journals."""
        lost = LostPolicies(self._lost, self.records, self._now_ns)
        return TriggerSink(self._journal, self.records, self._now_ns, lost)

    def write(self) -> None:
        """Let the leader write the UpdateRequests."""
        assert self._writer.step()

    def _now_ns(self) -> int:
        self._time_ns += 1
        return self._time_ns

    def _exists(self, policy: str) -> bool:
        return stored(self.api, f"{POLICIES}/{policy}") is not None

    def _policies(self) -> str:
        with self.api.lock:
            found = [
                raw
                for key, raw in self.api.objects.items()
                if key[2] in ("clusterpolicies", "policies")
            ]
        return "\n---\n".join(json.dumps(one) for one in found)


def _names(path: str) -> tuple[str, str]:
    parts = path.split("/")
    return parts[parts.index("namespaces") + 1], parts[-1]
