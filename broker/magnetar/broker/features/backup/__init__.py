"""Backups in the object store: create, list, delete and restore them."""

from magnetar.broker.features.backup.backups import Backups, FoundBackup
from magnetar.broker.features.backup.creating import BackupMaker, Covered
from magnetar.broker.features.backup.deleting import BackupDeletion
from magnetar.broker.features.backup.documents import (
    ClusterBackup,
    LeftOut,
    LogBackup,
    LogFile,
    Uncovered,
)
from magnetar.broker.features.backup.reading import LogReading
from magnetar.broker.features.backup.restoring import Restore, RestorePlan
from magnetar.broker.features.backup.scope import Scope, topic_of_log

__all__ = [
    "BackupDeletion",
    "BackupMaker",
    "Backups",
    "ClusterBackup",
    "Covered",
    "FoundBackup",
    "LeftOut",
    "LogBackup",
    "LogFile",
    "LogReading",
    "Restore",
    "RestorePlan",
    "Scope",
    "Uncovered",
    "topic_of_log",
]
