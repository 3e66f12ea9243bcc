"""Reading certificates, keys and revocation lists, and the rules that a certificate has to meet."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtensionOID, NameOID

from node.errors import IdentityError, PeerUntrusted
from node.identity.caller import OPERATOR_UNIT, Role

MAX_CHAIN = 8
MAX_NAME = 64
MAKE_HINT = "make one with `hypha-node cert node NAME`"
_UNDERSTOOD = {
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    ExtensionOID.CERTIFICATE_POLICIES,
}


def read_file(path: Path, what: str, hint: str = MAKE_HINT) -> bytes:
    """The bytes of a file of the identity; IdentityError tells which one cannot be read, and why."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise IdentityError(f"{what} {path} does not exist", hint=hint) from None
    except OSError as error:
        raise IdentityError(f"{what} {path} cannot be read: {error.strerror}") from error


def read_certificates(path: Path, what: str) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    data = read_file(path, what)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise IdentityError(f"{what} {path} holds no certificate in PEM form", hint=MAKE_HINT) from error


def read_crls(path: Path) -> list[x509.CertificateRevocationList]:
    """All revocation lists of a PEM file, maybe none."""
    data = read_file(path, "revocation list", "`hypha-node cert org` makes an empty one")
    begin, end = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"
    lists = []
    for part in data.split(begin)[1:]:
        block = begin + part.split(end)[0] + end + b"\n"
        try:
            lists.append(x509.load_pem_x509_crl(block))
        except ValueError as error:
            raise IdentityError(f"revocation list {path} is damaged", hint="write it again") from error
    if not lists and data.strip():
        raise IdentityError(f"revocation list {path} holds no list in PEM form", hint="write it again")
    return lists


def read_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 key of a PEM file."""
    data = read_file(path, "private key")
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise IdentityError(
            f"private key {path} has a passphrase", hint="remove it and keep the file at mode 0600"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"private key {path} holds no key in PEM form", hint=MAKE_HINT) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"private key {path} is not an Ed25519 key", hint=MAKE_HINT)
    return key


def node_key(certificate: x509.Certificate) -> bytes:
    """The raw Ed25519 key of a peer's certificate; PeerUntrusted when it has another kind."""
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PeerUntrusted("the certificate has a key of an unknown kind", hint="it must be Ed25519") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PeerUntrusted("the certificate's key is not an Ed25519 key", hint="peer ids exist for Ed25519 only")
    return key.public_bytes_raw()


def common_name(name: x509.Name) -> str:
    """The CN of a subject, or all of it when it has none; fit to be shown: one line, not long."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    text = str(found[0].value) if found else name.rfc4514_string()
    return "".join(character if character.isprintable() else "?" for character in text)[:MAX_NAME]


def role_of(certificate: x509.Certificate) -> Role:
    """Operator, when the subject's organizational unit says so; else node."""
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return "operator" if any(unit.value == OPERATOR_UNIT for unit in units) else "node"


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it may sign other certificates."""
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    if not basic.ca:
        return False
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True


def is_self_signed(certificate: x509.Certificate) -> bool:
    """Whether it vouches for itself."""
    return certificate.issuer == certificate.subject and is_issued_by(certificate, certificate)


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether the name and the signature fit this issuer."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def path_length(certificate: x509.Certificate) -> int | None:
    """How many authorities may stand below this one; None: any number."""
    return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length


def check_validity(certificate: x509.Certificate, now: float) -> None:
    """PeerUntrusted unless `now` (seconds since 1970) is within the certificate's validity."""
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    name = common_name(certificate.subject)
    if now >= ends:
        raise PeerUntrusted(
            f"the certificate of {name} expired on {day(ends)}",
            hint="renew it with `hypha-node cert node NAME --renew`",
        )
    if now < begins:
        raise PeerUntrusted(
            f"the certificate of {name} is not valid before {day(begins)}", hint="check this machine's clock"
        )


def check_extensions(certificate: x509.Certificate) -> None:
    """PeerUntrusted for a critical extension that we do not act upon (RFC 5280, 4.2), or damaged ones."""
    try:
        extensions = list(certificate.extensions)
    except (ValueError, x509.DuplicateExtension) as error:
        raise PeerUntrusted("the certificate's extensions are damaged") from error
    for extension in extensions:
        if extension.critical and extension.oid not in _UNDERSTOOD:
            raise PeerUntrusted(
                f"the certificate has a critical extension we do not know: {extension.oid.dotted_string}"
            )


def day(at: float) -> str:
    """A time as a date."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d")
