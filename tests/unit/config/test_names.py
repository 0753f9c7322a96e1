"""Names of settings: which are public, and how users may still give the names of earlier versions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

import bkpy
from bkpy.cli.bookie.group import bookie
from bkpy.cli.bookie.run import run_ as bookie_run
from bkpy.cli.cluster import autorecovery
from bkpy.cli.connecting import security_settings, set_client_settings, settings
from bkpy.config.base import GROUPS
from bkpy.config.bookie import BookieSettings
from bkpy.config.checking import accepted_names, current_names
from bkpy.config.client import ClientSettings, client_settings
from bkpy.config.client_arguments import ClientArguments
from bkpy.config.loading import check_bookie_names, load_bookie_settings
from bkpy.config.recovery import RecoverySettings
from bkpy.config.renamed import RENAMED
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUIRED = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a"}
MODELS = (BookieSettings, ClientSettings)
URI = "zk://127.0.0.1:1/none"


@pytest.fixture
def command_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    set_client_settings({})


# --- public and internal ---------------------------------------------------------------------------------------------


def test_a_person_can_hold_the_public_settings_in_the_head() -> None:
    public = {name for model in MODELS for name in model.public()}
    assert len(public) <= 93


@pytest.mark.parametrize("model", [*MODELS, RecoverySettings])
def test_every_field_is_in_the_group_of_the_class_that_declares_it(model: type[BookieSettings]) -> None:
    groups = model.groups()
    assert groups.keys() == model.model_fields.keys()
    assert set(groups.values()) <= {*GROUPS, None}
    assert model.public() == sorted(model.public(), key=lambda name: GROUPS.index(groups[name]))  # type: ignore[arg-type]
    assert {name for name, group in groups.items() if group is not None} == set(model.public())


def test_groups_of_some() -> None:
    groups = {**ClientSettings.groups(), **BookieSettings.groups()}
    assert {name: groups[name] for name in ("listen", "gc_interval_s", "read_timeout_s", "log_roll_s")} == {
        "listen": "basic",
        "gc_interval_s": "storage",
        "read_timeout_s": "network",
        "log_roll_s": "logs",
    }
    assert groups["tls_ca_file"] == "security"
    assert groups["copies_at_once"] == groups["quarantine_s"] == "healing"
    assert groups["block_bytes"] is groups["metadata_retry_pause_s"] is None


def test_a_setting_is_public_for_bookies_and_clients_alike() -> None:
    of_bookie, of_client = (model.groups() for model in MODELS)
    assert {name: of_bookie[name] for name in of_bookie.keys() & of_client.keys()} == {
        name: of_client[name] for name in of_bookie.keys() & of_client.keys()
    }


def test_type_checkers_know_the_public_arguments_alone() -> None:
    assert list(ClientArguments.__annotations__) == ClientSettings.public()


def test_former_names_are_of_settings_that_there_are_and_are_none_themselves() -> None:
    names = BookieSettings.model_fields.keys() | ClientSettings.model_fields.keys()
    assert set(RENAMED.values()) <= names
    assert not RENAMED.keys() & names


# --- the names of one place ------------------------------------------------------------------------------------------


def test_names_of_today_are_taken_without_a_notice() -> None:
    notices: list[str] = []
    given = {"read_timeout_s": 1.0, "client_name": "c"}
    assert current_names(ClientSettings, given, "argument", notices.append) == given
    assert notices == []


@pytest.mark.parametrize(
    ("name", "current", "words"),
    [
        ("leave_absent_bookie_s", "absent_bookie_replace_delay_s", ["is called absent_bookie_replace_delay_s now;"]),
        ("part_bytes_min", "part_bytes_min", ["setting part_bytes_min has become internal;"]),
        ("owed_bytes_max", "unacked_bytes_max", ["is called unacked_bytes_max now and has become internal;"]),
    ],
)
def test_a_name_that_the_next_version_refuses_is_a_notice(name: str, current: str, words: list[str]) -> None:
    notices: list[str] = []
    assert current_names(ClientSettings, {name: 7}, "file x", notices.append) == {current: 7}
    (notice,) = notices
    assert notice.startswith(f"file x: setting {name} ")
    assert all(word in notice for word in [*words, "the next minor version refuses it"])


@pytest.mark.parametrize("order", [("owed_bytes_max", "unacked_bytes_max"), ("unacked_bytes_max", "owed_bytes_max")])
def test_both_names_of_one_setting_are_refused(order: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="argument: owed_bytes_max is the former name of unacked_bytes_max"):
        current_names(ClientSettings, dict.fromkeys(order, 1), "argument", [].append)


def test_a_former_name_of_another_models_setting_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown setting journal_runs_in_place"):
        current_names(ClientSettings, {"journal_runs_in_place": True}, "argument", [].append)


# --- a bookie --------------------------------------------------------------------------------------------------------


def test_a_bookie_takes_former_and_internal_names_from_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("gc_spare_interval_s = 5.0\nblock_bytes = 1000\n")
    notices: list[str] = []
    settings = load_bookie_settings(
        str(file),
        {"BKPY_JOURNAL_RUNS_IN_PLACE": "false", "BKPY_OWED_BYTES_MAX": "5"},  # the second is a client's
        {**REQUIRED, "newcomers_max": "7", "rack": "r"},
        notices.append,
    )
    assert (settings.gc_over_replicated_interval_s, settings.block_bytes) == (5.0, 1000)
    assert (settings.journal_as_entry_log, settings.new_connections_max) == (False, 7)
    end = "; the next minor version refuses it"
    assert notices == [
        f"file {file}: setting gc_spare_interval_s is called gc_over_replicated_interval_s now{end}",
        f"file {file}: setting block_bytes has become internal{end}",
        f"environment: setting BKPY_JOURNAL_RUNS_IN_PLACE is called BKPY_JOURNAL_AS_ENTRY_LOG now{end}",
        f"flag: setting newcomers_max is called new_connections_max now and has become internal{end}",
    ]


def test_a_later_place_overrides_a_setting_by_either_name(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("gc_over_replicated_interval_s = 5.0\n")
    later = {"BKPY_GC_SPARE_INTERVAL_S": "6"}
    assert load_bookie_settings(str(file), later, REQUIRED).gc_over_replicated_interval_s == 6.0


def test_both_names_in_one_place_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("gc_over_replicated_interval_s = 5.0\ngc_spare_interval_s = 6.0\n")
    with pytest.raises(ConfigError, match=r"bookie\.toml: gc_spare_interval_s is the former name of gc_over_repl"):
        load_bookie_settings(str(file), {}, REQUIRED)
    both = {"BKPY_GC_OVER_REPLICATED_INTERVAL_S": "5", "BKPY_GC_SPARE_INTERVAL_S": "6"}
    with pytest.raises(ConfigError, match="environment: BKPY_GC_SPARE_INTERVAL_S is the former name of BKPY_GC_OVER"):
        load_bookie_settings(None, both, REQUIRED)


def test_a_bad_value_of_a_former_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"flag: gc_over_replicated_interval_s = -1\.0"):
        load_bookie_settings(None, {}, {**REQUIRED, "gc_spare_interval_s": "-1"})


def test_a_local_cluster_takes_former_names() -> None:
    check_bookie_names(["newcomers_max", "block_bytes", "rack"], "config")
    with pytest.raises(ConfigError, match="config: unknown setting owed_bytes_max"):
        check_bookie_names(["owed_bytes_max"], "config")


# --- commands --------------------------------------------------------------------------------------------------------


def flags(command: click.Command) -> tuple[set[str], set[str]]:
    """The names of the flags that `--help` shows, and of the hidden ones."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    return {str(p.name) for p in options if not p.hidden}, {str(p.name) for p in options if p.hidden}


