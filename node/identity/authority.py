"""Making certificates: a root, organizations below it, nodes and operators below those, and revocation lists."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.errors import IdentityError
from node.identity.caller import OPERATOR_UNIT, Role
from node.identity.certificates import common_name, is_issued_by, read_certificates, read_crls, read_key
from node.identity.peer_id import dial_host, peer_id_of

ROOT_DAYS = 3650
ORG_DAYS = 1825
NODE_DAYS = 365
_BACKDATED = datetime.timedelta(hours=1)
"""Clocks of other machines may be this much behind ours."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_DNS_LABELS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one certificate; `crl` only for an organization."""

    cert: Path
    key: Path
    trust: Path
    peer_id: str = ""
    crl: Path | None = None


def make_root(directory: Path, org: str, *, days: int = ROOT_DAYS, force: bool = False) -> Files:
    """Make `<org>-root-ca-cert.pem` and `-key.pem`."""
    files = _files(directory, f"{_checked(org)}-root-ca")
    key = _new_key(files, force=force)
    subject = _subject(f"{org} root", org)
    builder = _builder(subject, subject, key, days, None)
    certificate = _as_authority(builder, key, key, path_length=None).sign(key, None)
    _write_key(files, key, force=force)
    _write(files.cert, _pem(certificate), force=True)
    return Files(cert=files.cert, key=files.key, trust=files.cert)


def make_org(directory: Path, org: str, *, root: str = "", days: int = ORG_DAYS, force: bool = False) -> Files:
    """Make `<org>-ca-cert.pem`, `-key.pem`, `-trust.pem` and an empty revocation list `<org>-crl.pem`."""
    _checked(org)
    above = _authority(directory, root or (org if _root_files(directory, org).key.exists() else ""), root=True)
    files = _files(directory, f"{org}-ca")
    key = _new_key(files, force=force)
    builder = _builder(_subject(f"{org} CA", org), above.certificate.subject, key, days, above.certificate)
    certificate = _as_authority(builder, key, above.key, path_length=0).sign(above.key, None)
    _write_key(files, key, force=force)
    _write(files.cert, _pem(certificate), force=True)
    _write(files.trust, _pem(above.certificate), force=True)
    crl = crl_path(directory, org)
    _write(crl, _revocation_list(_Authority(certificate, key, [above.certificate]), [], 1), force=True)
    return Files(cert=files.cert, key=files.key, trust=files.trust, crl=crl)


def make_member(
    directory: Path,
    name: str,
    *,
    role: Role = "node",
    org: str = "",
    days: int = NODE_DAYS,
    force: bool = False,
    renew: bool = False,
) -> Files:
    """Make `<name>-cert.pem`, `-key.pem` and `-trust.pem`. `renew` keeps the key, and with it the peer id."""
    above = _authority(directory, org, root=False)
    files = _files(directory, _checked(name))
    key = read_key(files.key) if renew else _new_key(files, force=force)
    public = key.public_key()
    peer_id = peer_id_of(public.public_bytes_raw())
    organization = above.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    subject = _subject(
        name, str(organization[0].value) if organization else "", OPERATOR_UNIT if role == "operator" else ""
    )
    builder = _builder(subject, above.certificate.subject, key, days, above.certificate)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(_alternative_names(name, peer_id)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above.key.public_key()), critical=False)
        .sign(above.key, None)
    )
    if not renew:
        _write_key(files, key, force=force)
    _write(files.cert, _pem(certificate, above.certificate), force=True)
    _write(files.trust, _pem(*above.bundle, above.certificate), force=True)
    return Files(cert=files.cert, key=files.key, trust=files.trust, peer_id=peer_id)


def revoke(directory: Path, names: list[str], *, org: str = "") -> Path:
    """Add the certificates of these nodes or operators (names, or certificate files) to their authority's list."""
    certificates = []
    for name in names:
        path = Path(name) if name.endswith(".pem") else directory / f"{name}-cert.pem"
        certificates.append(read_certificates(path, "certificate")[0])
    above = _authority(directory, org or _issuer_org(directory, certificates[0]), root=False)
    for certificate in certificates:
        if not is_issued_by(certificate, above.certificate):
            who = common_name(above.certificate.subject)
            raise IdentityError(
                f"{common_name(certificate.subject)} was not issued by {who}", hint="name its organization with --org"
            )
    path = crl_path(directory, above.org)
    held = read_crls(path) if path.exists() else []
    number = 1
    entries = {}
    now = _now()
    for crl in held:
        entries.update({entry.serial_number: entry.revocation_date_utc for entry in crl})
        number = max(number, crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)
    for certificate in certificates:
        entries.setdefault(certificate.serial_number, now)
    revoked = [
        x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        for serial, at in entries.items()
    ]
    _write(path, _revocation_list(above, revoked, number + 1), force=True)
    return path


