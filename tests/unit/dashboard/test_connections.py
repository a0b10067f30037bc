"""Many clients at once: authorised readers get pages despite the others' requests.

A failure means: requests without a token displace readers' requests, pages queue
without a limit, or pages are rendered for closed connections.
"""

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from kyverno_mp.dashboard.site import Response, Site
from kyverno_mp.limits import DASHBOARD_CONNECTIONS_MAX, DASHBOARD_PAGES_MAX
from tests.unit.dashboard.world import World, serving
from tests.waiting import HANG_S, wait_for

TOKEN = "a-token-of-some-length"


class Slow:
    """A site that renders a page when the test permits it and records its actions."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._permitted, self._permits = os.pipe()
        self._told, self._tells = os.pipe()
        os.set_blocking(self._told, False)
        self._seen = ""

    def close(self) -> None:
        for one in (self._permitted, self._permits, self._told, self._tells):
            os.close(one)

    def refusal(self, headers: Mapping[str, str]) -> Response | None:
        os.write(self._tells, f"asked {headers.get('name', '')}\n".encode())
        return self._site.refusal(headers)

    def respond(
        self, method: str, path: str, query: str, headers: Mapping[str, str]
    ) -> Response:
        os.write(self._tells, f"writes {headers['name']}\n".encode())
        os.read(self._permitted, 1)
        return self._site.respond(method, path, query, headers)

    def permit(self, pages: int) -> None:
        os.write(self._permits, b"." * pages)

    def told(self) -> Sequence[str]:
        """Return the actions so far."""
        with suppress(BlockingIOError):
            self._seen += os.read(self._told, 2**16).decode()
        return self._seen.splitlines()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    (tmp_path / "token").write_text(TOKEN)
    with closing(Slow(World(token_file=tmp_path / "token").site)) as one:
        yield one


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=HANG_S)) as link:
        yield link


def head(name: str, token: str = TOKEN) -> bytes:
    fields = f"Name: {name}\r\nAuthorization: Bearer {token}"
    return f"GET / HTTP/1.1\r\n{fields}\r\n\r\n".encode()


def answer(link: socket.socket) -> str:
    """Return the whole response, or "" if the connection was closed without one."""
    found = b""
    try:
        while part := link.recv(2**16):
            found += part
    except ConnectionError:
        pass
    return found.decode()


def test_requests_without_the_token_close_no_authorized_connection(slow: Slow) -> None:
    """Requests without a token are answered at once, before the reader's page."""
    with serving(slow) as port, ExitStack() as stack:
        reader = stack.enter_context(connected(port))
        reader.sendall(head("reader"))
        wait_for(lambda: "writes reader" in slow.told())
        for number in range(2 * DASHBOARD_CONNECTIONS_MAX):
            stack.enter_context(connected(port))
            guesser = stack.enter_context(connected(port))
            guesser.sendall(head(f"{number}", "another-token-of-length"))
            assert answer(guesser).startswith("HTTP/1.1 401 ")
        slow.permit(1)
        assert answer(reader).startswith("HTTP/1.1 200 ")
        assert [one for one in slow.told() if "writes" in one] == ["writes reader"]


def test_waiting_pages_are_bounded(slow: Slow) -> None:
    further = 3
    found: list[str] = []

    def read(number: int) -> None:
        with connected(port) as link:
            link.sendall(head(f"{number}"))
            found.append(answer(link))

    with serving(slow) as port:
        readers = [
            threading.Thread(target=read, args=(number,))
            for number in range(DASHBOARD_PAGES_MAX + further)
        ]
        for one in readers:
            one.start()
        wait_for(lambda: len(found) == further)
        for text in found:
            assert text.startswith("HTTP/1.1 503 ")
            assert "\r\nRetry-After: 1\r\n" in text
        slow.permit(DASHBOARD_PAGES_MAX)
        for one in readers:
            one.join()
        served = [one for one in found if one.startswith("HTTP/1.1 200 ")]
        assert len(served) == DASHBOARD_PAGES_MAX


def test_page_is_not_rendered_for_a_closed_connection(slow: Slow) -> None:
    with serving(slow) as port, connected(port) as first, connected(port) as last:
        first.sendall(head("first"))
        wait_for(lambda: "writes first" in slow.told())
        with connected(port) as leaving:
            leaving.sendall(head("leaving"))
            wait_for(lambda: "asked leaving" in slow.told())
        last.sendall(head("last"))
        wait_for(lambda: "asked last" in slow.told())
        slow.permit(3)
        for one in (first, last):
            assert answer(one).startswith("HTTP/1.1 200 ")
        written = [one for one in slow.told() if "writes" in one]
        assert written == ["writes first", "writes last"]
