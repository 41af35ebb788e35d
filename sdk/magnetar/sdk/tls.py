"""The client's side of TLS."""

import ssl

from magnetar.sdk.errors import BrokerUnavailableError, TlsFileError
from magnetar.sdk.settings import ClientSettings


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """For pulsar+ssl://: TLS 1.2 or newer, the broker's certificate checked. From the files as they
    are now.

    Raises:
        TlsFileError: a file of the settings cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.tls_trust_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = settings.tls_checks_host
        if settings.tls_certificate_file:
            context.load_cert_chain(
                settings.tls_certificate_file, settings.tls_key_file or None, password=lambda: b""
            )
    except (OSError, ValueError) as error:
        files = (settings.tls_trust_file, settings.tls_certificate_file, settings.tls_key_file)
        named = ", ".join(filter(None, files)) or "the system's authorities"
        raise TlsFileError(f"TLS: one of {named} cannot be used: {error}") from error
    return context


def renewed_tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """`tls_context` for a connection of a client whose files could be used once: what is wrong with
    them now may pass, as a certificate is there before its key while both are being replaced.

    Raises:
        BrokerUnavailableError: a file cannot be used for now.
    """
    try:
        return tls_context(settings)
    except TlsFileError as error:
        raise BrokerUnavailableError(str(error)) from error