def test_help_of_a_bookie_shows_the_public_settings_alone() -> None:
    shown, hidden = flags(bookie_run)
    assert shown - {"path", "rebuild", "help"} == set(BookieSettings.public()) - BookieSettings.secrets()
    assert hidden == accepted_names(BookieSettings) - set(BookieSettings.public())
    told = CliRunner().invoke(bookie, ["run", "--help"]).output
    assert "--metadata_uri" in told
    assert "--block_bytes" not in told
    assert told.index("--listen") < told.index("--gc_interval_s") < told.index("--access_file")


def test_help_of_autorecovery_shows_the_public_settings_alone() -> None:
    shown, hidden = flags(autorecovery.run_)
    shared = set(RecoverySettings.public()) - set(autorecovery.MetadataSettings.public())
    assert shown - {"uri", "name", "metrics_port", "metrics_listen", "metrics_tls", "log_format", "help"} == shared
    assert {"copies_max_under_load", "copies_beside_clients"} <= hidden


def test_autorecovery_refuses_both_names() -> None:
    both = ["run", "--connect", URI, "--copies_beside_clients", "2", "--copies-max-under-load", "3"]
    refused = CliRunner().invoke(autorecovery.autorecovery, both).exception
    assert isinstance(refused, ConfigError)
    assert "flag: copies_beside_clients is the former name of copies_max_under_load" in str(refused)


