"""Passwords in settings: where they come from, and that they are shown nowhere."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.cli.connecting import security_settings, set_client_settings
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings, client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import ConfigError
from bkpy.metadata.connect import zookeeper_credentials

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hush-hush"
AUTH = f"bkpy:{SECRET}"
REQUIRED = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a"}


def test_a_password_from_a_variable_a_file_of_settings_or_a_file_of_its_own(tmp_path: Path) -> None:
    toml = tmp_path / "bookie.toml"
    toml.write_text(f'zookeeper_auth = "{AUTH}"\n')
    alone = tmp_path / "password"
    alone.write_text(f"{AUTH}\n")
    expected = [("digest", AUTH.encode())]
    for settings in (
        load_bookie_settings(str(toml), {}, REQUIRED),
        load_bookie_settings(None, {"BKPY_ZOOKEEPER_AUTH": AUTH}, REQUIRED),
        load_bookie_settings(None, {"BKPY_ZOOKEEPER_AUTH_FILE": str(alone)}, REQUIRED),
        client_settings(zookeeper_auth=AUTH),
        client_settings(zookeeper_auth_file=str(alone)),
    ):
        assert zookeeper_credentials(settings) == expected
        assert SECRET not in repr(settings) + str(settings) + str(settings.model_dump())
    assert zookeeper_credentials(client_settings()) == []


def test_a_flag_for_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="use BKPY_ZOOKEEPER_AUTH or a file") as caught:
        load_bookie_settings(None, {}, {**REQUIRED, "zookeeper_auth": AUTH})
    assert SECRET not in str(caught.value)


def test_the_secrets_are_known() -> None:
    assert BookieSettings.secrets() == ClientSettings.secrets() == {"zookeeper_auth"}


@pytest.mark.parametrize("text", ["nobody-knows", "user:", f":{SECRET}"])
def test_what_is_no_user_and_password_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected USER:PASSWORD") as caught:
        client_settings(zookeeper_auth=text)
    shown = "".join(traceback.format_exception(caught.value))
    assert text not in shown.replace("zookeeper_auth=text", "")
    file = tmp_path / "p"
    file.write_text(text)
    with pytest.raises(ConfigError, match="doesn't hold USER:PASSWORD") as caught:
        zookeeper_credentials(client_settings(zookeeper_auth_file=str(file)))
    assert text not in "".join(traceback.format_exception(caught.value))


def test_another_mistake_does_not_show_the_password_either() -> None:
    with pytest.raises(ConfigError) as caught:
        client_settings(zookeeper_auth=AUTH, write_window_bytes=-1, read_bytes="x")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError, match="the same thing") as caught:
        client_settings(zookeeper_auth=AUTH, zookeeper_auth_file="f")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_commands_take_what_keeps_others_out_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BKPY_ZOOKEEPER_AUTH", AUTH)
    monkeypatch.setenv("BKPY_TLS_CA_FILE", "/ca.pem")
    monkeypatch.setenv("BKPY_READ_BYTES", "7")  # a client's other settings come by --set
    try:
        set_client_settings({"tls_ca_file": "/other.pem"})
        assert security_settings() == {"zookeeper_auth": AUTH, "tls_ca_file": "/other.pem"}
    finally:
        monkeypatch.undo()
        set_client_settings({})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zookeeper_tls_certificate_file": "c"}, "needed together"),
        ({"zookeeper_tls_certificate_file": "c", "zookeeper_tls_key_file": "k"}, "zookeeper_tls_ca_file is needed"),
    ],
)
def test_settings_that_are_not_whole_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client_settings(**settings)


def test_a_user_and_password_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected USER:PASSWORD in UTF-8"):
        client_settings(zookeeper_auth="user:\udcff")
