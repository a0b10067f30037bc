"""Find and replace the callers' secret segment in stored webhook configurations.

Room: controllers. Takes: a stored configuration, WebhookOptions. Gives: its segments,
its webhooks with another segment. Next: reconcile.py; leader/control/wire.py watches.
Source: docs/SECURITY.md (the caller).

SAFETY: a segment is written only into webhooks that call our Service, because users can
add webhooks of other services to a configuration that they manage.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.snapshot.callers import split_path
from kyverno_mp.values.jsonvalue import Json


class _Service(msgspec.Struct):
    namespace: str = ""
    name: str = ""
    path: str = ""


class _Client(msgspec.Struct):
    url: str | None = None
    service: _Service | None = None


class _Webhook(msgspec.Struct):
    client: _Client = msgspec.field(name="clientConfig", default_factory=_Client)


class _Configuration(msgspec.Struct):
    webhooks: tuple[_Webhook, ...] | None = None


_DECODER = msgspec.json.Decoder(_Configuration)


def segments_in(options: WebhookOptions, raw: msgspec.Raw) -> bytes:
    """Return the segments of the webhooks that call us, "" for one without.

    Shape: a line ``=<segment>`` for each; ``segments_of`` reads it.
    """
    found = set()
    for webhook in _DECODER.decode(raw).webhooks or ():
        service, url = webhook.client.service, webhook.client.url
        if service is not None:
            if (service.namespace, service.name) == (
                options.namespace,
                options.service,
            ):
                found.add(split_path(service.path)[0])
        elif url and options.server and urlsplit(url).netloc == options.server:
            found.add(split_path(urlsplit(url).path)[0])
    return "".join(f"={one}\n" for one in sorted(found)).encode()


def segments_of(texts: Iterable[bytes]) -> frozenset[str]:
    """Return the segments in several results of ``segments_in``."""
    lines = (line for text in texts for line in text.decode().splitlines())
    return frozenset(line.removeprefix("=") for line in lines)


def with_caller(client: Json, desired: Json) -> Json:
    """Return a webhook's clientConfig with the CA bundle and segment of ``desired``.

    ``desired`` is the clientConfig of any of our webhooks. A webhook of another service
    is returned unchanged.
    """
    ours, theirs = desired.get("service"), client.get("service")
    if ours and theirs:
        if any(ours[name] != theirs.get(name) for name in ("namespace", "name")):
            return client
        path = _with_segment(theirs.get("path") or "", ours["path"])
        moved: Json = {"service": {**theirs, "path": path}}
    elif desired.get("url") and client.get("url"):
        before, wanted = urlsplit(client["url"]), urlsplit(desired["url"])
        if before.netloc != wanted.netloc:
            return client
        path = _with_segment(before.path, wanted.path)
        moved = {"url": before._replace(path=path).geturl()}
    else:
        return client
    return {**client, **moved, "caBundle": desired["caBundle"]}


def _with_segment(path: str, desired: str) -> str:
    segment, rest = split_path(desired)[0], split_path(path)[1]
    return f"/{segment}{rest}" if segment else rest