def crl_path(directory: Path, org: str) -> Path:
    """Where an organization's revocation list is."""
    return directory / f"{org}-crl.pem"


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: Ed25519PrivateKey
    bundle: list[x509.Certificate]
    org: str = ""


def _authority(directory: Path, org: str, *, root: bool) -> _Authority:
    suffix = "-root-ca-key.pem" if root else "-ca-key.pem"
    command = "hypha-node cert root" if root else "hypha-node cert org"
    if not org:
        found = sorted(path.name.removesuffix(suffix) for path in directory.glob(f"*{suffix}"))
        found = [name for name in found if root or not name.endswith("-root")]
        if len(found) != 1:
            kind = "root" if root else "organization"
            if found:
                raise IdentityError(f"{directory} holds more than one {kind}: {', '.join(found)}", hint="name one")
            raise IdentityError(f"{directory} holds no {kind}", hint=f"make one with `{command} --dir {directory}`")
        org = found[0]
    files = _root_files(directory, org) if root else _files(directory, f"{org}-ca")
    if not files.cert.exists():
        raise IdentityError(f"there is no {files.cert}", hint=f"make it with `{command} --dir {directory} --org {org}`")
    certificate = read_certificates(files.cert, "certificate")[0]
    key = read_key(files.key)
    if key.public_key() != certificate.public_key():
        raise IdentityError(f"private key {files.key} does not belong to certificate {files.cert}")
    bundle = read_certificates(files.trust, "trust bundle") if files.trust.exists() else []
    return _Authority(certificate, key, bundle, org)


def _issuer_org(directory: Path, certificate: x509.Certificate) -> str:
    for path in sorted(directory.glob("*-ca-cert.pem")):
        if is_issued_by(certificate, read_certificates(path, "certificate")[0]):
            return path.name.removesuffix("-ca-cert.pem")
    return ""


def _root_files(directory: Path, org: str) -> Files:
    return _files(directory, f"{org}-root-ca")


def _files(directory: Path, stem: str) -> Files:
    cert, key, trust = (directory / f"{stem}-{part}.pem" for part in ("cert", "key", "trust"))
    return Files(cert, key, trust)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise IdentityError(f"{name!r} cannot be a name", hint="use up to 64 letters, digits, '.', '_' and '-'")
    if name.endswith(("-ca", "-root")):
        raise IdentityError(f"{name!r} cannot be a name", hint="-ca and -root mark the files of authorities")
    return name


def _subject(common: str, org: str, unit: str = "") -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, org), (NameOID.ORGANIZATIONAL_UNIT_NAME, unit), (NameOID.COMMON_NAME, common)]
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey, days: int, above: x509.Certificate | None
) -> x509.CertificateBuilder:
    if not 1 <= days <= 36500:
        raise IdentityError(f"{days} days is not a validity", hint="1 to 36500")
    now = _now()
    begins, ends = now - _BACKDATED, now + datetime.timedelta(days=days)
    if above is not None:
        if above.not_valid_after_utc <= now:
            raise IdentityError(
                f"the certificate of {common_name(above.subject)} has expired", hint="make a new one with --force"
            )
        begins, ends = max(begins, above.not_valid_before_utc), min(ends, above.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _as_authority(
    builder: x509.CertificateBuilder, key: Ed25519PrivateKey, above: Ed25519PrivateKey, path_length: int | None
) -> x509.CertificateBuilder:
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(name: str, peer_id: str) -> list[x509.GeneralName]:
    # local tools (a browser, curl, Prometheus) check host names; nodes compare peer ids instead
    hosts = [dial_host(peer_id), "localhost"]
    if _DNS_LABELS.fullmatch(name) and name not in hosts:
        hosts.append(name)
    return [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


def _revocation_list(above: _Authority, revoked: list[x509.RevokedCertificate], number: int) -> bytes:
    now = _now()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(above.certificate.subject)
        .last_update(now)
        .next_update(above.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above.key.public_key()), critical=False)
    )
    for entry in revoked:
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(above.key, None).public_bytes(Encoding.PEM)


def _new_key(files: Files, *, force: bool) -> Ed25519PrivateKey:
    """A key that is not written yet: a certificate that cannot be made leaves nothing behind."""
    for path in (files.cert, files.key):
        if path.exists() and not force:
            raise IdentityError(f"{path} exists already", hint="--renew keeps the key, --force makes a new one")
    return Ed25519PrivateKey.generate()


def _write_key(files: Files, key: Ed25519PrivateKey, *, force: bool) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(files.key, pem, mode=0o600, force=force)


def _write(path: Path, data: bytes, *, mode: int = 0o644, force: bool) -> None:
    """Put a file in place whole, and never over another one unless forced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if force:
                Path(temporary).replace(path)
            else:
                # unlike a rename, a link fails when the name is taken
                os.link(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except FileExistsError:
        raise IdentityError(f"{path} exists already", hint="--force replaces it") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror}") from error


def _pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)