@pytest.mark.usefixtures("command_settings")
def test_commands_take_former_and_internal_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BKPY_OWED_BYTES_MAX", "1000")
    monkeypatch.setenv("BKPY_NEWCOMERS_MAX", "5")  # a bookie's
    set_client_settings({"leave_absent_bookie_s": 7.0, "part_bytes_min": 5})
    security_settings()
    assert capsys.readouterr().err == "", "said to commands that make a client"
    found = settings()
    assert (found.unacked_bytes_max, found.absent_bookie_replace_delay_s, found.part_bytes_min) == (1000, 7.0, 5)
    assert capsys.readouterr().err.splitlines() == [
        "environment: setting BKPY_OWED_BYTES_MAX is called BKPY_UNACKED_BYTES_MAX now and has become internal; "
        "the next minor version refuses it",
        "argument: setting leave_absent_bookie_s is called absent_bookie_replace_delay_s now; "
        "the next minor version refuses it",
        "argument: setting part_bytes_min has become internal; the next minor version refuses it",
    ]
    settings()
    assert capsys.readouterr().err == "", "said once"


@pytest.mark.usefixtures("command_settings")
def test_commands_refuse_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="argument: owed_bytes_max is the former name"):
        set_client_settings({"owed_bytes_max": 1, "unacked_bytes_max": 2})
    monkeypatch.setenv("BKPY_OWED_BYTES_MAX", "1000")
    set_client_settings({"unacked_bytes_max": 2})
    assert settings().unacked_bytes_max == 2, "an argument overrides a variable, by either name"


# --- a client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"leave_absent_bookie_s": 7.0}, "leave_absent_bookie_s is called absent_bookie_replace_delay_s now"),
        ({"part_bytes_min": 5}, "part_bytes_min has become internal"),
    ],
)
def test_an_argument_that_the_next_version_refuses_is_a_warning_at_the_call(given: dict[str, Any], text: str) -> None:
    with pytest.warns(DeprecationWarning, match=text) as warned:
        bkpy.connect(URI, **given).close()
    assert [w.filename for w in warned] == [__file__]


def test_public_arguments_are_taken_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bkpy.connect(URI, read_timeout_s=1.0, zookeeper_auth="user:password").close()


def test_connect_refuses_both_names_and_unknown_ones() -> None:
    with pytest.raises(ConfigError, match="owed_bytes_max is the former name of unacked_bytes_max"):
        bkpy.connect(URI, owed_bytes_max=1, unacked_bytes_max=1)
    with pytest.raises(ConfigError, match="unknown setting owed_bytes; the nearest"):
        bkpy.connect(URI, owed_bytes=1)


def test_inside_the_package_a_tuning_value_is_set_by_its_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client_settings(part_bytes_min=5).part_bytes_min == 5
    with pytest.raises(ConfigError, match="unknown setting owed_bytes_max"):
        client_settings(owed_bytes_max=5)
