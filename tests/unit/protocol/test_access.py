"""Rights by names: what each allows, which names a rule means, and which names a certificate has."""

from __future__ import annotations

import itertools
import re

import pytest

from bkpy.protocol.access import ALL, LISTS, NO_OPS, AccessRules, Right, forbidden_ops, names_in
from bkpy.protocol.wire.messages import Op


def test_every_request_needs_a_right() -> None:
    assert forbidden_ops(Right.NONE) == set(Op) - {Op.HELLO}
    assert forbidden_ops(Right.ADMINISTER) == forbidden_ops(Right.NONE)
    assert forbidden_ops(ALL) == NO_OPS


def test_who_reads_changes_nothing_and_who_writes_reads() -> None:
    assert forbidden_ops(Right.READ) == {Op.PRESENT, Op.ADD, Op.WRITE_LAC, Op.FORCE}
    assert forbidden_ops(LISTS["write"]) == forbidden_ops(LISTS["bookies"]) == NO_OPS
    assert not LISTS["bookies"] & Right.ADMINISTER


@pytest.mark.parametrize("lists", list(itertools.product(["cn:a", "cn:b"], repeat=2)))
def test_a_client_has_the_rights_of_all_its_names(lists: tuple[str, str]) -> None:
    rules = AccessRules({"read": [lists[0]], "administer": [lists[1]]})
    expected = (Right.READ if lists[0] == "cn:a" else Right.NONE) | (
        Right.ADMINISTER if lists[1] == "cn:a" else Right.NONE
    )
    assert rules.rights_of(["cn:a"]) == expected
    assert rules.rights_of(["cn:a", "cn:b"]) == Right.READ | Right.ADMINISTER
    assert rules.rights_of([]) == rules.rights_of(["dns:a"]) == Right.NONE


@pytest.mark.parametrize(
    ("rule", "meant", "not_meant"),
    [
        ("cn:orders", ["cn:orders"], ["cn:orders2", "cn:Orders", "dns:orders", "cn:my-orders", "cn:orders\n"]),
        ("dns:*.example", ["dns:a.example", "dns:B.EXAMPLE"], ["dns:a.b.example", "dns:example", "dns:a.examples"]),
        ("dns:b-*.x.y", ["dns:b-0.x.y", "dns:b-.x.y"], ["dns:b-0.z.x.y", "cn:b-0.x.y"]),
        ("uri:spiffe://d/*/w", ["uri:spiffe://d/a/w"], ["uri:spiffe://d/a/b/w", "uri:spiffe://d/w"]),
        ("cn:a.b", ["cn:a.b"], ["cn:axb"]),
        ("cn:*", ["cn:anybody"], ["cn:a.b", "dns:anybody"]),
        ("cn:**", ["cn:anybody"], ["cn:a.b"]),
        ("cn:a*b*b", ["cn:abb", "cn:axbxbxb"], ["cn:ab", "cn:abc", "cn:ab.b"]),
        ("uri:x:*a/a*", ["uri:x:a/a", "uri:x:aa/aa"], ["uri:x:a/b/a", "uri:x:a/a/a"]),
        # Letters that Unicode, but no host's name, takes for the same: a long s, a sign for kelvin.
        ("dns:desk.example", ["dns:DESK.example"], ["dns:de\u017fk.example", "dns:des\u212a.example"]),
    ],
)
def test_a_rule_means_no_more_than_it_says(rule: str, meant: list[str], not_meant: list[str]) -> None:
    rules = AccessRules({"read": [rule]})
    assert [name for name in meant if not rules.rights_of([name])] == []
    assert [name for name in not_meant if rules.rights_of([name])] == []


@pytest.mark.thorough
def test_stars_match_what_they_would_if_all_places_were_tried() -> None:
    parts = ["*", "a", "b", "."]
    names = ["cn:" + "".join(name) for n in range(6) for name in itertools.product("ab.", repeat=n)]
    for n in range(1, 6):
        for chosen in itertools.product(parts, repeat=n):
            rule = "cn:" + "".join(chosen)
            plain = re.compile("[^./:]*".join(map(re.escape, rule.split("*"))))
            rules = AccessRules({"read": [rule]})
            assert [name for name in names if rules.rights_of([name])] == list(filter(plain.fullmatch, names)), rule


def test_a_rule_of_many_stars_is_decided_at_once() -> None:
    # To try all places of the stars takes centuries, and the test's timeout notices it.
    rules = AccessRules({"read": ["cn:" + "*" * 40 + "!", "cn:" + "a*" * 30 + "!"]})
    assert rules.rights_of(["cn:" + "a" * 64]) == Right.NONE


@pytest.mark.parametrize("rule", ["orders", "", "cn:", "ip:127.0.0.1", ":x", "*"])
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="is not cn:NAME"):
        AccessRules({"write": [rule]})


def test_the_names_of_a_certificate() -> None:
    certificate = {
        "subject": ((("organizationName", "cn:fake"),), (("commonName", "orders"),)),
        "subjectAltName": (
            ("DNS", "a.example"),
            ("URI", "spiffe://d/a"),
            ("IP Address", "127.0.0.1"),
            ("email", "x@y"),
        ),
    }
    assert names_in(certificate) == ("cn:orders", "dns:a.example", "uri:spiffe://d/a")
    assert names_in({}) == names_in(None) == ()
