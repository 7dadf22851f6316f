"""Which agents a client gives its token to: those whose certificate it can verify."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError

CA_VARIABLE = "PBOX_CA_FILE"
#: By the numbers of OpenSSL's X509_V_ERR, for which ssl has no names.
_MEANINGS = {
    9: ("is not valid yet", "Set the clocks of both nodes."),
    10: ("has expired", "Start the agent with a certificate that is valid; set the clock if it is "
         "not right."),
    62: ("is of another name", "Write one of its names into the address, or start the agent with a "
         "certificate of that name (`miles pbox up --listen-on`)."),
}  # fmt: skip
_MEANINGS[64] = _MEANINGS[62]  # of an address
_UNKNOWN = ("is of nobody that this job trusts", f"Give the agent's certificate, or its "
            f"authority's, with {CA_VARIABLE}; another agent may listen there by now.")  # fmt: skip


def context_for(address: str, ca_file: str | Path = "") -> ssl.SSLContext | None:
    """What the agent at `address` is verified with, before it gets a token; none where it is plain.

    ca_file: certificates in PEM, of authorities or of agents themselves; the variable PBOX_CA_FILE
    where it is empty, and the machine's authorities where that is too.
    Raises PeriodicError where they cannot be read, where the address asks for no verification
    although there is something to verify with, or where it is none.
    """
    if not address.startswith(("unix:", "http://", "https://")):
        raise PeriodicError(
            f"{address!r} is no address of an agent.",
            remedy="Write unix:PATH, https://HOST:PORT or http://HOST:PORT.",
        )
    trusted = str(ca_file or os.environ.get(CA_VARIABLE, ""))
    if address.startswith("https://"):
        return _context(trusted)
    if trusted and not address.startswith("unix:"):
        raise PeriodicError(
            f"{address} would get the job's token without having shown a certificate.",
            found=f"certificates to trust: {trusted}",
            remedy=f"Write https:// into the address, or unset {CA_VARIABLE} where the agent has "
            "no certificate and its network is private.",
        )
    return None


def _context(trusted: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=trusted or None)
    except OSError as error:  # SSLError is one
        raise PeriodicError(
            f"The certificates to trust cannot be read from {trusted}: {error.strerror or error}.",
            remedy=f"Set {CA_VARIABLE} to a file of certificates in PEM, as `miles pbox up` does.",
        ) from error


def explained(error: Exception) -> tuple[str, str]:
    """What a failed handshake means, and what to change."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        what, remedy = _MEANINGS.get(cause.verify_code, _UNKNOWN)
        return f"its certificate {what}", remedy
    return "it does not speak TLS", (
        "Write http:// into its address, or start it with a certificate (--certificate, --key)."
    )
