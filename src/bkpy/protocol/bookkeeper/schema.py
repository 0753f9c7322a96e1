"""The protobuf messages of Apache BookKeeper 4.17, as tables, and the classes that `protobuf` makes of them.

    message_class("ReadRequest")(ledgerId=7, entryId=-1).SerializeToString()

The tables hold what `BookkeeperProtocol.proto` and `DataFormats.proto` say, with the names of both: the text format
of metadata and cookies has them. No code is generated, so any `protobuf` from 5 on will do.

The wire's own enumerations are declared as `int32`. The encoding is the same, and a number that this side doesn't
know can be named in an error. The metadata's are real, as the text format has their names.

Invariant: the classes live in a pool of their own, so an application may load the same messages elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Mapping

# A message's fields: the number, then label and type as a .proto file has them. `map` is map<string, string>.
_Fields = dict[str, tuple[int, str]]

_HEADER: Final[_Fields] = {
    "version": (1, "required int32"),
    "operation": (2, "required int32"),
    "txnId": (3, "required uint64"),
    "priority": (4, "optional uint32"),
}

# Requests and responses have the same numbers for the same operation. A request's `requestContext` (200, pairs of
# strings for logs) is left out: nobody here uses it, and as an unknown field it takes no memory for each empty pair.
_WIRE: Final[Mapping[str, _Fields]] = {
    "BKPacketHeader": _HEADER,
    "Request": {
        "header": (1, "required BKPacketHeader"),
        "readRequest": (100, "optional ReadRequest"),
        "addRequest": (101, "optional AddRequest"),
        "authRequest": (102, "optional AuthMessage"),
        "writeLacRequest": (103, "optional WriteLacRequest"),
        "readLacRequest": (104, "optional ReadLacRequest"),
        "getBookieInfoRequest": (105, "optional GetBookieInfoRequest"),
        "startTLSRequest": (106, "optional StartTLSRequest"),
        "forceLedgerRequest": (107, "optional ForceLedgerRequest"),
        "getListOfEntriesOfLedgerRequest": (108, "optional GetListOfEntriesOfLedgerRequest"),
    },
    "ReadRequest": {
        "ledgerId": (1, "required int64"),
        "entryId": (2, "required int64"),
        "masterKey": (3, "optional bytes"),
        "previousLAC": (4, "optional int64"),
        "timeOut": (5, "optional int64"),
        "flag": (100, "optional int32"),
    },
    "AddRequest": {
        "ledgerId": (1, "required int64"),
        "entryId": (2, "required int64"),
        "masterKey": (3, "required bytes"),
        "body": (4, "required bytes"),
        "writeFlags": (5, "optional int32"),
        "flag": (100, "optional int32"),
    },
    "AuthMessage": {"authPluginName": (1, "required string"), "payload": (2, "required bytes")},
    "WriteLacRequest": {
        "ledgerId": (1, "required int64"),
        "lac": (2, "required int64"),
        "masterKey": (3, "required bytes"),
        "body": (4, "required bytes"),
    },
    "ReadLacRequest": {"ledgerId": (1, "required int64")},
    "GetBookieInfoRequest": {"requested": (1, "optional int64")},
    "StartTLSRequest": {},
    "ForceLedgerRequest": {"ledgerId": (1, "required int64")},
    "GetListOfEntriesOfLedgerRequest": {"ledgerId": (1, "required int64")},
    "Response": {
        "header": (1, "required BKPacketHeader"),
        "status": (2, "required int32"),
        "readResponse": (100, "optional ReadResponse"),
        "addResponse": (101, "optional AddResponse"),
        "authResponse": (102, "optional AuthMessage"),
        "writeLacResponse": (103, "optional WriteLacResponse"),
        "readLacResponse": (104, "optional ReadLacResponse"),
        "getBookieInfoResponse": (105, "optional GetBookieInfoResponse"),
        "startTLSResponse": (106, "optional StartTLSResponse"),
        "forceLedgerResponse": (107, "optional ForceLedgerResponse"),
        "getListOfEntriesOfLedgerResponse": (108, "optional GetListOfEntriesOfLedgerResponse"),
    },
    "ReadResponse": {
        "status": (1, "required int32"),
        "ledgerId": (2, "required int64"),
        "entryId": (3, "required int64"),
        "body": (4, "optional bytes"),
        "maxLAC": (5, "optional int64"),
        "lacUpdateTimestamp": (6, "optional int64"),
    },
    "AddResponse": {
        "status": (1, "required int32"),
        "ledgerId": (2, "required int64"),
        "entryId": (3, "required int64"),
    },
    "WriteLacResponse": {"status": (1, "required int32"), "ledgerId": (2, "required int64")},
    "ReadLacResponse": {
        "status": (1, "required int32"),
        "ledgerId": (2, "required int64"),
        "lacBody": (3, "optional bytes"),
        "lastEntryBody": (4, "optional bytes"),
    },
    "GetBookieInfoResponse": {
        "status": (1, "required int32"),
        "totalDiskCapacity": (2, "optional int64"),
        "freeDiskSpace": (3, "optional int64"),
    },
    "StartTLSResponse": {},
    "ForceLedgerResponse": {"status": (1, "required int32"), "ledgerId": (2, "required int64")},
    "GetListOfEntriesOfLedgerResponse": {
        "status": (1, "required int32"),
        "ledgerId": (2, "required int64"),
        "availabilityOfEntriesOfLedger": (3, "optional bytes"),
    },
}

# A message inside another one is named after it.
_METADATA: Final[Mapping[str, _Fields]] = {
    "LedgerMetadataFormat": {
        "quorumSize": (1, "required int32"),
        "ensembleSize": (2, "required int32"),
        "length": (3, "required int64"),
        "lastEntryId": (4, "optional int64"),
        "state": (5, "required LedgerMetadataFormat.State"),
        "segment": (6, "repeated LedgerMetadataFormat.Segment"),
        "digestType": (7, "optional LedgerMetadataFormat.DigestType"),
        "password": (8, "optional bytes"),
        "ackQuorumSize": (9, "optional int32"),
        "ctime": (10, "optional int64"),
        "customMetadata": (11, "repeated LedgerMetadataFormat.cMetadataMapEntry"),
        "cToken": (12, "optional int64"),
    },
    "LedgerMetadataFormat.Segment": {
        "ensembleMember": (1, "repeated string"),
        "firstEntryId": (2, "required int64"),
    },
    "LedgerMetadataFormat.cMetadataMapEntry": {"key": (1, "optional string"), "value": (2, "optional bytes")},
    "LedgerRereplicationLayoutFormat": {"type": (1, "required string"), "version": (2, "required int32")},
    "UnderreplicatedLedgerFormat": {"replica": (1, "repeated string"), "ctime": (2, "optional int64")},
    "CookieFormat": {
        "bookieHost": (1, "required string"),
        "journalDir": (2, "required string"),
        "ledgerDirs": (3, "required string"),
        "instanceId": (4, "optional string"),
        "indexDirs": (5, "optional string"),
    },
    "LockDataFormat": {"bookieId": (1, "optional string")},
    "AuditorVoteFormat": {"bookieId": (1, "optional string")},
    "CheckAllLedgersFormat": {"checkAllLedgersCTime": (1, "optional int64")},
    "PlacementPolicyCheckFormat": {"placementPolicyCheckCTime": (1, "optional int64")},
    "ReplicasCheckFormat": {"replicasCheckCTime": (1, "optional int64")},
    "BookieServiceInfoFormat": {
        "endpoints": (6, "repeated BookieServiceInfoFormat.Endpoint"),
        "properties": (7, "map BookieServiceInfoFormat.PropertiesEntry"),
    },
    "BookieServiceInfoFormat.Endpoint": {
        "id": (1, "required string"),
        "port": (2, "required int32"),
        "host": (3, "required string"),
        "protocol": (4, "required string"),
        "auth": (5, "repeated string"),
        "extensions": (6, "repeated string"),
    },
    "BookieServiceInfoFormat.PropertiesEntry": {"key": (1, "optional string"), "value": (2, "optional string")},
}

_ENUMS: Final[Mapping[str, Mapping[str, int]]] = {
    "LedgerMetadataFormat.State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "LedgerMetadataFormat.DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}

_MAPS: Final = frozenset({"BookieServiceInfoFormat.PropertiesEntry"})

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "bytes": _Field.TYPE_BYTES,
    "string": _Field.TYPE_STRING,
}
_LABELS: Final = {
    "required": _Field.LABEL_REQUIRED,
    "optional": _Field.LABEL_OPTIONAL,
    "repeated": _Field.LABEL_REPEATED,
    "map": _Field.LABEL_REPEATED,
}


def message_class(name: str) -> Any:
    """The class of a message; one inside another is `Outer.Inner`."""
    return _CLASSES[name]


def _describe(message: Any, name: str, fields: _Fields) -> None:
    message.name = name.rpartition(".")[2]
    message.options.map_entry = name in _MAPS
    for field_name, (number, what) in fields.items():
        label, _, kind = what.partition(" ")
        field = message.field.add(name=field_name, number=number, label=_LABELS[label])
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
            field.type_name = f".{kind}"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="bookkeeper.proto", syntax="proto2")
    described: dict[str, Any] = {}
    messages = {**_WIRE, **_METADATA}
    for name, fields in messages.items():  # an outer message comes before those inside it
        outer = name.rpartition(".")[0]
        described[name] = described[outer].nested_type.add() if outer else file.message_type.add()
        _describe(described[name], name, fields)
    for name, values in _ENUMS.items():
        outer, _, inner = name.rpartition(".")
        enum = described[outer].enum_type.add(name=inner)
        for value_name, number in values.items():
            enum.value.add(name=value_name, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in messages}


_CLASSES: Final = _classes()
