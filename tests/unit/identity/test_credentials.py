"""A node's own certificate, key and TLS contexts."""

from __future__ import annotations

import shutil
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from node.errors import IdentityError, PeerUntrusted
from node.identity import authority
from node.identity.certificates import read_key
from node.identity.credentials import Identity, load_identity
from tests.support import IdentityFiles, MakeIdentity, make_authority, make_identity_in
from tests.unit.identity.test_trust import issue

DAY = 86400.0


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A TLS handshake in memory; both ends, server first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="anything.peer"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(6):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends[1], ends[0]


def test_two_nodes_meet_over_tls_13_and_know_each_other(make_identity: MakeIdentity) -> None:
    here, there = make_identity("here").load(), make_identity("there").load()
    server, client = shake_hands(here.server_context(), there.client_context())
    assert server.version() == client.version() == "TLSv1.3"
    theirs, ours = server.getpeercert(True), client.getpeercert(True)
    assert theirs is not None and ours is not None
    assert here.trust.caller_of(theirs).peer_id == there.peer_id
    assert there.trust.caller_of(ours).peer_id == here.peer_id


def test_our_certificates_pass_the_strict_checks_of_newer_pythons(make_identity: MakeIdentity) -> None:
    server, client = make_identity("here").load().server_context(), make_identity("there").load().client_context()
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    shake_hands(server, client)


def test_no_session_is_ever_resumed(make_identity: MakeIdentity) -> None:
    identity = make_identity("here").load()
    server, client = identity.server_context(), identity.client_context()
    assert server.num_tickets == 0
    assert server.options & client.options & ssl.OP_NO_TICKET
    _, end = shake_hands(server, client)
    assert end.session is None or not end.session.has_ticket


def test_a_client_without_a_certificate_or_with_older_tls_gets_no_connection(make_identity: MakeIdentity) -> None:
    identity = make_identity("here").load()
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(identity.server_context(), bare)
    old = identity.client_context()
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(identity.server_context(), old)


def test_nodes_of_another_root_do_not_meet(make_identity: MakeIdentity, tmp_path: Path) -> None:
    make_authority(tmp_path)
    stranger, here = make_identity_in(tmp_path, "x").load(), make_identity("here").load()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(here.server_context(), stranger.client_context())


