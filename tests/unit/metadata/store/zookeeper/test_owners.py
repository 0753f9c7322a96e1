"""The access control list of what is created with passwords."""

from __future__ import annotations

from aiozk import protocol

from bkpy.metadata.store.zookeeper.owners import owners


def test_a_password_is_listed_as_zookeeper_does_it() -> None:
    """The value is the one that ZooKeeper's own documentation has for its super user."""
    (entry,) = owners([("digest", b"super:admin")])
    assert (entry.id.scheme, entry.id.id) == ("digest", "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=")
    assert entry.perms == protocol.UNRESTRICTED_ACCESS.perms


def test_all_passwords_are_listed_and_of_other_schemes_whatever_the_server_knows_them_as() -> None:
    found = owners([("digest", b"a:1"), ("digest", b"a:2:3"), ("ip", b"")])
    assert [entry.id.scheme for entry in found] == ["digest", "digest", "auth"]
    assert len({entry.id.id for entry in found}) == 3
    assert [entry.id.scheme for entry in owners([])] == ["auth"]
