"""Resources can be read from URLs, except as the first path; errors name the URL."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.cli.sources.url import fetch
from tests.unit.cli.conftest import Command, pod


class _Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = pod("far", "nginx:latest").encode()
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/pods")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path != "/pods":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress the server's log."""


@pytest.fixture
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["pods", "moved"])
def test_later_path(
    command: Command, policy_file: Path, pods_file: Path, site: str, path: str
) -> None:
    done = command("apply", policy_file, "-r", pods_file, "-r", f"{site}/{path}")
    assert "Applying 3 policy rule(s) to 3 resource(s)" in done.out
    assert "pass: 1, fail: 2," in done.out


def test_first_path(command: Command, policy_file: Path, site: str) -> None:
    done = command("apply", policy_file, "-r", f"{site}/pods")
    assert (done.code, "failed to load resources (stat" in done.err) == (1, True)


def test_missing_url_is_skipped(
    command: Command, policy_file: Path, pods_file: Path, site: str
) -> None:
    url = f"{site}/none"
    done = command("apply", policy_file, "-r", pods_file, "-r", url)
    line = "-" * 70
    assert (
        f"\n{line}\nfailed to load resources: {url}. "
        f"\nerror: failed to process {url}: HTTP 404\n{line}\n"
    ) in done.out
    assert "pass: 1, fail: 1," in done.out


def test_size(site: str) -> None:
    with pytest.raises(OSError, match="larger than 10 bytes"):
        fetch(f"{site}/pods", bytes_max=10)
