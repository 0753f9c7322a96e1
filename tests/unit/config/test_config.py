"""Settings: sources and their priority, what is refused and how, defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError
from tests import settings_page

from bkpy.config.access_file import read_access_file
from bkpy.config.address import split_address
from bkpy.config.base import GIB, MIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import ClientSettings, client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.config.memory import MEMORY_FOR_REPLAY, MEMORY_PARTS
from bkpy.errors import BookKeeperError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REQUIRED = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a,/b"}


def load(flags: Mapping[str, str] = {}, environ: Mapping[str, str] = {}, path: Path | None = None) -> BookieSettings:
    return load_bookie_settings(None if path is None else str(path), environ, {**REQUIRED, **flags})


def test_flags_override_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text('rack = "file"\nregion = "file"\nblock_bytes = 1000\n')
    settings = load(path=file, environ={"BKPY_RACK": "env", "BKPY_REGION": "env", "HOME": "/"}, flags={"rack": "flag"})
    assert (settings.rack, settings.region, settings.block_bytes) == ("flag", "env", 1000)


@pytest.mark.parametrize("given", ["/a, /b,/c", ("/a,/b", "/c"), ("/a", "/b", "/c")])
def test_a_list_is_split_at_commas_however_it_was_given(given: str | tuple[str, ...]) -> None:
    assert load(flags={"ledger_directories": given}).ledger_directories == ["/a", "/b", "/c"]


def test_directories_are_the_same_wherever_they_are_named_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bookie.toml"
    file.write_text('journal_directories = ["j"]\n')
    settings = load_bookie_settings(str(file), {"BKPY_LEDGER_DIRECTORIES": "./a,/b"}, {"metadata_uri": "zk://h:1/l"})
    assert settings.journal_directories == [str(tmp_path / "j")]
    assert settings.ledger_directories == [str(tmp_path / "a"), "/b"]
    with pytest.raises(ConfigError, match="is used twice"):
        load(flags={"journal_directories": "j", "ledger_directories": "./j"})


@pytest.mark.parametrize("name", ["journal_directories", "ledger_directories"])
def test_no_directory_has_an_empty_name(tmp_path: Path, name: str) -> None:
    """It was taken for the present directory."""
    file = tmp_path / "bookie.toml"
    file.write_text(f'{name} = ["/first", ""]\n')
    others = {other: value for other, value in REQUIRED.items() if other != name}
    with pytest.raises(ConfigError, match=f"{name}.*at least 1 character"):
        load_bookie_settings(str(file), {}, others)


def test_everything_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(
        'metadata_uri = "zk://h:1/l"\njournal_directories = ["/j"]\nledger_directories = ["/a", "/b"]\n'
        "checkpoint_interval_s = 5\n"
    )
    settings = load_bookie_settings(str(file), {}, {})
    assert settings.ledger_directories == ["/a", "/b"]
    assert settings.checkpoint_interval_s == 5.0


def test_every_setting_has_a_reason_and_survives_as_text() -> None:
    settings = load()
    texts = {
        name: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in settings.model_dump().items()
        if value is not None
    }
    assert load(flags=texts) == settings
    assert load_bookie_settings(None, {f"BKPY_{name.upper()}": text for name, text in texts.items()}, {}) == settings
    for model in (BookieSettings, ClientSettings):
        assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "words"),
    [
        ("lissten = 'a:1'", {}, {}, ["bookie.toml", "lissten", "listen"]),
        ("", {"BKPY_LISTN": "a:1"}, {}, ["environment", "BKPY_LISTN", "BKPY_LISTEN"]),
        ("", {}, {"journal-directory": "/x"}, ["flag", "journal-directory", "journal_directories"]),
        ("block_bytes = '5'", {}, {}, ["bookie.toml", "block_bytes", "'5'"]),
        ("block_bytes = true", {}, {}, ["bookie.toml", "block_bytes", "True"]),
        ("block_bytes = 0", {}, {}, ["bookie.toml", "block_bytes", "greater than 0"]),
        ("", {"BKPY_BLOCK_BYTES": "many"}, {}, ["environment", "block_bytes", "whole number", "'many'"]),
        (
            "",
            {"BKPY_JOURNAL_AS_ENTRY_LOG": "no"},
            {},
            ["environment", "journal_as_entry_log", "true or false", "'no'"],
        ),
        ("", {}, {"session_timeout_s": "soon"}, ["flag", "session_timeout_s", "number", "'soon'"]),
        ("", {}, {"session_timeout_s": "inf"}, ["flag", "session_timeout_s", "finite"]),
        ("", {}, {"lost_bookie_recovery_delay_s": "1e306"}, ["lost_bookie_recovery_delay_s", "1000000000"]),
        ("", {}, {"index_bytes_max": str(1 << 47)}, ["flag", "index_bytes_max", "less than or equal"]),
        ("", {}, {"journal_max_size_mb": str(1 << 41)}, ["flag", "journal_max_size_mb", "less than or equal"]),
        ("", {}, {"entry_log_max_size_mb": str(1 << 41)}, ["flag", "entry_log_max_size_mb", "less than or equal"]),
        ("", {}, {"memtable_bytes_max": str(1 << 61)}, ["flag", "memtable_bytes_max", "less than or equal"]),
        ("", {}, {"log_level": "loud"}, ["flag", "log_level", "'debug'"]),
        ("", {}, {"listen": "127.0.0.1"}, ["flag", "listen", "HOST:PORT"]),
        ("", {}, {"listen": "0.0.0.0:3181"}, ["advertised_address", "0.0.0.0"]),
        ("", {}, {"advertised_address": "0.0.0.0:3181"}, ["advertised_address", "0.0.0.0:3181", "can't connect"]),
        ("", {}, {"advertised_address": "[::]:3181"}, ["advertised_address", "[::]:3181", "can't connect"]),
        ("", {}, {"advertised_address": "b1.example:0"}, ["advertised_address", "b1.example:0", "can't connect"]),
        ("", {}, {"listen": "127.0.0.1:0"}, ["bookie_id"]),
        ("", {}, {"bookie_id": "a/b"}, ["flag", "bookie_id", "'a/b'"]),
        ("", {}, {"bookie_id": "readonly"}, ["bookie_id", "readonly"]),
        ("", {}, {"journal_directories": ""}, ["flag", "journal_directories", "at least 1"]),
        ("", {}, {"ledger_directories": "/j"}, ["/j", "twice"]),
        ("", {}, {"frame_bytes_max": "1000"}, ["frame_bytes_max", "entry_bytes_max"]),
        ("", {}, {"disk_free_bytes_min": "-1"}, ["flag", "disk_free_bytes_min", "-1", "or equal to 0"]),
        ("", {}, {"disk_free_bytes_min": "5", "disk_free_bytes_resume": "5"}, ["_resume", "disk_free_bytes_min"]),
        (
            "compaction_free_bytes_min = 700_000_000",
            {},
            {},
            ["compaction_free_bytes_min = 700000000", "below disk_free_bytes_min = 536870912", "read-only", "lower"],
        ),
        ("", {}, {"disk_free_bytes_min": "100000000"}, ["compaction_free_bytes_min", "disk_free_bytes_min"]),
        ("compaction_free_bytes_min = 536_870_912", {}, {}, ["compaction_free_bytes_min", "disk_free_bytes_min"]),
        ("metadata_uri = ", {}, {}, ["bookie.toml", "not TOML"]),
    ],
)
def test_refusals_are_one_line_and_name_their_place(
    tmp_path: Path, toml: str, environ: dict[str, str], flags: dict[str, str], words: list[str]
) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError) as caught:
        load(path=file, environ=environ, flags=flags)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_compaction_may_leave_more_where_a_bookie_is_never_read_only_for_full_disk_note() -> None:
    flags = {"metadata_uri": "zk://127.0.0.1:1/x", "bookie_id": "one", "disk_free_bytes_min": "0"}
    flags |= {"journal_directories": "/j", "ledger_directories": "/l", "compaction_free_bytes_min": "1000000000"}
    assert load_bookie_settings(None, {}, flags).compaction_free_bytes_min == 1_000_000_000


def test_a_missing_setting_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metadata_uri is missing: where"):
        load_bookie_settings(None, {}, {})
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load(path=tmp_path / "absent.toml")


def test_variables_that_are_not_settings() -> None:
    # An empty variable counts as not set, and neither the command line's own nor Kubernetes' are refused.
    settings = load(
        environ={"BKPY_RACK": "", "BKPY_CONNECT": "zk://x", "BKPY_SERVICE_HOST": "1", "BKPY_PORT": "tcp://1"}
    )
    assert settings.rack == "default"


def test_a_variable_of_a_clients_setting_is_left_to_clients() -> None:
    assert load(environ={"BKPY_READ_TIMEOUT_S": "5", "BKPY_RACK": "r1"}).rack == "r1"
    with pytest.raises(ConfigError, match=r"unknown setting BKPY_READ_TIMEUOT_S; .* BKPY_READ_TIMEOUT_S"):
        load(environ={"BKPY_READ_TIMEUOT_S": "5"})


def test_the_id_is_the_address_unless_it_is_given() -> None:
    assert load().bookie_id == "127.0.0.1:3181"
    assert load(flags={"listen": "127.0.0.1:4000"}).bookie_id == "127.0.0.1:4000"
    assert load(flags={"listen": "0.0.0.0:1", "advertised_address": "b1.example:1"}).bookie_id == "b1.example:1"
    assert load(flags={"listen": "127.0.0.1:0", "bookie_id": "b1"}).bookie_id == "b1"


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:3181", ("127.0.0.1", 3181)), ("host:0", ("host", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:x", "host:65536", "::1:5", "[x]:1", "host:-1", "h:٣"]
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        split_address(address)


def test_client_settings() -> None:
    assert client_settings() == ClientSettings()
    assert client_settings(add_timeout_s=3).add_timeout_s == 3.0
    with pytest.raises(ConfigError, match="unknown setting add_timeot_s; the nearest valid one is add_timeout_s"):
        client_settings(add_timeot_s=3)
    with pytest.raises(ConfigError, match="add_timeout_s = '3': input should be a valid number"):
        client_settings(add_timeout_s="3")
    with pytest.raises(BookKeeperError, match="prefetch_depth = 0"):
        client_settings(prefetch_depth=0)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load().rack = "other"  # type: ignore[misc]


def test_the_page_of_settings_is_current() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page()


def test_type_checkers_know_the_arguments_of_connect() -> None:
    assert settings_page.ARGUMENTS.read_text(encoding="utf-8") == settings_page.arguments()


def test_a_name_that_is_like_none_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError) as refused:
        client_settings(zzz=1)
    assert str(refused.value).endswith("unknown setting zzz")


# --- shares of the memory --------------------------------------------------------------------------------------------


def test_what_is_not_set_has_its_share_of_the_memory() -> None:
    default, half, twice = load(), load({"memory_bytes_max": str(256 * MIB)}), load({"memory_bytes_max": str(GIB)})
    assert default.memory_bytes_max == 512 * MIB
    for name, share in MEMORY_PARTS.items():
        assert getattr(default, name) == share == BookieSettings.model_fields[name].default
        assert getattr(half, name) == share // 2
        assert getattr(twice, name) == (share if name in MEMORY_FOR_REPLAY else 2 * share)
    smallest = load({"memory_bytes_max": "1"})
    assert all(getattr(smallest, name) == 1 for name in MEMORY_PARTS)


def test_what_is_set_stays_and_the_memory_grows_with_it() -> None:
    settings = load(
        {"memtable_bytes_max": str(200 * MIB), "receive_bytes_max": str(MIB), "ledger_states_max": "10000000"}
    )
    assert settings.memtable_bytes_max == 200 * MIB
    assert settings.receive_bytes_max == MIB
    assert settings.memory_bytes_max == (512 + 2 * 104) * MIB
    assert settings.block_cache_bytes_max == MEMORY_PARTS["block_cache_bytes_max"]
    settings = load({"memtable_bytes_max": str(200 * MIB), "memory_bytes_max": str(100 * MIB)})
    assert settings.memtable_bytes_max == 200 * MIB
    assert settings.memory_bytes_max == 100 * MIB


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"memory_bytes_max": "0"}, "memory_bytes_max"),
        ({"memory_bytes_max": "much"}, "memory_bytes_max"),
        ({"memory_bytes_max": "100", "answers_bytes_max": "101"}, "answers_bytes_max must not exceed memory_bytes_max"),
    ],
)
def test_memory_that_makes_no_sense_is_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(flags)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
def test_a_switch_is_true_or_false(text: str, value: bool) -> None:
    given = {"metadata_uri": "zk://h:1/r", "journal_directories": "/j", "ledger_directories": "/l"}
    settings = load_bookie_settings(None, {}, {**given, "journal_sync_data": text})
    assert settings.journal_sync_data is value
    with pytest.raises(ConfigError, match="journal_write_data must be true or false, not 'no'"):
        load_bookie_settings(None, {"BKPY_JOURNAL_WRITE_DATA": "no"}, given)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As some editors, of Windows above all, begin every file."""
    file = tmp_path / "bookie.toml"
    file.write_text(
        'metadata_uri = "zk://h:1/r"\njournal_directories = ["/j"]\nledger_directories = ["/l"]\n', encoding="utf-8-sig"
    )
    assert file.read_bytes()[:3] == b"\xef\xbb\xbf"
    assert load_bookie_settings(str(file), {}, {}).metadata_uri == "zk://h:1/r"
    file.write_text('["ledgers"]\nalice = ["read"]\n', encoding="utf-8-sig")
    with pytest.raises(ConfigError) as raised:
        load_bookie_settings(str(file), {}, {})
    assert "not TOML" not in raised.value.message


def test_a_file_that_never_ends_is_refused() -> None:
    """As a device that was named by mistake: read whole, it takes all memory."""
    with pytest.raises(ConfigError, match="not TOML: it has over 16777216 bytes"):
        load_bookie_settings("/dev/zero", {}, {})
    with pytest.raises(ConfigError, match="the file of rights is not TOML: it has over"):
        read_access_file("/dev/zero")