def test_a_certificate_file_without_its_chain_works_where_the_bundle_has_the_rest(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = make_identity_in(tmp_path, "w1")
    leaf = files.cert.read_text().split("-----BEGIN")[1]
    files.cert.write_text(f"-----BEGIN{leaf}")
    identity = files.load()
    assert len(identity.chain) == 2
    root_only = load_identity(*make_identity_in(tmp_path, "w2")[:2], tmp_path / "acme-root-ca-cert.pem")
    assert root_only.trust.open(identity.sign(b"x"))[0].peer_id == files.peer_id
    shake_hands(root_only.server_context(), identity.client_context())


def test_the_authority_of_a_cluster_does_not_depend_on_the_order_in_the_bundle(tmp_path: Path) -> None:
    for part in ("ours", "next"):
        make_authority(tmp_path / part)
    files, other = make_identity_in(tmp_path / "ours", "w1"), make_identity_in(tmp_path / "next", "w2")
    before = files.load().trust.authority
    files.trust.write_text(other.trust.read_text() + files.trust.read_text())
    assert files.load().trust.authority == before


def failure(*files: Path | None) -> str:
    with pytest.raises(IdentityError) as caught:
        load_identity(*files)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


def test_every_fault_names_the_file_and_what_to_do(make_identity: MakeIdentity, tmp_path: Path) -> None:
    """U70."""
    cert, key, trust, _ = make_identity("w")
    other = make_identity("other")
    nothing = tmp_path / "none.pem"
    junk = tmp_path / "junk.pem"
    junk.write_text("hello")
    assert "no certificate: cert_pem, key_pem, trust_pem not set; make one with" in failure(None, None, None)
    assert f"certificate {nothing} does not exist; make one with" in failure(nothing, key, trust)
    assert f"private key {nothing} does not exist" in failure(cert, nothing, trust)
    assert f"trust bundle {nothing} does not exist" in failure(cert, key, nothing)
    assert f"revocation list {nothing} does not exist" in failure(cert, key, trust, nothing)
    assert f"certificate {junk} holds no certificate" in failure(junk, key, trust)
    assert f"private key {junk} holds no key" in failure(cert, junk, trust)
    assert f"revocation list {junk} holds no list" in failure(cert, key, trust, junk)
    assert f"private key {other.key} does not belong to certificate {cert}" in failure(cert, other.key, trust)
    junk.write_text("-----BEGIN" + cert.read_text().split("-----BEGIN")[1])
    assert f"trust bundle {junk}: it holds no certificate of an authority" in failure(cert, key, junk)


def test_a_key_with_a_passphrase_is_told_apart(make_identity: MakeIdentity, tmp_path: Path) -> None:
    files = make_identity("w")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        read_key(files.key).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    assert f"private key {locked} has a passphrase" in failure(files.cert, locked, files.trust)


def test_a_self_signed_certificate_is_refused(make_identity: MakeIdentity, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "c.pem").write_bytes(issue("me", "me", key.public_key(), key).public_bytes(Encoding.PEM))
    (tmp_path / "k.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    text = failure(tmp_path / "c.pem", tmp_path / "k.pem", make_identity("w").trust)
    assert "c.pem is self-signed; have it issued" in text


def test_a_bundle_of_another_cluster_is_told(make_identity: MakeIdentity, tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = make_identity("w")
    text = failure(files.cert, files.key, tmp_path / "acme-root-ca-cert.pem")
    assert "not issued by an authority we trust" in text


def test_an_expired_certificate_is_told_with_its_day(make_identity: MakeIdentity) -> None:
    """U81."""
    files = make_identity("w")
    with pytest.raises(IdentityError, match=r"expired on \d{4}-\d\d-\d\d; renew it with"):
        load_identity(*files[:3], now=lambda: time.time() + 400 * DAY)


def test_an_expiry_within_a_month_and_a_readable_key_are_warned_about(tmp_path: Path) -> None:
    """H59."""
    make_authority(tmp_path)
    files = make_identity_in(tmp_path, "w1")
    assert files.load().warnings == []
    files.key.chmod(0o640)
    late = load_identity(*files[:3], now=lambda: time.time() + 340 * DAY)
    readable, expiring = late.warnings
    assert "can be read by others (mode 0640); chmod 600" in readable
    assert "in 25 days; renew it with `hypha-node cert node w1 --renew`" in expiring
    assert 24 < late.days_left < 25


def replace(files: IdentityFiles, source: IdentityFiles) -> None:
    for old, new in zip(files[:3], source[:3], strict=True):
        shutil.copy(new, old)


def test_a_renewed_certificate_is_used_by_contexts_that_exist_already(tmp_path: Path) -> None:
    """U81."""
    make_authority(tmp_path)
    files, other = make_identity_in(tmp_path, "w1"), make_identity_in(tmp_path, "w2").load()
    identity = files.load()
    context = identity.server_context()
    assert not identity.reload()
    authority.make_member(tmp_path, "w1", renew=True, days=30)
    assert identity.reload()
    assert identity.peer_id == files.peer_id
    assert identity.days_left < 31
    _, client = shake_hands(context, other.client_context())
    leaf = client.getpeercert(True)
    assert leaf is not None
    assert other.trust.caller_of(leaf).days_left < 31


def test_a_revocation_counts_as_soon_as_the_list_is_read_again(tmp_path: Path) -> None:
    make_authority(tmp_path)
    identity = make_identity_in(tmp_path, "w1").load(tmp_path / "acme-crl.pem")
    other = make_identity_in(tmp_path, "w2").load()
    assert identity.trust.verify_chain(other.chain).name == "w2"
    authority.revoke(tmp_path, ["w2"])
    assert identity.reload()
    with pytest.raises(PeerUntrusted, match="w2 has been revoked"):
        identity.trust.verify_chain(other.chain)


def test_two_authorities_count_while_one_replaces_the_other(tmp_path: Path) -> None:
    """U81."""
    make_authority(tmp_path / "old")
    make_authority(tmp_path / "new")
    files = make_identity_in(tmp_path / "old", "w1")
    identity, newcomer = files.load(), make_identity_in(tmp_path / "new", "w2")
    context = identity.server_context()
    files.trust.write_text(files.trust.read_text() + newcomer.trust.read_text())
    newcomer.trust.write_text(files.trust.read_text())
    assert identity.reload()
    server, _ = shake_hands(context, newcomer.load().client_context())
    leaf = server.getpeercert(True)
    assert leaf is not None
    assert identity.trust.caller_of(leaf).name == "w2"


def test_files_that_do_not_fit_leave_everything_as_it_was(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files, other = make_identity_in(tmp_path, "w1"), make_identity_in(tmp_path, "w2")
    identity: Identity = files.load()
    context = identity.server_context()
    shutil.copy(other.cert, files.cert)
    for _ in range(2):
        with pytest.raises(IdentityError, match="does not belong to certificate"):
            identity.reload()
    shake_hands(context, other.load().client_context())
    assert identity.peer_id == files.peer_id
    shutil.copy(other.key, files.key)
    assert identity.reload()
    assert identity.peer_id == other.peer_id
