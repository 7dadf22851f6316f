"""The certificate of an agent that listens on TCP: its own, made for one run, or a given one."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from miles_periodic.hooks.errors import PeriodicError

#: A certificate is made for one run and its key is gone with it: this only has to outlast the run,
#: and the difference between two nodes' clocks.
VALID_DAYS = 365
CLOCK_DAYS = 1


def make(folder: Path, host: str) -> tuple[Path, Path]:
    """A new key, and a certificate of `host` signed by it alone; the paths of both, key last.

    Whoever trusts that certificate trusts no other one. host: a name or an address.
    Raises PeriodicError where it is neither.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    # Of its own name: among several to trust, the one that signed is looked for by name.
    own_name = f"pbox agent {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, own_name)])
    now, days = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - days(CLOCK_DAYS))
        .not_valid_after(now + days(VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate, key_file = folder / "certificate.pem", folder / "key.pem"
    _write(key_file, key.private_bytes(encoding, *plain))
    _write(certificate, made.public_bytes(encoding))
    return certificate, key_file


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not host.isascii():
        raise PeriodicError(
            f"{host!r} is no name for a certificate.",
            remedy="Give a name in ASCII, as DNS has it (`miles pbox up --listen-on`).",
        )
    return x509.DNSName(host)


def _write(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What an agent speaks TLS with. Raises PeriodicError where the two files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
        left = _seconds_left(certificate)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise PeriodicError(
            f"The agent cannot speak TLS: {getattr(error, 'strerror', None) or error}.",
            found=f"--certificate {certificate}, --key {key}",
            remedy="Give a certificate in PEM, with those between it and its authority behind it, "
            "and its own key, not encrypted.",
        ) from error
    if left <= 0:
        raise PeriodicError(
            f"The certificate {certificate} has expired, and no client would take it.",
            remedy="Give --certificate one that is valid; see whether the clock is right.",
        )
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _seconds_left(certificate: Path) -> float:
    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    return (leaf.not_valid_after_utc - now).total_seconds()
