"""Pure: who may read the page. Host names, key, and the headers that keep a browser in bounds."""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::\d{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`key`: what a reader of /api must show; None only where the server listens on loopback.
    `names`: host names, besides addresses, under which the page may be asked for.
    """

    key: str | None = None
    names: tuple[str, ...] = ()

    def may_use_host(self, host: str) -> bool:
        """False for a name that is not ours: a page elsewhere may have let its own name point here (DNS
        rebinding). The port may be any: an SSH tunnel has its own. An address is nobody's name.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["six"] or match["name"]).lower().rstrip(".")
        if name == "localhost" or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.key is not None

    def may_read(self, authorization: str | None) -> bool:
        """Compared in constant time."""
        if self.key is None:
            return True
        kind, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.key.encode())
        return same and kind.lower() == "bearer"
