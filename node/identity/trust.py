"""Whom we believe: chains of certificates up to the trust bundle, revocation, signed envelopes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from node.errors import IdentityError, PeerUntrusted
from node.identity.caller import Caller
from node.identity.certificates import (
    MAX_CHAIN,
    check_extensions,
    check_validity,
    common_name,
    is_ca,
    is_issued_by,
    is_self_signed,
    node_key,
    path_length,
    role_of,
)
from node.identity.peer_id import peer_id_of, raw_public_key_of
from node.wire import Signed

SIGNATURE_CONTEXT = b"hypha signed record v1\0"
"""Goes before the payload, so that a signature made for one purpose is none for another."""
_CACHE_SIZE = 4096
_MAX_LEARNED = 256


class Trust:
    """A trust bundle and its revocation lists. All methods may be called from any thread.

    `authority` tells clusters apart: a short hex name of the root's key.
    """

    def __init__(
        self,
        anchors: Sequence[x509.Certificate],
        crls: Iterable[x509.CertificateRevocationList] = (),
        *,
        known: Iterable[x509.Certificate] = (),
        authority: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._anchors = [anchor for anchor in anchors if is_ca(anchor)]
        if not self._anchors:
            raise IdentityError("it holds no certificate of an authority", hint="it must hold the root's")
        self._now = now
        self._lock = threading.Lock()
        self._authorities = {_digest(ca): ca for ca in (*self._anchors, *known) if is_ca(ca)}
        self._roots = {_digest(anchor) for anchor in self._anchors}
        self._cache: dict[bytes, tuple[Caller, float]] = {}
        self._revoked: dict[bytes, set[int]] = {}
        self.crl_next_updates: dict[str, float] = {}
        for crl in crls:
            self._add(crl)
        self.authority = authority or authority_of(self._anchors[0])

    @property
    def anchors(self) -> list[x509.Certificate]:
        """The authorities that everything is measured against."""
        return list(self._anchors)

    def verify_chain(self, chain: Sequence[bytes]) -> Caller:
        """Who the first of these DER certificates belongs to; PeerUntrusted unless it leads to the trust bundle."""
        if not chain or len(chain) > MAX_CHAIN:
            raise PeerUntrusted(f"a chain of {len(chain)} certificates is not acceptable")
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in chain)).digest()
        cached = self._cached(digest)
        if cached is not None:
            return cached
        leaf, *above = [_load(der) for der in chain]
        caller = self._caller(leaf)
        path = self._path(leaf, above)
        if path is None:
            raise PeerUntrusted(
                f"the certificate of {caller.name} was not issued by an authority we trust",
                hint="both nodes need certificates of the same root",
            )
        self._learn(path)
        return self._remember(digest, caller, path)

    def caller_of(self, leaf_der: bytes) -> Caller:
        """Who a certificate belongs to that TLS has already checked the chain of.

        Still refused: revoked, expired, self-signed, or of an authority that has been taken out of the bundle since.
        """
        digest = hashlib.sha256(b"leaf" + leaf_der).digest()
        cached = self._cached(digest)
        if cached is not None:
            return cached
        leaf = _load(leaf_der)
        caller = self._caller(leaf)
        path = self._path(leaf, [])
        if path is None and self._issuers(leaf, []):
            raise PeerUntrusted(f"the certificate of {caller.name} was not issued by an authority we trust")
        return self._remember(digest, caller, path or [])

    def open(self, signed: Signed) -> tuple[Caller, bytes]:
        """Who signed an envelope, and what is in it; PeerUntrusted when the chain or the signature is not good."""
        caller = self.verify_chain(signed.chain)
        key = Ed25519PublicKey.from_public_bytes(raw_public_key_of(caller.peer_id))
        try:
            key.verify(signed.signature, SIGNATURE_CONTEXT + signed.payload)
        except InvalidSignature:
            raise PeerUntrusted(f"the signature of {caller.name} does not fit what it signed") from None
        return caller, signed.payload

    def is_revoked(self, serial: int, issuer: x509.Name | None = None) -> bool:
        """Whether a list of this issuer (any issuer, if None) names the serial number."""
        if issuer is not None:
            return serial in self._revoked.get(issuer.public_bytes(), ())
        return any(serial in serials for serials in self._revoked.values())

    def _caller(self, leaf: x509.Certificate) -> Caller:
        name = common_name(leaf.subject)
        if is_self_signed(leaf):
            raise PeerUntrusted(
                f"the certificate of {name} is self-signed", hint="have it issued by the cluster's authority"
            )
        check_extensions(leaf)
        if is_ca(leaf):
            raise PeerUntrusted(f"the certificate of {name} is an authority's, not a node's")
        check_validity(leaf, self._now())
        self._check_revoked(leaf)
        peer_id = peer_id_of(node_key(leaf))
        expires_at = leaf.not_valid_after_utc.timestamp()
        return Caller(peer_id=peer_id, role=role_of(leaf), name=name, expires_at=expires_at, serial=leaf.serial_number)

    def _path(self, leaf: x509.Certificate, above: Sequence[x509.Certificate]) -> list[x509.Certificate] | None:
        """The authorities from the leaf's issuer up to an anchor, each one checked; None when there is no such path."""
        pending: list[list[x509.Certificate]] = [[]]
        refusal: PeerUntrusted | None = None
        steps = 0
        while pending:
            path = pending.pop()
            top = path[-1] if path else leaf
            for issuer in self._issuers(top, above):
                steps += 1
                if steps > 64 or len(path) >= MAX_CHAIN or issuer in path or not is_issued_by(top, issuer):
                    continue
                try:
                    self._check_authority(issuer, below=len(path))
                except PeerUntrusted as error:
                    refusal = error
                    continue
                if _digest(issuer) in self._roots:
                    return [*path, issuer]
                pending.append([*path, issuer])
        if refusal is not None:
            raise refusal
        return None

    def _issuers(self, certificate: x509.Certificate, above: Sequence[x509.Certificate]) -> list[x509.Certificate]:
        with self._lock:
            candidates = [*self._authorities.values(), *above]
        return [candidate for candidate in candidates if candidate.subject == certificate.issuer and is_ca(candidate)]

    def _check_authority(self, authority: x509.Certificate, below: int) -> None:
        check_extensions(authority)
        check_validity(authority, self._now())
        self._check_revoked(authority)
        limit = path_length(authority)
        if limit is not None and below > limit:
            raise PeerUntrusted(f"{common_name(authority.subject)} may not vouch for another authority")

    def _check_revoked(self, certificate: x509.Certificate) -> None:
        if self.is_revoked(certificate.serial_number, certificate.issuer):
            raise PeerUntrusted(f"the certificate of {common_name(certificate.subject)} has been revoked")

    def _add(self, crl: x509.CertificateRevocationList) -> None:
        issuers = [ca for ca in self._authorities.values() if ca.subject == crl.issuer]
        if issuers and not any(_signs(ca, crl) for ca in issuers):
            raise IdentityError(f"the revocation list of {common_name(crl.issuer)} is not signed by it")
        serials = self._revoked.setdefault(crl.issuer.public_bytes(), set())
        serials.update(entry.serial_number for entry in crl)
        if crl.next_update_utc is not None:
            self.crl_next_updates[common_name(crl.issuer)] = crl.next_update_utc.timestamp()

    def _learn(self, path: Sequence[x509.Certificate]) -> None:
        with self._lock:
            for authority in path:
                if len(self._authorities) < _MAX_LEARNED:
                    self._authorities.setdefault(_digest(authority), authority)

    def _cached(self, digest: bytes) -> Caller | None:
        with self._lock:
            found = self._cache.get(digest)
        if found is None or self._now() >= found[1]:
            return None
        return found[0]

    def _remember(self, digest: bytes, caller: Caller, path: Sequence[x509.Certificate]) -> Caller:
        until = min([caller.expires_at, *(ca.not_valid_after_utc.timestamp() for ca in path)])
        with self._lock:
            while len(self._cache) >= _CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
            self._cache[digest] = (caller, until)
        return caller


def authority_of(root: x509.Certificate) -> str:
    """The short name of a root's key."""
    spki = root.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()[:16]


def _signs(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    key = authority.public_key()
    try:
        return crl.is_signature_valid(key)  # type: ignore[arg-type]  # a key that cannot sign lists raises TypeError
    except TypeError:
        return False


def _digest(certificate: x509.Certificate) -> bytes:
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def _load(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise PeerUntrusted("what should be a certificate is none") from error
