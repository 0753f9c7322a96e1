"""Bookies of a BookKeeper cluster: registrations, how clients follow them, and cookies."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.golden.bookkeeper import reading
from tests.in_process import ROOT, runtime_here

from bkpy.errors import BookieUnavailableError, ConfigError, CorruptDataError, IdentityError, UnsupportedVersionError
from bkpy.metadata.bookies.registration import BookieDirectory, BookieInfo, Registration
from bkpy.metadata.bookkeeper.cluster import new_cluster_nodes
from bkpy.metadata.bookkeeper.cookies import BookKeeperCookie
from bkpy.metadata.bookkeeper.service_info import SERVICE_INFO, decode_service_info, encode_service_info
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.store import Create, Delete

GOLDEN = reading.read("metadata.txt")
INSTANCE = "3b1d1f1e-5b7a-4b43-9d3b-0a4d8a5a6c11"


def new_tree() -> MemoryStore:
    tree = MemoryStore(runtime_here())
    tree.apply_all([Create(ROOT, b""), *new_cluster_nodes(ROOT, INSTANCE)], 0)
    return tree


# --- registrations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["service endpoints", "service properties"])
def test_the_address_is_that_of_the_endpoint_for_clients(name: str) -> None:
    assert decode_service_info("any", GOLDEN[name]) == {"address": "host-a.example.org:3181"}


def test_an_old_bookie_is_named_after_its_address() -> None:
    assert decode_service_info("10.0.0.3:3181", b"") == {"address": "10.0.0.3:3181"}
    with pytest.raises(CorruptDataError, match="no address"):
        decode_service_info("bookie_b", b"")


FIELDS = {"address": "10.0.0.3:3181", "bookie_id": "b", "rack": "r1", "free_bytes": 1 << 50, "read_only": False}


def test_own_fields_come_back() -> None:
    found = decode_service_info("b", encode_service_info(FIELDS))
    assert found == {name: value for name, value in FIELDS.items() if name != "bookie_id"}


def test_an_ipv6_address_has_brackets_again() -> None:
    assert decode_service_info("b", encode_service_info({"address": "[::1]:3181"})) == {"address": "[::1]:3181"}


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"nonsense",
        encode_service_info(FIELDS).replace(b"bookie-rpc", b"bookie-xyz"),
        encode_service_info(FIELDS).replace(b"10.0.0.3", b"")[:8],
    ],
)
def test_an_unreadable_registration_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_service_info("b", value)


def test_somebody_elses_properties_do_no_harm() -> None:
    value = encode_service_info(FIELDS).replace(b"1125899906842624", b"112589990684262{")
    assert "free_bytes" not in decode_service_info("b", value)


@given(st.binary(max_size=60), st.integers(0, 200))
@examples(80)
def test_no_bytes_of_a_registration_do_more_than_be_refused(noise: bytes, at: int) -> None:
    whole = encode_service_info(FIELDS)
    with contextlib.suppress(CorruptDataError):
        assert decode_service_info("b", whole[:at] + noise + whole[at + len(noise) :])["address"]


async def test_a_client_follows_bookies_of_java_and_of_bkpy() -> None:
    tree = new_tree()
    directory = BookieDirectory(tree.session(), ROOT, runtime_here(), stored_as=SERVICE_INFO)
    await directory.start()
    java = f"{ROOT}/available/host-a.example.org:3181"
    tree.apply(Create(java, GOLDEN["service endpoints"]), 0)
    tree.apply(Create(f"{ROOT}/available/nonsense", b"\xff"), 0)
    store = tree.session()
    own = Registration(
        store,
        ROOT,
        BookieInfo("bkpy-1", "127.0.0.1:4000", rack="r1", free_bytes=5),
        runtime_here(),
        stored_as=SERVICE_INFO,
    )
    await own.register()
    await directory.wait_for(2, 60)
    assert directory.bookies == {
        "host-a.example.org:3181": BookieInfo("host-a.example.org:3181", "host-a.example.org:3181"),
        "bkpy-1": BookieInfo("bkpy-1", "127.0.0.1:4000", rack="r1", free_bytes=5),
    }
    await own.set_read_only(True, "the disk is full")
    tree.apply(Delete(java), 0)
    tree.apply(Create(f"{ROOT}/available/readonly/host-a.example.org:3181", GOLDEN["service endpoints"]), 0)
    while len(directory.read_only) < 2:
        await directory.changed()
    assert directory.bookies == {}
    assert directory.read_only["bkpy-1"].read_only_reason == "the disk is full"
    assert await directory.address_of("bkpy-1") == "127.0.0.1:4000"
    await own.unregister()
    await directory.close()
    await store.close()


async def test_the_address_of_a_bookie_that_is_away() -> None:
    directory = BookieDirectory(new_tree().session(), ROOT, runtime_here(), stored_as=SERVICE_INFO)
    assert await directory.address_of("10.0.0.3:3181") == "10.0.0.3:3181"
    with pytest.raises(BookieUnavailableError, match="isn't registered"):
        await directory.address_of("bookie_b")


async def test_no_ledger_is_created_on_bookies_that_are_away() -> None:
    tree = new_tree()
    cookie = b'{"bookie_id": "b", "address": "10.0.0.3:3181", "instance_id": "i"}'
    tree.apply_all([Create(f"{ROOT}/cookies/a", GOLDEN["cookie plain"]), Create(f"{ROOT}/cookies/b", cookie)], 0)
    directory = BookieDirectory(tree.session(), ROOT, runtime_here(), stored_as=SERVICE_INFO)
    assert await directory.known(()) == []


async def test_one_id_is_one_process_here_too() -> None:
    tree = new_tree()
    runtime, stores = runtime_here(), [tree.session(), tree.session()]

    def registration(at: int, address: str) -> Registration:
        return Registration(stores[at], ROOT, BookieInfo("b", address), runtime, stored_as=SERVICE_INFO)

    first = registration(0, "127.0.0.1:1")
    await first.register()
    with pytest.raises(IdentityError, match=r"at 127\.0\.0\.1:1,"):
        await registration(1, "127.0.0.1:2").register()
    await first.unregister()
    second = registration(1, "127.0.0.1:2")
    await second.register()
    assert decode_service_info("b", (await stores[0].get(f"{ROOT}/available/b"))[0])["address"] == "127.0.0.1:2"
    await second.unregister()


# --- cookies --------------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "bookie_id": "127.0.0.1:3181",
    "journal_directories": "/journal",
    "ledger_directories": ("/ledgers/a", '/ledgers/b "c"'),
}
COOKIES = {
    "cookie plain": BookKeeperCookie(**PLAIN),
    "cookie instance": BookKeeperCookie(**PLAIN, instance_id=INSTANCE),
    "cookie index": BookKeeperCookie(**PLAIN, instance_id=INSTANCE, index_directories=("/index",)),
}


@pytest.mark.parametrize("name", sorted(COOKIES))
def test_a_cookie_is_as_java_stores_it(name: str) -> None:
    assert COOKIES[name].encode() == GOLDEN[name]
    assert BookKeeperCookie.decode("127.0.0.1:3181", GOLDEN[name]) == COOKIES[name]


def test_older_cookies_are_read() -> None:
    index = GOLDEN["cookie index"]
    assert BookKeeperCookie.decode("b", b"4" + index[1:]) == COOKIES["cookie index"]
    lines = b'3\n127.0.0.1:3181\n/journal\n2\t/ledgers/a\t/ledgers/b "c"\n'
    assert BookKeeperCookie.decode("b", lines) == COOKIES["cookie plain"]


def test_a_newer_cookie_is_not_taken_for_damage() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 6"):
        BookKeeperCookie.decode("b", b"6\n")


@pytest.mark.parametrize(
    "value", [b"", b"5", b"2\na\nb\nc\n", b"3\na\nb", b"5\nbookieHost: 1", b"5\n\xff", b"x\n", b"{}"]
)
def test_a_damaged_cookie_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptDataError):
        BookKeeperCookie.decode("b", value)


def test_a_cookie_names_a_possible_bookie() -> None:
    with pytest.raises(ConfigError):
        BookKeeperCookie("a/b", "/j", ("/l",)).encode()


@given(st.binary(max_size=40), st.integers(0, 200))
@examples(80)
def test_no_bytes_of_a_cookie_do_more_than_be_refused(noise: bytes, at: int) -> None:
    whole = GOLDEN["cookie index"]
    with contextlib.suppress(CorruptDataError, UnsupportedVersionError):
        assert isinstance(BookKeeperCookie.decode("b", whole[:at] + noise + whole[at + len(noise) :]), BookKeeperCookie)
