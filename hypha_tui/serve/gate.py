"""Who may come in: links that work once, cookies, and the hosts and origins a browser may name. No I/O.

The server listens on this machine only, but so do other people's browsers' pages: a page on the web can send requests
to 127.0.0.1, and a name of its own may resolve to it. Hence a request needs the cookie, a loopback name in `Host`
(against names that resolve anew), and, where the browser says who asks, our own origin.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

from yarl import URL

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_COOKIES: Final = 64
"""Browsers that are let in; the one that came first is forgotten when one more comes."""


class Gate:
    """Hands out a link's token, takes it back for a cookie, and judges requests."""

    def __init__(self, new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> None:
        self._new_secret = new_secret
        self._cookies: deque[str] = deque(maxlen=MOST_COOKIES)
        self.token = new_secret()

    def redeem(self, token: str) -> str | None:
        """A cookie for a link's token, which is worth nothing from then on; None if it is not the present one."""
        if not _same(token, self.token):
            return None
        self.token = self._new_secret()
        cookie = self._new_secret()
        self._cookies.append(cookie)
        return cookie

    def knows(self, cookie: str) -> bool:
        """Whether a browser was let in with this cookie."""
        return any(_same(cookie, known) for known in self._cookies)


def is_our_host(host: str) -> bool:
    """Whether `Host` names this machine. Any port: a tunnel may end at another one."""
    try:
        return URL(f"http://{host}").host in LOOPBACK and "@" not in host and "/" not in host
    except ValueError:
        return False


def is_our_origin(origin: str | None, host: str, *, needed: bool) -> bool:
    """Whether the page that asks is ours. Browsers leave `Origin` out of plain visits, never out of a WebSocket's."""
    if origin is None:
        return not needed
    return origin.lower() == f"http://{host}".lower()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
