"""The meaning of obstore's errors.

obstore has classes for only a few kinds of failure. The rest is in the text of the error: the
status of the store's answer, and its body, in which S3, GCS and Azure name a code.

That text is not passed on. A store that refuses a signature repeats what was signed, including a
session token. So errors here show status, code and the store's message, and are raised `from None`.
"""

import os
import re
from typing import NamedTuple

from obstore import exceptions

from magnetar.ledger.errors import (
    ObjectError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.store_url import StoreUrl

FOREIGN = (exceptions.BaseError, OSError, NotImplementedError)
"""Errors that obstore raises for failures; any other error is a mistake in its use."""

NO_OBJECT = frozenset({"NoSuchKey", "BlobNotFound"})
NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
CREATE_RACE = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""Codes of a 409 of S3 when two requests for one key collide: neither of them has won."""

_BUSY_CODES = frozenset({"RequestTimeout", "SlowDown", "ServerBusy", "NoSuchUpload"})
_BUSY_STATUSES = frozenset({408, 409, 412, 425, 429})
_DENIED_CODES = frozenset({"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"})

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,100})</Code>|\(code: (\w{1,100})\)")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})")

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (with AWS_SESSION_TOKEN if they are "
    "temporary), AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, "
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or AWS_CONTAINER_CREDENTIALS_FULL_URI, or the role of "
    "the instance",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY, or "
    "the service account of the instance",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, "
    "AZURE_CLIENT_ID and AZURE_TENANT_ID with AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE, "
    "or the identity of the instance",
}
"""Where obstore looks for credentials, by scheme."""

_SECRET_NAME = re.compile(r"(AWS|AZURE|GOOGLE)_(?!.*_FILE$).*(KEY|SECRET|TOKEN|SAS)")
_SECRET_BYTES_MIN = 8
"""Shortest value that is masked; a shorter one, such as a test's "x", would blank out half of a
text."""
_SECRET_IN_TEXT = re.compile(
    r"(?i)((?:sig|signature|x-amz-[a-z-]*|token|password|secret)[\"']?[=:]\s*)[^\s&\"',;]+"
    r"|(?<=://)[^\s@]+@"
)
_TEXT_MAX = 300
_CAUSE = re.compile(r'(?<=message: ")[^"]{1,100}|TimedOut|InvalidCertificate\(\w+\)')
"""The innermost causes in an error's debug text, which its first line omits."""

_ASKS_INSTANCE = (
    "/latest/api/token",
    "/latest/meta-data/",
    "/computeMetadata/",
    "/metadata/identity/",
)
"""Parts of the URLs of the instance's metadata service, where obstore looks for credentials
last."""

_ELSEWHERE = "the bucket is elsewhere. Correct region or endpoint of the store"
_NO_RANGES = "non-partial response"
_SETTINGS_AT_FAULT = {
    "Received redirect": _ELSEWHERE,
    "source: BadScheme": "the endpoint is http://. Use https://, or set allow_http",
    "InvalidCertificate(": "the certificate of the endpoint is not trusted. Correct the endpoint, "
    "or have the system trust the certificate's issuer",
    _NO_RANGES: "the store does not answer with ranges of an object. Use another one",
}
"""Texts of obstore's errors for a wrong setting or an unusable store, and what to do."""


class Answer(NamedTuple):
    """The store's answer, as far as an error shows it."""

    status: int
    """HTTP status; 0 if there was no answer."""
    code: str
    """The store's own code, such as NoSuchBucket; empty if it gave none."""
    message: str

    def __str__(self) -> str:
        return " ".join(filter(None, ("HTTP", str(self.status), self.code, self.message)))


def answer_in(error: Exception) -> Answer:
    """Return the store's answer, as far as an error of obstore shows it."""
    text = str(error)
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    return Answer(
        int(status[1]) if status else 0,
        (code[1] or code[2]) if code else "",
        without_secrets(message[1]).rstrip(".") if message else "",
    )


def translated(error: Exception, url: StoreUrl, doing: str) -> ObjectError:
    """Return the `ObjectError` that corresponds to a failed call of obstore.

    It is never `ObjectMissingError`: whether an object is missing takes a second request (tiered
    storage, rule 18.1). `doing`: the call and its key.
    """
    answer = answer_in(error)
    where = f"{url}: {doing} failed"
    if any(sign in str(error) for sign in _ASKS_INSTANCE):
        why = str(answer) if answer.status else shortened(error)
        kind = ObjectStoreRefusedError if is_client_error(answer) else ObjectStoreUnavailableError
        return kind(
            f"{where}: there are no credentials, and the instance gave none ({why}). "
            f"{credentials_hint(url)}"
        )
    if answer.code in NO_BUCKET:
        return ObjectStoreRefusedError(
            f"{where}: there is no bucket {url.bucket} ({answer}). Create it, or correct the url, "
            "region or endpoint of the store."
        )
    if is_denied(error, answer):
        return ObjectStoreRefusedError(
            f"{where}: the store refuses access ({answer if answer.status else answer.code}). "
            f"{credentials_hint(url)} They must allow to put, get, list and delete."
        )
    if 300 <= answer.status < 400:
        return ObjectStoreRefusedError(f"{where}: {_ELSEWHERE}.")
    if not answer.status:
        for sign, why in _SETTINGS_AT_FAULT.items():
            if sign in str(error):
                return ObjectStoreRefusedError(f"{where}: {why}.")
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
        return ObjectStoreRefusedError(
            f"{where}: this kind of store cannot do that ({shortened(error)}). Use another one."
        )
    if is_client_error(answer):
        return ObjectStoreRefusedError(
            f"{where}: the store refuses the request ({answer}). Check the store's settings."
        )
    why = str(answer) if answer.status else shortened(error)
    return ObjectStoreUnavailableError(f"{where}: {why}. It may succeed later.")


def is_denied(error: Exception, answer: Answer) -> bool:
    """Return whether the store rejects the client's credentials."""
    return (
        isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
        or answer.status in (401, 403)
        or answer.code in _DENIED_CODES
    )


def is_client_error(answer: Answer) -> bool:
    """Return whether the answer blames the request, so that a retry would fail again."""
    is_busy = answer.status in _BUSY_STATUSES or answer.code in _BUSY_CODES
    return 400 <= answer.status < 500 and not is_busy


def is_beyond_end(error: Exception) -> bool:
    """Return whether the requested bytes begin beyond the end of the object."""
    # The memory store has no HTTP status, only this text.
    return answer_in(error).status == 416 or "Invalid range" in str(error)


def is_whole_object(error: Exception) -> bool:
    """Return whether the store answered with the whole object instead of the requested range."""
    return _NO_RANGES in str(error)


def credentials_hint(url: StoreUrl) -> str:
    """Return the sentence that says where credentials are looked for."""
    return f"Credentials are looked for in {_CREDENTIALS.get(url.scheme, 'no place')}."


def without_secrets(text: str) -> str:
    """Return a text on one line, with secrets of the environment, and anything like a secret,
    masked."""
    for name, value in os.environ.items():
        if _SECRET_NAME.match(name) and len(value) >= _SECRET_BYTES_MIN:
            text = text.replace(value, "***")
    return " ".join(_SECRET_IN_TEXT.sub(lambda found: f"{found[1] or ''}***", text).split())


def shortened(error: Exception) -> str:
    """Return one line for an error without an answer of the store: it names hosts and causes."""
    said, _, debug = str(error).partition("Debug source:")
    causes = [*dict.fromkeys(_CAUSE.findall(debug))]
    line = without_secrets(": ".join([said.strip().rstrip("."), *causes]))
    return line if len(line) <= _TEXT_MAX else f"{line[:_TEXT_MAX]}..."
