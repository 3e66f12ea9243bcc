"""Making certificates."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from node.errors import IdentityError
from node.identity import authority
from node.identity.credentials import load_identity
from tests.support import make_authority, make_identity_in


def certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def test_the_files_are_those_that_upstream_writes(tmp_path: Path) -> None:
    make_authority(tmp_path, "acme")
    make_identity_in(tmp_path, "w1")
    assert {path.name for path in tmp_path.iterdir()} == {
        "acme-root-ca-cert.pem",
        "acme-root-ca-key.pem",
        "acme-ca-cert.pem",
        "acme-ca-key.pem",
        "acme-ca-trust.pem",
        "acme-crl.pem",
        "w1-cert.pem",
        "w1-key.pem",
        "w1-trust.pem",
    }


def test_private_keys_are_pkcs8_and_for_their_owner_only(tmp_path: Path) -> None:
    """H59."""
    make_authority(tmp_path)
    make_identity_in(tmp_path, "w1")
    keys = sorted(tmp_path.glob("*-key.pem"))
    assert len(keys) == 3
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")


def test_the_chain_has_three_ed25519_certificates_that_strict_checkers_accept(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = make_identity_in(tmp_path, "w1")
    leaf, org = certificates(files.cert)
    (root,) = certificates(tmp_path / "acme-root-ca-cert.pem")
    for certificate, issuer, is_authority in ((leaf, org, False), (org, root, True), (root, root, True)):
        certificate.verify_directly_issued_by(issuer)
        assert isinstance(certificate.public_key(), Ed25519PublicKey)
        extensions = certificate.extensions
        basic = extensions.get_extension_for_class(x509.BasicConstraints)
        usage = extensions.get_extension_for_class(x509.KeyUsage)
        assert (basic.critical, usage.critical) == (True, True)
        assert (basic.value.ca, usage.value.key_cert_sign, usage.value.crl_sign) == (is_authority,) * 3
        own = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        above = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        assert above.key_identifier == issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
        assert own.digest
    assert root in certificates(files.trust)


def test_an_existing_key_is_never_replaced_without_force(tmp_path: Path) -> None:
    make_authority(tmp_path)
    before = make_identity_in(tmp_path, "w1")
    key = before.key.read_bytes()
    for make, name in ((authority.make_member, "w1"), (authority.make_root, "acme"), (authority.make_org, "acme")):
        with pytest.raises(IdentityError, match=r"exists already; .*--force"):
            make(tmp_path, name)
    before.cert.unlink()
    with pytest.raises(IdentityError, match=r"w1-key\.pem exists already"):
        authority.make_member(tmp_path, "w1")
    assert before.key.read_bytes() == key
    assert authority.make_member(tmp_path, "w1", force=True).peer_id != before.peer_id
    assert not list(tmp_path.glob(".*"))


def test_a_certificate_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    make_authority(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(IdentityError, match="0 days is not a validity"):
        authority.make_member(tmp_path, "w1", days=0)
    assert set(tmp_path.iterdir()) == before


def test_a_renewed_certificate_keeps_its_peer_id(tmp_path: Path) -> None:
    """H59."""
    make_authority(tmp_path)
    before = make_identity_in(tmp_path, "w1")
    old = certificates(before.cert)[0]
    after = authority.make_member(tmp_path, "w1", renew=True, days=30)
    new = certificates(after.cert)[0]
    assert after.peer_id == before.peer_id
    assert new.serial_number != old.serial_number
    with pytest.raises(IdentityError, match=r"none-key\.pem does not exist"):
        authority.make_member(tmp_path, "none", renew=True)


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    authority.make_root(tmp_path, "acme", days=10)
    authority.make_org(tmp_path, "acme")
    leaf = certificates(authority.make_member(tmp_path, "w1", days=300).cert)[0]
    left = leaf.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=9) < left <= datetime.timedelta(days=10)


def test_operators_are_marked_in_their_subject(tmp_path: Path) -> None:
    make_authority(tmp_path)
    files = make_identity_in(tmp_path, "ada", role="operator")
    assert "OU=operator" in certificates(files.cert)[0].subject.rfc4514_string()
    assert files.load().role == "operator"
    assert make_identity_in(tmp_path, "w1").load().role == "node"


def test_two_organizations_share_a_root_and_trust_each_other(tmp_path: Path) -> None:
    authority.make_root(tmp_path, "acme")
    authority.make_org(tmp_path, "east")
    authority.make_org(tmp_path, "west")
    east = authority.make_member(tmp_path, "e1", org="east")
    west = authority.make_member(tmp_path, "w1", org="west")
    there, here = (load_identity(files.cert, files.key, files.trust) for files in (east, west))
    assert here.trust.verify_chain(there.chain).peer_id == east.peer_id
    assert here.trust.authority == there.trust.authority
    with pytest.raises(IdentityError, match="more than one organization: east, west; name one"):
        authority.make_member(tmp_path, "x")


def test_what_is_missing_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="holds no root; make one with `hypha-node cert root"):
        authority.make_org(tmp_path, "acme")
    authority.make_root(tmp_path, "acme")
    with pytest.raises(IdentityError, match="holds no organization; make one with `hypha-node cert org"):
        authority.make_member(tmp_path, "w1")
    with pytest.raises(IdentityError, match=r"there is no .*east-ca-cert\.pem; make it with .* --org east"):
        authority.make_member(tmp_path, "w1", org="east")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "acme-ca", "acme-root"])
def test_names_that_would_be_other_files_are_refused(tmp_path: Path, name: str) -> None:
    make_authority(tmp_path)
    with pytest.raises(IdentityError, match="cannot be a name"):
        authority.make_member(tmp_path, name)


def test_revoked_certificates_add_up_on_the_list(tmp_path: Path) -> None:
    make_authority(tmp_path)
    first, second = make_identity_in(tmp_path, "w1"), make_identity_in(tmp_path, "w2")
    path = authority.revoke(tmp_path, ["w1"])
    authority.revoke(tmp_path, [str(second.cert)])
    crl = x509.load_pem_x509_crl(path.read_bytes())
    serials = {certificates(files.cert)[0].serial_number for files in (first, second)}
    assert {entry.serial_number for entry in crl} == serials
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3
    with pytest.raises(IdentityError, match=r"nobody-cert\.pem does not exist"):
        authority.revoke(tmp_path, ["nobody"])


def test_revoking_finds_the_organization_that_issued_the_certificate(tmp_path: Path) -> None:
    authority.make_root(tmp_path, "acme")
    for org in ("east", "west"):
        authority.make_org(tmp_path, org)
    authority.make_member(tmp_path, "w1", org="west")
    assert authority.revoke(tmp_path, ["w1"]) == tmp_path / "west-crl.pem"
    with pytest.raises(IdentityError, match="w1 was not issued by east CA"):
        authority.revoke(tmp_path, ["w1"], org="east")
