"""An API server in a thread, small but strict: list, watch, pages, conflicts, faults.

It stores objects by path, assigns versions, serves pages by ``continue`` and watches
from a version (410 Gone before ``compacted``), and merges patches. On demand, it
simulates faults of real servers: 429, 500, cut connections, watches that fall silent.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kyverno_mp.kube.access import Access, at_url
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from tests.waiting import HANG_S

Json = Any
_OBJECT = re.compile(
    r"(?P<base>/api/v1|/apis/[^/]+/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?\Z"
)
_REVIEWS = (
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "subjectaccessreviews",
)
EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
"""The rule of cluster-admin."""


class FakeApi:
    """State and faults of one server; ``access`` contains its address."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.version = 100
        self.compacted = 0
        self.objects: dict[tuple[str, str, str, str], Json] = {}
        self.log: list[tuple[int, str, tuple[str, str, str, str], Json]] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.faults: list[tuple[str, Json]] = []
        """(regex of "METHOD path", fault). Faults: int = status, ("retry", status,
        seconds), "cut" = close without an answer, "hang" = no answer on an open
        connection, "expire" = 410 of this page, an object = this Status."""
        self.answers: dict[str, Json] = {}
        """Fixed answers of GET by path, e.g. discovery documents."""
        self.may: Callable[[Json], bool] = self.is_granted
        """Answers of access reviews, computed from their resourceAttributes. A function
        of a test is an authorizer that lists no rules, such as a webhook."""
        self.grants: list[tuple[str, Json]] = [("", EVERYTHING)]
        """Rules and the namespaces of their RoleBindings, "" = ClusterRoleBinding."""
        self.on_request: Callable[[str, str], None] = lambda _method, _target: None
        """Called with each request before it is served."""
        self.deletions: list[tuple[tuple[str, str, str, str], Json]] = []
        """Successful deletions: the object and the DeleteOptions."""
        self.connections = 0
        self.watching = 0
        self.silent = False
        self.bookmarks = True
        self.token = ""
        self.clients: list[Client] = []
        self.stopping = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True

    def is_granted(self, asked: Json) -> bool:
        """Return whether a grant covers the attributes, as RBAC defines it."""
        for namespace, rule in self.grants:
            names = rule.get("resourceNames")
            if (
                namespace in ("", asked.get("namespace"))
                and {"*", asked["verb"]} & set(rule["verbs"])
                and {"*", asked.get("group", "")} & set(rule["apiGroups"])
                and {"*", asked["resource"]} & set(rule["resources"])
                and (not names or asked.get("name") in names)
            ):
                return True
        return False

    def rules_in(self, namespace: str) -> Json:
        """Return the status of a SelfSubjectRulesReview."""
        if self.may != self.is_granted:
            return {"resourceRules": [], "incomplete": True}
        rules = [rule for at, rule in self.grants if at in ("", namespace)]
        # K8S: the order of the rules is random.
        turn = len(self.requests) % max(1, len(rules))
        return {"resourceRules": rules[turn:] + rules[:turn], "incomplete": False}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def access(self) -> Access:
        return at_url(self.url)

    def client(self, access: Access | None = None) -> Client:
        """Return a client that is closed together with the server."""
        client = Client(Pool(access or self.access), "test")
        self.clients.append(client)
        return client

    def put(self, path: str, **fields: Json) -> Json:
        """Store an object at ``path`` as if a client had written it."""
        return self.store(key_of_path(path), dict(fields))

    def remove(self, path: str) -> None:
        self.forget(key_of_path(path))

    def store(self, key: tuple[str, str, str, str], raw: Json) -> Json:
        with self.lock:
            known = self.objects.get(key)
            self.version += 1
            metadata = dict(raw.get("metadata") or {})
            metadata["name"] = key[3]
            if key[1]:
                metadata["namespace"] = key[1]
            metadata["resourceVersion"] = str(self.version)
            uid = known["metadata"]["uid"] if known else f"u{self.version}"
            metadata.setdefault("uid", uid)
            stored = {**raw, "metadata": metadata}
            self.objects[key] = stored
            kind = "MODIFIED" if known else "ADDED"
            self.log.append((self.version, kind, key, stored))
            self.lock.notify_all()
            return stored

    def forget(self, key: tuple[str, str, str, str]) -> Json:
        with self.lock:
            raw = self.objects.pop(key)
            self.version += 1
            metadata = {**raw["metadata"], "resourceVersion": str(self.version)}
            gone = {**raw, "metadata": metadata}
            self.log.append((self.version, "DELETED", key, gone))
            self.lock.notify_all()
            return gone

    def fault(self, pattern: str, *what: Json) -> None:
        """Make the next matching requests fail, one after the other."""
        with self.lock:
            self.faults += [(pattern, one) for one in what]

    def compact(self) -> None:
        """Drop the history: watches from earlier versions get 410 Gone."""
        with self.lock:
            self.compacted = self.version
            self.log.clear()

    def drop_watches(self) -> None:
        """End all running watches without an event."""
        with self.lock:
            self.stopping = True
            self.lock.notify_all()
            while self.watching:
                self.lock.wait(HANG_S)
            self.stopping = False

    def count(self, pattern: str) -> int:
        """Count requests whose "METHOD target" matches."""
        return sum(
            bool(re.search(pattern, f"{method} {target}"))
            for method, target, _ in list(self.requests)
        )

    def calls(self) -> int:
        """Count all requests but watches, which begin when their thread gets to it."""
        return self.count(r"^(?!GET \S*[?&]watch=)")

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        with self.lock:
            self.stopping = True
            self.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def running() -> Iterator[FakeApi]:
    """Serve until the block ends."""
    api = FakeApi()
    thread = threading.Thread(target=api.serve, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        for client in api.clients:
            client.close()
        api.close()
        thread.join()


def key_of_path(path: str) -> tuple[str, str, str, str]:
    found = _OBJECT.match(path)
    assert found, path
    return (
        found["base"],
        unquote(found["namespace"] or ""),
        found["plural"],
        unquote(found["name"] or ""),
    )


def merged(target: Json, patch: Json) -> Json:
    """Merge as in RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def patched(target: Json, operations: list[Json]) -> Json | None:
    """Apply add, replace and remove of RFC 6902; return None if one does not apply."""
    found = json.loads(json.dumps(target))
    for one in operations:
        *path, last = one["path"].removeprefix("/").split("/")
        try:
            holder = found
            for part in path:
                holder = holder[int(part) if isinstance(holder, list) else part]
            name = int(last) if isinstance(holder, list) else last
            if one["op"] != "add":
                del holder[name]
            if one["op"] == "remove":
                continue
            if isinstance(holder, list) and name <= len(holder):
                holder.insert(name, one["value"])
            elif isinstance(holder, dict):
                holder[name] = one["value"]
            else:
                return None
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _is_selected(raw: Json, query: dict[str, str]) -> bool:
    """Apply the label selector of TTL watches; other selectors match everything."""
    label = query.get("labelSelector") or ""
    field = query.get("fieldSelector") or ""
    metadata = raw["metadata"]
    if label == "cleanup.kyverno.io/ttl":
        return label in (metadata.get("labels") or {})
    if field.startswith("metadata.name="):
        return field == f"metadata.name={metadata['name']}"
    return True


def _handler_of(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.api = api
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: FakeApi

    def setup(self) -> None:
        with self.api.lock:
            self.api.connections += 1
        super().setup()

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def _serve(self) -> None:
        api = self.api
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        if len(body) < length:
            # The client closed the connection while it sent the request.
            self.close_connection = True
            return
        with api.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            api.requests.append((self.command, self.path, headers))
        api.on_request(self.command, self.path)
        fault = self._fault()
        if fault == "cut":
            self.close_connection = True
            return
        if fault is not None:
            self._fail(fault)
            return
        if api.token and headers.get("authorization") != f"Bearer {api.token}":
            self._status(401, "Unauthorized")
            return
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path in api.answers:
            self._json(200, api.answers[parts.path])
            return
        found = _OBJECT.match(parts.path)
        if not found:
            self._status(404, "NotFound")
            return
        self._answer(found, query, json.loads(body) if body else None)

    def _fault(self) -> Json:
        line = f"{self.command} {self.path}"
        with self.api.lock:
            for index, (pattern, what) in enumerate(self.api.faults):
                if re.search(pattern, line):
                    del self.api.faults[index]
                    return what
        return None

    def _fail(self, fault: Json) -> None:
        if fault == "hang":
            with self.api.lock:
                self.api.lock.wait_for(lambda: self.api.stopping)
            self.close_connection = True
        elif fault == "expire":
            self._status(410, "Expired")
        elif isinstance(fault, dict):
            self._json(fault["code"], {"kind": "Status", **fault})
        elif isinstance(fault, tuple):
            _, code, seconds = fault
            self._status(code, "TooManyRequests", {"Retry-After": str(seconds)})
        else:
            self._status(fault, "InternalError")

    def _answer(self, found: re.Match[str], query: dict[str, str], body: Json) -> None:
        api = self.api
        key = key_of_path(self.path.split("?")[0])
        if found["subresource"]:
            key = (*key[:3], unquote(found["name"]))
        if query.get("watch") == "1":
            self._watch(key, query)
            return
        with api.lock:
            if not key[3] and self.command == "GET":
                self._list(key, query)
            elif self.command == "POST" and key[2] in _REVIEWS:
                self._review(key[2], body)
            elif self.command == "POST":
                self._create(key, body)
            else:
                self._one(key, found["subresource"] or "", body)

    def _list(self, key: tuple[str, str, str, str], query: dict[str, str]) -> None:
        api = self.api
        names = sorted(
            one
            for one in api.objects
            if (one[0], one[2]) == (key[0], key[2])
            and key[1] in ("", one[1])
            and _is_selected(api.objects[one], query)
        )
        limit = int(query.get("limit") or 0) or len(names)
        start = int(query.get("continue") or 0)
        rest = names[start + limit :]
        self._json(
            200,
            {
                "kind": "List",
                "metadata": {
                    "resourceVersion": str(api.version),
                    "continue": str(start + limit) if rest else "",
                },
                "items": [api.objects[one] for one in names[start : start + limit]],
            },
        )

    def _review(self, plural: str, body: Json) -> None:
        spec = body["spec"]
        if plural == "selfsubjectrulesreviews":
            status = self.api.rules_in(spec["namespace"])
        else:
            status = {"allowed": self.api.may(spec["resourceAttributes"])}
        self._json(201, {**body, "status": status})

    def _create(self, key: tuple[str, str, str, str], body: Json) -> None:
        key = (*key[:3], body["metadata"]["name"])
        if key in self.api.objects:
            self._status(409, "AlreadyExists")
        else:
            self._json(201, self.api.store(key, body))

    def _one(
        self, key: tuple[str, str, str, str], subresource: str, body: Json
    ) -> None:
        api = self.api
        known = api.objects.get(key)
        applies = "apply-patch" in (self.headers.get("content-type") or "")
        if known is None and not applies:
            self._status(404, "NotFound")
        elif self.command == "GET":
            self._json(200, known)
        elif self.command == "DELETE":
            wanted = (body or {}).get("preconditions") or {}
            metadata = (known or {}).get("metadata") or {}
            if any(metadata.get(name) != value for name, value in wanted.items()):
                self._status(409, "Conflict")
            else:
                api.deletions.append((key, body))
                self._json(200, api.forget(key))
        elif "dryRun=All" in self.path:
            asked = body if self.command == "PUT" else merged(known or {}, body)
            self._json(200, asked)
        elif isinstance(body, list):
            self._patch(key, known, patched(known, body))
        elif self.command == "PATCH":
            self._merge(key, known, body)
        else:
            self._replace(key, known, subresource, body)

    def _merge(
        self, key: tuple[str, str, str, str], known: Json | None, body: Json
    ) -> None:
        """Merge a patch. K8S: the version of an object to create is ignored."""
        given = body.get("metadata") or {}
        live = (known or {}).get("metadata") or {}
        version, uid = given.get("resourceVersion"), given.get("uid")
        if known and version not in (None, live["resourceVersion"]):
            self._status(409, "Conflict")
        elif uid not in (None, live.get("uid")):
            self._status(*((422, "Invalid") if known else (409, "Conflict")))
        else:
            self._json(200, self.api.store(key, merged(known or {}, body)))

    def _patch(
        self, key: tuple[str, str, str, str], known: Json, wanted: Json | None
    ) -> None:
        if wanted is None:
            self._status(422, "Invalid")
        elif (
            wanted["metadata"]["resourceVersion"]
            != known["metadata"]["resourceVersion"]
        ):
            self._status(409, "Conflict")
        else:
            self._json(200, self.api.store(key, wanted))

    def _replace(
        self,
        key: tuple[str, str, str, str],
        known: Json,
        subresource: str,
        body: Json,
    ) -> None:
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version not in (None, known["metadata"]["resourceVersion"]):
            self._status(409, "Conflict")
            return
        if subresource == "status":
            body = {**known, "status": body.get("status")}
        self._json(200, self.api.store(key, body))

    def _watch(self, key: tuple[str, str, str, str], query: dict[str, str]) -> None:
        api = self.api
        seen = int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with api.lock:
            api.watching += 1
        try:
            while True:
                with api.lock:
                    if seen < api.compacted:
                        break
                    events = [one for one in api.log if one[0] > seen]
                    if not events:
                        if api.stopping:
                            return
                        api.lock.wait(0.5)
                        continue
                    seen = events[-1][0]
                    if api.silent:
                        continue
                for _, kind, name, raw in events:
                    same = (name[0], name[2]) == (key[0], key[2])
                    if not same or key[1] not in ("", name[1]):
                        continue
                    # K8S: for a watch, an object that no longer matches the selector is
                    # deleted.
                    selected = _is_selected(raw, query)
                    self._event(kind if selected else "DELETED", raw)
                if api.bookmarks:
                    mark = {"metadata": {"resourceVersion": str(seen)}}
                    self._event("BOOKMARK", mark)
            # Also a running watch must not miss events that were dropped before it
            # has read them.
            self._event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
            self._chunk(b"")
        except OSError:
            return
        finally:
            with api.lock:
                api.watching -= 1
                api.lock.notify_all()

    def _event(self, kind: str, raw: Json) -> None:
        self._chunk(json.dumps({"type": kind, "object": raw}).encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _status(
        self, code: int, reason: str, headers: dict[str, str] | None = None
    ) -> None:
        raw = {
            "kind": "Status",
            "code": code,
            "reason": reason,
            "message": f"{reason} of {self.path}",
        }
        self._json(code, raw, headers)

    def _json(
        self, code: int, raw: Json, headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(raw).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
