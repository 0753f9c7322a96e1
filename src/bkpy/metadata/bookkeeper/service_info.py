"""Registrations of bookies in a BookKeeper cluster: the value of a node under `available`, BookieServiceInfoFormat.

Clients need the endpoint with the protocol `bookie-rpc`. A bookie of an old BookKeeper stores nothing, and its id is
its address. bkpy's own fields of a registration are properties, in JSON, with `bkpy.` in front of their names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from bkpy.errors import BookieUnavailableError, CorruptDataError
from bkpy.metadata.bookies.registration import RegistrationFormat
from bkpy.protocol.bookkeeper.schema import message_class
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "bkpy."
_PROTOCOL: Final = "bookie-rpc"
_Message: Final = message_class("BookieServiceInfoFormat")


def encode_service_info(fields: Mapping[str, Any]) -> bytes:
    """The value of a registration with these fields, of which `address` is "host:port"."""
    host, port = split_address(fields["address"])
    message = _Message()
    message.endpoints.add(id="bookie", port=port, host=host, protocol=_PROTOCOL)
    for name, value in fields.items():
        if name not in ("address", "bookie_id"):
            message.properties[_PREFIX + name] = json.dumps(value)
    return bytes(message.SerializeToString(deterministic=True))


def decode_service_info(bookie_id: str, data: bytes) -> dict[str, Any]:
    """The fields of a registration. Raises `CorruptDataError` if it has no address."""
    try:
        if not data:
            split_address(bookie_id)
            return {"address": bookie_id}
        message = _Message.FromString(data)
        endpoint = next((one for one in message.endpoints if one.protocol == _PROTOCOL), None)
        if endpoint is None:
            raise ValueError(f"it has no endpoint with the protocol {_PROTOCOL}")
        if not isinstance(endpoint.host, str):  # bytes that are no UTF-8
            raise ValueError(f"it has the host {endpoint.host!r}")
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        address = f"{host}:{endpoint.port}"
        split_address(address)
        properties = dict(message.properties)
    except (ValueError, DecodeError) as error:
        raise CorruptDataError(f"the bookie's registration is unreadable: {error}", bookie=bookie_id) from error
    return {**_own_fields(properties), "address": address}


def _own_fields(properties: Mapping[str, str | bytes]) -> dict[str, Any]:
    found = {}
    for name, value in properties.items():
        if name.startswith(_PREFIX) and isinstance(value, str):
            try:
                found[name.removeprefix(_PREFIX)] = parsed(value.encode())
            except ValueError:  # somebody else's
                continue
    return found


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port", without the brackets of an IPv6 address. Raises `ValueError`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is no address of the form host:port")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), int(port)


def _address_of_unseen(bookie_id: str, _: bytes | None) -> str:
    """An old BookKeeper's bookies are named after their addresses."""
    try:
        split_address(bookie_id)
    except ValueError:
        raise BookieUnavailableError(
            "the bookie isn't registered, so nobody knows its address", bookie=bookie_id
        ) from None
    return bookie_id


SERVICE_INFO: Final = RegistrationFormat(
    encode=encode_service_info, fields=decode_service_info, address_of_unseen=_address_of_unseen, absent_allowed=False
)
