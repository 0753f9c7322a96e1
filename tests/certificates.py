"""Certificate authorities of a test, and certificates that they sign, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

_DAY = datetime.timedelta(days=1)
HOSTS = ("127.0.0.1", "localhost")
# Python demands it of an authority from 3.13 on, and of what it signs that it says by whose key.
_SIGNS_CERTIFICATES = x509.KeyUsage(
    **dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True),
    **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False),
    **dict.fromkeys(("encipher_only", "decipher_only"), False),
)


class Issued(NamedTuple):
    """The files of one certificate."""

    certificate: Path
    key: Path


class Authority:
    """A CA; `file` has its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.file = directory / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = _builder(self._name, self._name, self._key.public_key(), _now() - _DAY, _now() + _DAY)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        own = own.add_extension(_SIGNS_CERTIFICATES, critical=True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: tuple[str, ...] = HOSTS,
        *,
        uris: tuple[str, ...] = (),
        raw_names: bytes = b"",
        ends: datetime.timedelta = _DAY,
        file: str | None = None,
    ) -> Issued:
        """A certificate with this common name, for these hosts, that is valid until `ends` from now (or before it).

        `raw_names` are alternative names as they are encoded, instead of all others.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        end = _now() + ends
        builder = _builder(_named(name), self._name, key.public_key(), min(_now(), end) - _DAY, end)
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signed_by, critical=False)
        names: list[x509.GeneralName] = [_host(host) for host in hosts]
        names += [x509.UniformResourceIdentifier(uri) for uri in uris]
        if raw_names:
            sequence = b"\x30" + bytes([len(raw_names)]) + raw_names
            alternative = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, sequence)
            builder = builder.add_extension(alternative, critical=False)
        elif names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        stem = file or name
        issued = Issued(self.directory / f"{stem}.pem", self.directory / f"{stem}-key.pem")
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        signed = builder.sign(self._key, hashes.SHA256())
        issued.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return issued

    def settings(self, issued: Issued | None = None) -> dict[str, str]:
        """The settings of who trusts this CA, and has that certificate."""
        settings = {"tls_ca_file": str(self.file)}
        if issued is not None:
            settings |= {"tls_certificate_file": str(issued.certificate), "tls_key_file": str(issued.key)}
        return settings


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
