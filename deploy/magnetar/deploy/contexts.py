"""Contexts: named addresses and credentials of clusters, and which of them is in use.

A context supplies environment variables that are not set: a variable overrides the context, and an
option overrides both. The file names the files of secrets, and never copies them. Credentials are
one unit: if the environment has any, none of the context's are used.

The file is JSON: `{"current": NAME, "contexts": {NAME: {FIELD: TEXT}}}`, at MAGNETAR_CONTEXTS or
`$XDG_CONFIG_HOME/magnetar/contexts.json` (`~/.config/…`).
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.deploy.errors import SettingsError

FIELDS: Mapping[str, tuple[str, ...]] = {
    "url": ("MAGNETAR_URL",),
    "admin_url": ("MAGNETAR_ADMIN_URL",),
    "metadata": (
        "MAGNETAR_ADMIN_METADATA",
        "MAGNETAR_LEDGER_METADATA",
        "MAGNETAR_BACKUP_METADATA",
        "MAGNETAR_PERF_LEDGER_METADATA",
    ),
    "token_file": ("MAGNETAR_TOKEN",),
    "basic_file": ("MAGNETAR_BASIC",),
    "tls_trust": ("MAGNETAR_TLS_TRUST",),
    "tls_certificate": ("MAGNETAR_TLS_CERTIFICATE",),
    "tls_key": ("MAGNETAR_TLS_KEY",),
}
"""Fields of a context, and the variables that each supplies."""

_CREDENTIALS = frozenset({"token_file", "basic_file", "tls_certificate", "tls_key"})
_SECRETS = frozenset({"token_file", "basic_file"})
"""Fields whose variables hold a secret, or file:// and the path of one."""

CONTEXTS_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9][-.\w]{0,99}", re.ASCII)


@dataclass(slots=True)
class Contexts:
    """All contexts of a user, as in the file."""

    current: str = ""
    """Name of the context in use; empty: none."""
    known: dict[str, dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> dict[str, str]:
        """Return a context.

        Raises:
            SettingsError: no context has this name.
        """
        try:
            return self.known[name]
        except KeyError:
            names = ", ".join(sorted(self.known)) or "none: see `magnetar context set --help`"
            raise SettingsError(f"no context {name!r}; known are {names}") from None

    def set(self, name: str, values: Mapping[str, str]) -> None:
        """Set fields of a context, and create it if needed. An empty text removes a field.

        Raises:
            SettingsError: the name is not allowed, or there are too many contexts.
        """
        if _NAME.fullmatch(name) is None:
            raise SettingsError(f"bad context name {name!r}: give letters, digits, -, _ and .")
        if name not in self.known and len(self.known) >= CONTEXTS_MAX:
            raise SettingsError(f"there are {CONTEXTS_MAX} contexts already: delete some")
        merged = {**self.known.get(name, {}), **values}
        self.known[name] = {key: value for key, value in merged.items() if value}
        if len(self.known) == 1:
            self.current = name

    def delete(self, name: str) -> None:
        """Delete a context.

        Raises:
            SettingsError: no context has this name.
        """
        self.named(name)
        del self.known[name]
        if self.current == name:
            self.current = ""


def variables_of(context: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a context adds to an environment."""
    names = {name for each in _CREDENTIALS for name in FIELDS[each]}
    has_credentials = any(environment.get(name) for name in names)
    found = {}
    for each, value in context.items():
        if each in _CREDENTIALS and has_credentials:
            continue
        for variable in FIELDS.get(each, ()):
            if variable not in environment:
                found[variable] = f"file://{value}" if each in _SECRETS else value
    return found


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's contexts."""
    if environment.get("MAGNETAR_CONTEXTS"):
        return Path(environment["MAGNETAR_CONTEXTS"])
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".config"
    )
    return Path(home) / "magnetar" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """Read the contexts; none if the file does not exist.

    Raises:
        SettingsError: the file cannot be read, or has other content.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the contexts in {path}: {error}") from error
    current = found.get("current") if isinstance(found, dict) else None
    known = found.get("contexts") if isinstance(found, dict) else None
    if not isinstance(current, str) or not _are_contexts(known):
        raise SettingsError(f"{path} holds no contexts: mend it, or delete it")
    assert isinstance(known, dict)
    return Contexts(current, known)


def _are_contexts(known: object) -> bool:
    return isinstance(known, dict) and all(
        isinstance(each, dict)
        and all(isinstance(key, str) and isinstance(value, str) for key, value in each.items())
        for each in known.values()
    )


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file as a whole; only its owner can read it.

    Raises:
        SettingsError: the file cannot be written.
    """
    text = json.dumps({"current": contexts.current, "contexts": contexts.known}, indent=2)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SettingsError(f"cannot write the contexts to {path}: {error}") from error


def use_context(name: str) -> None:
    """Set missing environment variables from the named context, or from the one in use.

    Raises:
        SettingsError: no context has this name, or the file cannot be read.
    """
    contexts = read_contexts(contexts_file(os.environ))
    chosen = name or contexts.current
    if chosen:
        os.environ.update(variables_of(contexts.named(chosen), os.environ))
