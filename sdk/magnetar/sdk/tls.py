"""TLS contexts of clients."""

import ssl

from magnetar.sdk.errors import BrokerUnavailableError, TlsFileError
from magnetar.sdk.settings import ClientSettings


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Make a context for pulsar+ssl:// from the current files: TLS 1.2 or newer, the broker's
    certificate checked.

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
    """Make a context for a further connection of a client whose files could be used before.

    A failure now may pass: for example, a new certificate may be in place before its key.

    Raises:
        BrokerUnavailableError: a file cannot be used for now.
    """
    try:
        return tls_context(settings)
    except TlsFileError as error:
        raise BrokerUnavailableError(str(error)) from error
