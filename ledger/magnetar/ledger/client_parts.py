"""The services that all handles of one ledger client share."""

from dataclasses import dataclass

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.placement import Placement
from magnetar.ledger.ports import Clock
from magnetar.ledger.reading.entry_fetcher import EntryFetcher
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.under_replication import RepairQueue
from magnetar.ledger.writing.add_turn import AddTurn
from magnetar.ledger.writing.follow_up import WriteQuorumFollowUp
from magnetar.ledger.writing.replacements import BookieHealth, Replacements


@dataclass(frozen=True, slots=True)
class ClientParts:
    """Connections, metadata, and knowledge about bookies, shared by the handles of one client."""

    manager: LedgerManager
    registry: BookieRegistry
    channels: ChannelPool
    turn: AddTurn
    """The adds of all writers in one turn of the event loop."""
    fetcher: EntryFetcher
    placement: Placement
    health: BookieHealth
    follow_up: WriteQuorumFollowUp
    repairs: RepairQueue
    clock: Clock
    settings: LedgerSettings

    def replacements(self, metadata: LedgerMetadata) -> Replacements:
        """Return the source of replacements for failed members of the ledger's ensembles."""
        return Replacements(
            self.registry,
            self.placement,
            self.health,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            is_delayed=self.settings.ensemble_change_mode == "delayed",
            changes_max=self.settings.ensemble_changes_max,
            clock=self.clock,
            rest_s=self.settings.failed_member_rest_s,
        )
