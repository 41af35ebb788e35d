"""Errors that end the `magnetar` command, each with its exit status.

DeployError                       root; 1: unexpected, the log says more
├── SettingsError                 2: an option, an environment variable or a file holds a bad value
├── AddressUnavailableError       3: the port is taken, or the address is not this machine's
├── DataDirectoryLockedError      4: another process uses the data directory
├── ForeignCookieError            5: the data directory belongs to another bookie or cluster
├── MetadataUnreachableError      6: the metadata store does not answer
├── DataDirectoryError            7: the data directory cannot be read or written
├── BrokerUnreachableError        8: no broker answered
│   └── BrokerRefusedError        13: a broker refused
│       ├── NotFoundError         14: what was asked for does not exist
│       └── NotAllowedError       15: the credentials are missing, wrong, or not enough
├── MissingProgramError           9: a program that the command needs is not installed
├── UnreadableMetadataError       10: a value in the metadata store is corrupt or of a newer release
├── DamageFoundError              11: a check found damaged files
├── MigrationDiffersError         12: source and target of a migration differ
└── NothingCameError              16: fewer messages than wanted came in time

The statuses are part of the command's interface (scripts test for them): never renumber. Every
message is one line that names what was found and what to do about it.
"""


class DeployError(Exception):
    """Root: the command prints the message as one line and ends with `exit_status`."""

    exit_status = 1


class SettingsError(DeployError):
    """An option, an environment variable or a line of the settings file cannot be used."""

    exit_status = 2


class AddressUnavailableError(DeployError):
    """The server cannot listen where it should."""

    exit_status = 3


class DataDirectoryLockedError(DeployError):
    """Another process works in the data directory."""

    exit_status = 4


class ForeignCookieError(DeployError):
    """The cookie in the data directory is not the one that the metadata store holds."""

    exit_status = 5


class MetadataUnreachableError(DeployError):
    """The metadata store did not answer in time."""

    exit_status = 6


class DataDirectoryError(DeployError):
    """The data directory cannot be used: permissions, a full disk, files of another version."""

    exit_status = 7


class BrokerUnreachableError(DeployError):
    """No broker answered, or the outcome of the request is unknown.

    A refusal is a subclass: callers that can continue without an answer treat both alike.
    """

    exit_status = 8


class BrokerRefusedError(BrokerUnreachableError):
    """A broker answered, and refused the request."""

    exit_status = 13


class NotFoundError(BrokerRefusedError):
    """The topic, subscription, namespace or tenant does not exist."""

    exit_status = 14


class NotAllowedError(BrokerRefusedError):
    """The broker demands credentials, rejects those given, or does not permit the request."""

    exit_status = 15


class MissingProgramError(DeployError):
    """A program or package that the command needs is not installed."""

    exit_status = 9


class UnreadableMetadataError(DeployError):
    """A value in the metadata store is not readable by this release. Nothing was changed."""

    exit_status = 10


class DamageFoundError(DeployError):
    """A checking tool found damaged files, and has printed which."""

    exit_status = 11


class MigrationDiffersError(DeployError):
    """Source and target of a migration differ: something was not moved, or the target has content
    of its own."""

    exit_status = 12


class NothingCameError(DeployError):
    """Fewer messages than wanted came within the time limit."""

    exit_status = 16
