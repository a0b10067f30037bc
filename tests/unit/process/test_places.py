"""The runtime folder, the certificate and the board."""

import os
import shutil
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from kyverno_mp.errors import SettingInvalid, StateError
from kyverno_mp.process.startup import runtime_dir
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.process.startup.listen import listen, port_of
from kyverno_mp.process.supervision.status import (
    ProcessState,
    SupervisorStatus,
    read_supervisor_status,
    write_supervisor_status,
)
from kyverno_mp.queues.journal import EVENTS, Journal, JournalReader


def test_folder_is_private_empty_and_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    runtime_dir.prepare(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (path / "tls" / "left").write_text("x")
    monkeypatch.setattr(runtime_dir, "_LOCK_WAIT_S", 0.0)
    with pytest.raises(StateError) as caught:
        runtime_dir.prepare(path)
    assert caught.value.code == "process.already_running"
    assert (path / "tls" / "left").exists()


def test_start_keeps_only_the_journals(
    tmp_path: Path,
) -> None:
    """The folder is on a volume of the pod and outlives the container."""
    path = tmp_path / "run"
    lock = runtime_dir.prepare(path)
    journal = Journal.claim(EVENTS.folder(path), 10)
    journal.append(b"written before the restart")
    journal.close()
    (path / "snapshot" / "policies.segment").write_text("x")
    os.close(lock)
    os.close(runtime_dir.prepare(path))
    assert list((path / "snapshot").iterdir()) == []
    reader = JournalReader(EVENTS.folder(path))
    (record,) = reader.records()
    assert record.content == b"written before the restart"
    reader.close()


def test_orderly_exit_leaves_only_unread_records(tmp_path: Path) -> None:
    path = tmp_path / "run"
    os.close(runtime_dir.prepare(path))
    journal = Journal.claim(EVENTS.folder(path), 10)
    journal.append(b"not written to the API server yet")
    runtime_dir.remove(path)
    assert [one.name for one in path.iterdir()] == ["journals"]
    reader = JournalReader(EVENTS.folder(path))
    for record in reader.records():
        record.done()
    reader.close()
    journal.close()
    runtime_dir.remove(path)
    assert not path.exists()


def test_symlink_in_place_of_the_journals_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    os.close(runtime_dir.prepare(path))
    shutil.rmtree(path / "journals")
    (tmp_path / "elsewhere").mkdir()
    (path / "journals").symlink_to(tmp_path / "elsewhere")
    os.close(runtime_dir.prepare(path))
    assert not (path / "journals").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_uncreatable_folder_is_reported_with_its_setting(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SettingInvalid, match=r"^KYVERNO_MP_RUNTIME_DIR=") as caught:
            runtime_dir.prepare(path)
        assert caught.value.code == "settings.runtime_dir"


def test_folder_open_to_others_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(SettingInvalid, match="0700"):
        runtime_dir.prepare(path)


def test_symlink_is_not_accepted_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(SettingInvalid):
        runtime_dir.prepare(tmp_path / "run")


def test_certificate_names_the_service_and_verifies(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    files = make(tmp_path, "kyverno", now)
    assert files.ca is not None
    for path in (files.cert, files.key, files.ca):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert "kyverno-svc.kyverno.svc" in names.value.get_values_for_type(x509.DNSName)
    assert certificate.not_valid_after_utc > now + timedelta(days=300)
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(files.ca.read_bytes())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    assert ssl.create_default_context(cafile=str(files.ca)).get_ca_certs()


def test_supervisor_status_round_trip(tmp_path: Path) -> None:
    assert read_supervisor_status(tmp_path) is None
    supervisor = SupervisorStatus(
        pid=1, draining=True, processes=(ProcessState("a", 2, 3),)
    )
    write_supervisor_status(tmp_path, supervisor)
    assert read_supervisor_status(tmp_path) == supervisor
    (tmp_path / "supervisor_status.json").write_text("{")
    assert read_supervisor_status(tmp_path) is None


def test_port_in_use_is_reported() -> None:
    with listen("127.0.0.1", 0, 1) as first:
        port = port_of(first)
        with pytest.raises(StateError) as caught:
            listen("127.0.0.1", port, 1, "--port")
        assert caught.value.message == (
            f"cannot listen on 127.0.0.1:{port} (--port): another program listens there"
        )


def test_no_host_means_both_families() -> None:
    with listen("", 0, 1) as listener:
        assert listener.family in (socket.AF_INET6, socket.AF_INET)
        with socket.create_connection(("127.0.0.1", port_of(listener)), 2):
            pass
