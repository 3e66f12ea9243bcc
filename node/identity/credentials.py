"""Who we are: our certificate, key and trust bundle, and the TLS contexts made from them."""

from __future__ import annotations

import ssl
import stat
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from node.errors import IdentityError, PeerUntrusted
from node.identity.caller import Caller, Role
from node.identity.certificates import (
    MAKE_HINT,
    MAX_CHAIN,
    day,
    is_ca,
    is_issued_by,
    is_self_signed,
    node_key,
    read_certificates,
    read_crls,
    read_key,
)
from node.identity.trust import SIGNATURE_CONTEXT, Trust, authority_of
from node.wire import Signed

EXPIRY_WARNING_DAYS = 30.0
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Identity:
    """A node's own certificate and key. `reload()` follows changed files; contexts already handed out follow too."""

    def __init__(
        self,
        cert_pem: Path,
        key_pem: Path,
        trust_pem: Path,
        crls_pem: Path | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._paths = (cert_pem, key_pem, trust_pem, crls_pem)
        self._now = now
        self._contexts: weakref.WeakSet[ssl.SSLContext] = weakref.WeakSet()
        self._read()

    @property
    def peer_id(self) -> str:
        """Our id, from the certificate's key."""
        return self.caller.peer_id

    @property
    def name(self) -> str:
        """The certificate's common name."""
        return self.caller.name

    @property
    def role(self) -> Role:
        """Node or operator."""
        return self.caller.role

    @property
    def days_left(self) -> float:
        """Days until the first certificate of our chain expires."""
        ends = min(certificate.not_valid_after_utc.timestamp() for certificate in self._certificates)
        return (ends - self._now()) / 86400

    @property
    def warnings(self) -> list[str]:
        """What the owner should put right soon, one line each."""
        cert_pem, key_pem, _, crls_pem = self._paths
        lines = []
        mode = stat.S_IMODE(key_pem.stat().st_mode) if key_pem.exists() else 0
        if mode & 0o077:
            lines.append(f"private key {key_pem} can be read by others (mode {mode:04o}); chmod 600 it")
        if self.days_left < EXPIRY_WARNING_DAYS:
            ends = day(self._now() + self.days_left * 86400)
            hint = f"renew it with `hypha-node cert {self.role} {self.name} --renew`"
            lines.append(f"certificate {cert_pem} expires on {ends}, in {self.days_left:.0f} days; {hint}")
        for name, until in self.trust.crl_next_updates.items():
            if self._now() > until:
                lines.append(f"revocation list {crls_pem} of {name} is out of date since {day(until)}; it still counts")
        return lines

    def sign(self, payload: bytes) -> Signed:
        """The payload in an envelope that anyone of the same authority can check."""
        signature = self._key.sign(SIGNATURE_CONTEXT + payload)
        return Signed(payload=payload, signature=signature, chain=self.chain)

    def server_context(self) -> ssl.SSLContext:
        """A context for accepting: TLS 1.3, a certificate is demanded, nothing is resumed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # a resumed session skips the check of the certificate
        context.num_tickets = 0
        return self._prepare(context)

    def client_context(self) -> ssl.SSLContext:
        """A context for dialling. It checks the chain; comparing the peer id is up to whoever dials."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._prepare(context)

    def reload(self) -> bool:
        """Read the files again if one has changed; whether one had. On IdentityError everything stays as it was."""
        if _stamp(self._paths) == self._stamp:
            return False
        self._read()
        for context in list(self._contexts):
            self._fill(context)
        return True

    def _read(self) -> None:
        cert_pem, key_pem, trust_pem, crls_pem = self._paths
        stamp = _stamp(self._paths)
        certificates = read_certificates(cert_pem, "certificate")
        leaf = certificates[0]
        key = read_key(key_pem)
        _check_leaf(leaf, key, cert_pem, key_pem)
        anchors = read_certificates(trust_pem, "trust bundle")
        crls = read_crls(crls_pem) if crls_pem else []
        path = _complete(certificates, anchors)
        authority = authority_of(path[-1]) if is_ca(path[-1]) else ""
        try:
            trust = Trust(anchors, crls, known=certificates[1:], authority=authority, now=self._now)
        except IdentityError as error:
            hint = error.hint or "check trust_pem and crls_pem"
            raise IdentityError(f"trust bundle {trust_pem}: {error.message}", hint=hint) from error
        chain = [part.public_bytes(Encoding.DER) for part in path if part is leaf or not is_self_signed(part)]
        try:
            caller = trust.verify_chain(chain)
        except PeerUntrusted as error:
            hint = error.hint or f"use a certificate issued by an authority in {trust_pem}"
            raise IdentityError(f"certificate {cert_pem}: {error.message}", hint=hint) from error
        _scratch(cert_pem, key_pem)
        self.caller: Caller = caller
        self.chain: list[bytes] = chain
        self.trust: Trust = trust
        self._certificates = path
        self._key = key
        self._stamp = stamp

    def _prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        # a trust bundle may hold an organization's authority without its root
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._fill(context)
        self._contexts.add(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        cert_pem, key_pem, _, _ = self._paths
        try:
            context.load_cert_chain(cert_pem, key_pem, password=_no_passphrase)
            # OpenSSL keeps what it was given before; `Trust` refuses what has been taken out of the bundle
            context.load_verify_locations(cadata=b"".join(ca.public_bytes(Encoding.DER) for ca in self.trust.anchors))
        except (ssl.SSLError, OSError, ValueError) as error:
            raise IdentityError(f"certificate {cert_pem} cannot be used: {error}", hint=MAKE_HINT) from error


def load_identity(
    cert_pem: Path | None,
    key_pem: Path | None,
    trust_pem: Path | None,
    crls_pem: Path | None = None,
    *,
    now: Callable[[], float] = time.time,
) -> Identity:
    """The identity in these files; IdentityError says which file is wrong, how, and what to do."""
    missing = [
        name for name, path in (("cert_pem", cert_pem), ("key_pem", key_pem), ("trust_pem", trust_pem)) if not path
    ]
    if not (cert_pem and key_pem and trust_pem):
        raise IdentityError(
            f"no certificate: {', '.join(missing)} not set",
            hint="make one with `hypha-node cert root`, then `cert org`, then `cert node NAME`, and set its files",
        )
    return Identity(Path(cert_pem), Path(key_pem), Path(trust_pem), Path(crls_pem) if crls_pem else None, now)


def _check_leaf(leaf: x509.Certificate, key: Ed25519PrivateKey, cert_pem: Path, key_pem: Path) -> None:
    try:
        raw = node_key(leaf)
    except PeerUntrusted as error:
        raise IdentityError(f"certificate {cert_pem}: {error.message}", hint=error.hint) from error
    if raw != key.public_key().public_bytes_raw():
        raise IdentityError(
            f"private key {key_pem} does not belong to certificate {cert_pem}",
            hint="name the pair that was made together",
        )
    if is_self_signed(leaf):
        raise IdentityError(
            f"certificate {cert_pem} is self-signed",
            hint="have it issued: `hypha-node cert node NAME` of the cluster's authority",
        )


def _complete(certificates: list[x509.Certificate], anchors: list[x509.Certificate]) -> list[x509.Certificate]:
    """Our chain in order, up to an anchor where the files hold the way to one."""
    path = [certificates[0]]
    others = [*certificates[1:], *anchors]
    while len(path) < MAX_CHAIN and not is_self_signed(path[-1]):
        above = next((ca for ca in others if ca not in path and is_ca(ca) and is_issued_by(path[-1], ca)), None)
        if above is None:
            break
        path.append(above)
    return path


def _scratch(cert_pem: Path, key_pem: Path) -> None:
    """A pair that does not fit would break a live context: try it on another one first."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_pem, key_pem, password=_no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise IdentityError(f"certificate {cert_pem} cannot be used: {error}", hint=MAKE_HINT) from error


def _no_passphrase() -> str:
    raise ValueError("the private key has a passphrase")


def _stamp(paths: tuple[Path | None, ...]) -> _Stamp:
    stamps = []
    for path in paths:
        try:
            info = path.stat() if path else None
        except OSError:
            info = None
        stamps.append((info.st_mtime_ns, info.st_size, info.st_ino) if info else None)
    return tuple(stamps)
