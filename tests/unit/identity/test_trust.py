"""Whom a node believes."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from node.errors import IdentityError, PeerUntrusted
from node.identity import authority
from node.identity.caller import Caller
from node.identity.certificates import read_certificates, read_key
from node.identity.credentials import load_identity
from node.identity.trust import Trust
from tests.support import MakeIdentity, make_authority, make_identity_in

DAY = 86400.0
Check = Callable[[Trust, list[bytes]], Caller]
CHECKS: tuple[Check, ...] = (Trust.verify_chain, lambda trust, chain: trust.caller_of(chain[0]))
"""The ways to look at a certificate: one that came with a record, and one that came over TLS."""


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def issue(
    subject: str,
    issuer: str,
    public: object,
    signer: object,
    *extensions: tuple[x509.ExtensionType, bool],
    days: float = 30,
) -> x509.Certificate:
    """A certificate as another PKI might make it: no extension but those given."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(public)  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    algorithm = None if isinstance(signer, Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(signer, algorithm)  # type: ignore[arg-type]


CA = (x509.BasicConstraints(ca=True, path_length=None), True)


class OtherPki:
    """A root that is not ours, with keys of another kind."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.root = issue("their root", "their root", self.key.public_key(), self.key, CA)
        self.node_key = Ed25519PrivateKey.generate()

    def node(self, *extensions: tuple[x509.ExtensionType, bool], days: float = 30) -> bytes:
        public = self.node_key.public_key()
        return issue("their node", "their root", public, self.key, *extensions, days=days).public_bytes(Encoding.DER)

    def trust(self, now: Callable[[], float] = time.time) -> Trust:
        return Trust([self.root], now=now)


def der(path: Path) -> list[bytes]:
    return [certificate.public_bytes(Encoding.DER) for certificate in read_certificates(path, "certificate")]


def test_a_peer_of_the_same_root_is_known_by_its_key_name_and_role(make_identity: MakeIdentity) -> None:
    here, ada = make_identity("here").load(), make_identity("ada", role="operator")
    caller = here.trust.verify_chain(der(ada.cert))
    assert (caller.peer_id, caller.name, caller.role) == (ada.peer_id, "ada", "operator")
    assert 364 < caller.days_left <= 365
    assert here.trust.caller_of(der(ada.cert)[0]) == caller


def test_a_certificate_of_any_pki_without_extensions_of_ours_is_usable() -> None:
    pki = OtherPki()
    caller = pki.trust().verify_chain([pki.node()])
    assert (caller.role, caller.name) == ("node", "their node")
    assert pki.trust().caller_of(pki.node()).peer_id == caller.peer_id


def test_a_stranger_is_refused(make_identity: MakeIdentity, tmp_path: Path) -> None:
    here = make_identity("here").load()
    make_authority(tmp_path, "acme")
    stranger = make_identity_in(tmp_path, "w1").load()
    with pytest.raises(PeerUntrusted, match="not issued by an authority we trust"):
        here.trust.verify_chain(stranger.chain)
    assert here.trust.authority != stranger.trust.authority


def test_a_self_signed_node_certificate_is_refused_even_when_it_is_in_the_bundle() -> None:
    pki = OtherPki()
    key = Ed25519PrivateKey.generate()
    alone = issue("alone", "alone", key.public_key(), key)
    trust = Trust([pki.root, alone])
    for check in CHECKS:
        with pytest.raises(PeerUntrusted, match="certificate of alone is self-signed"):
            check(trust, [alone.public_bytes(Encoding.DER)])


def test_a_leaf_cannot_vouch_for_another_leaf() -> None:
    pki = OtherPki()
    leaf = x509.load_der_x509_certificate(pki.node())
    key = Ed25519PrivateKey.generate()
    forged = issue("forged", "their node", key.public_key(), pki.node_key).public_bytes(Encoding.DER)
    with pytest.raises(PeerUntrusted, match="not issued by an authority we trust"):
        pki.trust().verify_chain([forged, leaf.public_bytes(Encoding.DER)])


def test_an_authority_cannot_be_a_peer_nor_go_beyond_its_path_length(authority_dir: Path) -> None:
    trust = Trust(read_certificates(authority_dir / "acme-root-ca-cert.pem", "root"))
    org = read_certificates(authority_dir / "acme-ca-cert.pem", "org")[0]
    org_key = read_key(authority_dir / "acme-ca-key.pem")
    with pytest.raises(PeerUntrusted, match="is an authority's, not a node's"):
        trust.verify_chain([org.public_bytes(Encoding.DER)])
    below = Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.UTC)
    sub = (
        x509.CertificateBuilder(issuer_name=org.subject, subject_name=name("sub"), public_key=below.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(*CA)
        .sign(org_key, None)
    )
    leaf = issue("leaf", "sub", Ed25519PrivateKey.generate().public_key(), below)
    with pytest.raises(PeerUntrusted, match="acme CA may not vouch for another authority"):
        trust.verify_chain([part.public_bytes(Encoding.DER) for part in (leaf, sub, org)])


def test_keys_that_have_no_peer_id_are_refused() -> None:
    pki = OtherPki()
    leaf = issue("rsa", "their root", ec.generate_private_key(ec.SECP256R1()).public_key(), pki.key)
    with pytest.raises(PeerUntrusted, match="not an Ed25519 key"):
        pki.trust().verify_chain([leaf.public_bytes(Encoding.DER)])


def test_critical_extensions_that_we_do_not_act_upon_are_refused() -> None:
    pki = OtherPki()
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\5\0")
    with pytest.raises(PeerUntrusted, match=r"critical extension we do not know: 1\.2\.3\.4\.5"):
        pki.trust().verify_chain([pki.node((unknown, True))])
    assert pki.trust().verify_chain([pki.node((unknown, False))]).name == "their node"


@pytest.mark.parametrize("chain", [[], [b"nonsense"], [b"\x30\x00"] * 9])
def test_what_is_no_chain_is_refused(chain: list[bytes]) -> None:
    with pytest.raises(PeerUntrusted):
        OtherPki().trust().verify_chain(chain)


def test_a_certificate_stops_counting_when_it_expires_also_out_of_the_cache() -> None:
    """U81: the clock is moved by 400 days."""
    pki = OtherPki()
    clock = [time.time()]
    trust, leaf = pki.trust(lambda: clock[0]), pki.node()
    trust.verify_chain([leaf])
    trust.caller_of(leaf)
    clock[0] += 400 * DAY
    for check in CHECKS:
        with pytest.raises(PeerUntrusted, match=r"their node expired on \d{4}-\d\d-\d\d"):
            check(trust, [leaf])
    clock[0] -= 500 * DAY
    with pytest.raises(PeerUntrusted, match="not valid before"):
        pki.trust(lambda: clock[0]).caller_of(leaf)


def test_a_revoked_node_is_refused_but_not_others(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = {who: make_identity_in(tmp_path, who) for who in ("here", "bad", "good")}
    crl = authority.revoke(tmp_path, ["bad"])
    trust = files["here"].load(crl).trust
    bad = der(files["bad"].cert)
    for check in CHECKS:
        with pytest.raises(PeerUntrusted, match="certificate of bad has been revoked"):
            check(trust, bad)
    assert trust.verify_chain(der(files["good"].cert)).name == "good"
    assert trust.is_revoked(read_certificates(files["bad"].cert, "")[0].serial_number)
    assert not trust.is_revoked(read_certificates(files["good"].cert, "")[0].serial_number)


def test_a_revoked_organization_takes_its_nodes_along(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = make_identity_in(tmp_path, "w1")
    root = read_certificates(tmp_path / "acme-root-ca-cert.pem", "")[0]
    org = read_certificates(tmp_path / "acme-ca-cert.pem", "")[0]
    now = datetime.datetime.now(datetime.UTC)
    entry = x509.RevokedCertificateBuilder().serial_number(org.serial_number).revocation_date(now).build()
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(now)
        .next_update(now + datetime.timedelta(days=1))
        .add_revoked_certificate(entry)
        .sign(read_key(tmp_path / "acme-root-ca-key.pem"), None)
    )
    trust = Trust([root, org], [crl])
    for check in CHECKS:
        with pytest.raises(PeerUntrusted, match="certificate of acme CA has been revoked"):
            check(trust, der(files.cert))


def test_a_revocation_list_that_its_issuer_has_not_signed_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path / "a")
    make_authority(tmp_path / "b")
    files = make_identity_in(tmp_path / "a", "w1")
    with pytest.raises(IdentityError, match="revocation list of acme CA is not signed by it"):
        load_identity(files.cert, files.key, files.trust, tmp_path / "b" / "acme-crl.pem")


def test_a_name_cannot_write_on_the_terminal_of_whoever_is_shown_it() -> None:
    pki = OtherPki()
    leaf = issue("\x1b[2Jgw\nroot: ok", "their root", pki.node_key.public_key(), pki.key)
    assert pki.trust().verify_chain([leaf.public_bytes(Encoding.DER)]).name == "?[2Jgw?root: ok"


def test_an_empty_or_outdated_list_shuts_nobody_out(tmp_path: Path) -> None:
    make_authority(tmp_path)
    good, bad = make_identity_in(tmp_path, "good"), make_identity_in(tmp_path, "bad")
    assert good.load(tmp_path / "acme-crl.pem").warnings == []
    org = read_certificates(tmp_path / "acme-ca-cert.pem", "")[0]
    now = datetime.datetime.now(datetime.UTC)
    serial = read_certificates(bad.cert, "")[0].serial_number
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(org.subject)
        .last_update(now - datetime.timedelta(days=9))
        .next_update(now - datetime.timedelta(days=2))
        .add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now).build())
        .sign(read_key(tmp_path / "acme-ca-key.pem"), None)
    )
    path = tmp_path / "late.pem"
    path.write_bytes(crl.public_bytes(Encoding.PEM))
    identity = good.load(path)
    assert "of acme CA is out of date since" in identity.warnings[0]
    assert identity.trust.verify_chain(der(good.cert)).name == "good"
    with pytest.raises(PeerUntrusted, match="bad has been revoked"):
        identity.trust.verify_chain(der(bad.cert))


def test_an_envelope_tells_who_sealed_it_and_nobody_else_can_open_it_differently(make_identity: MakeIdentity) -> None:
    here, there = make_identity("here").load(), make_identity("there").load()
    signed = there.sign(b"record")
    assert here.trust.open(signed) == (there.caller, b"record")
    for forged in (
        msgspec.structs.replace(signed, payload=b"other"),
        msgspec.structs.replace(signed, signature=bytes(64)),
        msgspec.structs.replace(signed, signature=b""),
        msgspec.structs.replace(signed, chain=here.chain),
    ):
        with pytest.raises(PeerUntrusted, match="does not fit what it signed"):
            here.trust.open(forged)


def test_a_signature_over_the_bare_payload_opens_nothing(make_identity: MakeIdentity) -> None:
    files = make_identity("there")
    there = files.load()
    bare = read_key(files.key).sign(b"record")
    with pytest.raises(PeerUntrusted, match="does not fit"):
        there.trust.open(msgspec.structs.replace(there.sign(b"record"), signature=bare))


def test_once_an_authority_leaves_the_bundle_its_nodes_are_refused_though_tls_still_lets_them_in(
    tmp_path: Path,
) -> None:
    make_authority(tmp_path / "old")
    make_authority(tmp_path / "new")
    old, new = make_identity_in(tmp_path / "old", "w1"), make_identity_in(tmp_path / "new", "w2")
    anchors = read_certificates(old.trust, "") + read_certificates(new.trust, "")
    assert Trust(anchors).caller_of(der(old.cert)[0]).name == "w1"
    with pytest.raises(PeerUntrusted, match="not issued by an authority we trust"):
        Trust(anchors[2:]).caller_of(der(old.cert)[0])
