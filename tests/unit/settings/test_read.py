"""Reading settings: defaults, overrides, and every problem told at once."""

import dataclasses

import pytest

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.fields import facts_of, variable_of
from kyverno_mp.settings.read import read, resolve
from kyverno_mp.settings.settings import Settings
from kyverno_mp.settings.table import table


def test_defaults_are_the_documented_ports() -> None:
    settings = read({})
    assert (settings.webhook_port, settings.health_port) == (9443, 9080)


def test_a_flag_wins_over_the_environment() -> None:
    env = {"KYVERNO_MP_WEBHOOK_PORT": "1", "KYVERNO_MP_HEALTH_PORT": "2"}
    settings = read(env, {"webhook_port": 3, "health_port": None})
    assert (settings.webhook_port, settings.health_port) == (3, 2)


def test_an_empty_variable_means_the_default() -> None:
    assert read({"KYVERNO_MP_WEBHOOK_PORT": ""}).webhook_port == 9443


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WEBHOOK_PORT", "abc", "expected a whole number of port"),
        ("WEBHOOK_PORT", "70000", "expected 0 to 65535 port"),
        ("DRAIN_TIMEOUT_S", "nan", "expected 0 to 3600 s"),
        ("STANDALONE", "maybe", "expected true or false"),
        ("LOG_LEVEL", "loud", "expected one of debug, info, warning, error"),
        ("TLS_CERT_FILE", "x", "give both or neither"),
        # What os.environ makes of the byte FF.
        ("EXCLUDE_USERNAMES", "\udcff", "expected UTF-8"),
        ("HEALTH_PORT", "9443", "same as KYVERNO_MP_WEBHOOK_PORT"),
    ],
)
def test_a_bad_value_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingInvalid, match=words) as caught:
        read({f"KYVERNO_MP_{name}": value})
    assert caught.value.code == "settings.invalid"


def test_all_problems_are_told_at_once() -> None:
    env = {"KYVERNO_MP_WEBHOOK_PROT": "1", "KYVERNO_MP_HEALTH_PORT": "x", "HOME": "/"}
    with pytest.raises(SettingInvalid) as caught:
        read(env)
    assert "the nearest is KYVERNO_MP_WEBHOOK_PORT" in caught.value.message
    assert "KYVERNO_MP_HEALTH_PORT='x'" in caught.value.message


def test_resolve_works_out_workers_and_folder() -> None:
    settings = resolve(read({}), {})
    assert settings.webhook_workers >= 1
    assert settings.runtime_dir.endswith("-9443")


def test_the_table_has_every_setting_once() -> None:
    rows = table()
    for field in dataclasses.fields(Settings):
        assert rows.count(f"`{variable_of(field)}`") == 1
        assert facts_of(field).doc in rows
