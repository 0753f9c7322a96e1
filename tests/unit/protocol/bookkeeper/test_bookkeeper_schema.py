"""The classes that `protobuf` makes of the tables."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from bkpy.protocol.bookkeeper.schema import message_class


def test_a_message_inside_another_is_named_after_it() -> None:
    metadata = message_class("LedgerMetadataFormat")(quorumSize=2, ensembleSize=3, length=7, state=2, digestType=4)
    metadata.segment.append(
        message_class("LedgerMetadataFormat.Segment")(ensembleMember=["a:1", "b:2"], firstEntryId=0)
    )
    found = message_class("LedgerMetadataFormat").FromString(metadata.SerializeToString())
    assert [*found.segment[0].ensembleMember] == ["a:1", "b:2"]
    assert found == metadata


def test_the_text_format_has_the_names_of_states_and_digests() -> None:
    metadata = message_class("LedgerMetadataFormat")(quorumSize=2, ensembleSize=3, length=7, state=2, digestType=4)
    text = text_format.MessageToString(metadata)
    assert "state: IN_RECOVERY\n" in text
    assert "digestType: DUMMY\n" in text
    assert text_format.Parse(text, message_class("LedgerMetadataFormat")()) == metadata


def test_properties_of_a_bookie_are_a_map() -> None:
    info = message_class("BookieServiceInfoFormat")()
    info.properties["zone"] = "a"
    assert dict(message_class("BookieServiceInfoFormat").FromString(info.SerializeToString()).properties) == {
        "zone": "a"
    }


def test_fields_that_nobody_knows_are_kept() -> None:
    raw = message_class("CookieFormat")(bookieHost="b", journalDir="j", ledgerDirs="l").SerializeToString()
    unknown = b"\xa2\x06\x03new"  # field 100
    assert message_class("CookieFormat").FromString(raw + unknown).SerializeToString() == raw + unknown


def test_an_unknown_message_is_an_error() -> None:
    with pytest.raises(KeyError):
        message_class("NoSuchMessage")
