"""A bookie's certificates and the rights of its clients: files that may change while it runs.

Invariant: files that are unreadable, or don't fit together, change nothing: the bookie logs an error and goes on with
its former certificates and rights.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.config.access_file import access_file_stamp, read_access_file
from bkpy.config.address import split_address
from bkpy.errors import ConfigError
from bkpy.protocol.access import ALL, AccessRules, Right
from bkpy.runtime.tls import Certificates, Side, TlsFiles, examined

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bkpy.config.bookie import BookieSettings

log = logging.getLogger("bkpy.bookie")


class Credentials:
    """`certificates` is None for a bookie without TLS. Raises `ConfigError` for unusable files.

    It calls the functions in `on_rights` when the file of rights has changed.
    """

    def __init__(self, settings: BookieSettings) -> None:
        self.certificates: Certificates | None = None
        self.on_rights: list[Callable[[], None]] = []
        self.certificate_ends_s = 0.0  # in seconds since 1970; 0 if there is none, or clients refuse it
        self._interval_s = settings.tls_reload_interval_s
        self._reported = ""  # the last error, which is logged once
        self._host, _ = split_address(settings.advertised_address or settings.listen)
        self._rights_file = settings.access_file
        self._rights_stamp = (0, 0, 0)
        self._rules: AccessRules | None = None
        if settings.tls_certificate_file is not None:
            if settings.tls_ca_file is None:
                raise AssertionError("clients would be taken without a certificate: the settings see to that")
            files = TlsFiles(settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
            self.certificates = Certificates(files, Side.BOOKIE, of_bookkeeper=settings.protocol == "bookkeeper")
            self._examine(self.certificates)
        self._read_rights()

    def rights_of(self, names: Collection[str]) -> Right:
        """The rights of a client with these names now."""
        return ALL if self._rules is None else self._rules.rights_of(names)

    def reload(self) -> list[str]:
        """Read changed files again; returns which. Raises `ConfigError` for an unusable one, after the others."""
        changed, wrong = [], []
        for name, read in (("rights", self._reread_rights), ("certificates", self._reread_certificates)):
            try:
                if read():
                    log.info("reloaded the %s", name)
                    changed.append(name)
            except ConfigError as e:
                wrong.append(e)
        if wrong:
            raise wrong[0]
        self._reported = ""
        return changed

    def _reread_certificates(self) -> bool:
        changed = self.certificates is not None and self.certificates.reload()
        if changed and self.certificates is not None:
            self._examine(self.certificates)
        return changed

    def _examine(self, certificates: Certificates) -> None:
        self.certificate_ends_s, flaw = examined(certificates.context, certificates.files, self._host)
        if flaw:
            log.error(
                "%s: bookies and clients will refuse the certificate [file %s]", flaw, certificates.files.certificate
            )

    def _reread_rights(self) -> bool:
        changed = self._read_rights()
        if changed:
            for call in self.on_rights:
                call()
        return changed

    def _read_rights(self) -> bool:
        """Read the file of rights if it has changed; whether it has."""
        path = self._rights_file
        if path is None or ((stamp := access_file_stamp(path)) == self._rights_stamp and any(stamp)):
            return False
        try:
            self._rules = AccessRules(read_access_file(path))
        except ConfigError:
            raise
        except ValueError as e:
            raise ConfigError(f"the file of rights: {e}", path=path) from None
        self._rights_stamp = stamp
        return True

    async def watch(self) -> None:
        """Look for changes as long as the bookie runs."""
        while self.certificates is not None:
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> None:
        """`reload`, and log an error."""
        try:
            self.reload()
        except ConfigError as e:
            if str(e) != self._reported:
                self._reported = str(e)
                log.error("failed to reload: %s; the bookie goes on with its former certificates and rights", e)
