"""TLS of a listener: a certificate and its key from files, and who may connect.

Knows PEM files and grpc's credentials. Keeps true: a pair that does not fit, or that cannot be used
without a password, is refused by name, at the start and later; new files count for the next
connection, and until they are good the old pair is in use.
"""

import functools
import ssl
from pathlib import Path

import grpc

from server.config import TlsConfig
from server.rpc.reload import Reloading


class TlsError(ValueError):
    """Certificates or keys that cannot be used."""


def credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Raises TlsError, OSError."""
    paths = [path for path in (tls.cert, tls.key, tls.client_ca) if path is not None]
    pair = Reloading(paths, functools.partial(_read, tls))

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """For each connection; None, which grpc's types forget: what was there before."""
        return pair.value if pair.refresh() else None

    return grpc.dynamic_ssl_server_credentials(
        pair.value,
        fetch,  # pyright: ignore[reportArgumentType]
        require_client_authentication=tls.client_ca is not None,
    )


def _read(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    key, cert = tls.key.read_bytes(), tls.cert.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_pair(context, tls)
    authority = None
    if tls.client_ca is not None:
        authority = tls.client_ca.read_bytes()
        _check_authority(context, tls.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=authority)


def _check_pair(context: ssl.SSLContext, tls: TlsConfig) -> None:
    def password() -> str:
        raise TlsError(f"{tls.key}: the key is encrypted, and nobody is there to type a password")

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{tls.key} is not the key of {tls.cert}") from error
        raise TlsError(
            f"{tls.cert} and {tls.key} are not a certificate and its key, PEM"
        ) from error


def _check_authority(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(f"{path} has no certificate, PEM") from error
