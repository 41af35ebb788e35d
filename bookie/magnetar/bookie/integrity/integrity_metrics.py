"""What the bookie counts about damage, loss and repair."""

from dataclasses import dataclass

from magnetar.ledger.metric_fields import counter, gauge, gauge_of


@dataclass(slots=True)
class IntegrityMetrics:
    """Owned by the event loop."""

    # Damage and healing
    damages: int = counter("Damaged places that were reported, by reads or by the scrubber.")
    damages_dropped: int = counter(
        "Of those, how many were forgotten because too many wait; the scrubber finds them again."
    )
    heals_waiting: int = gauge("Ledgers that have damage which is not healed yet.")
    heals_failing: int = gauge(
        "Of those, how many could not be healed in several attempts: they are listed for repair."
    )
    heal_attempts: int = counter("Attempts to heal the damage of one ledger.")
    healed_entries: int = counter("Entries stored again from another replica, and verified.")
    healed_bytes: int = counter("Bytes of their packets.")

    # After a loss
    check_needed: int = gauge("1 while what a loss of data left open is not checked to the end.")
    limbo_ledgers: int = gauge("Ledgers of which the bookie does not know what it lacks.")
    recovered_ledgers: int = counter("Ledgers that the check after a loss had to close.")
    missing_entries: int = counter("Entries that the check after a loss found missing.")
    copied_entries: int = counter("Of those, how many were copied from other bookies.")
    copied_bytes: int = counter("Bytes of their packets.")
    check_failures: int = counter("Ledgers that could not be made whole in a round of the check.")

    # Scrubbing
    scrub_passes: int = counter("Times that everything in a ledger directory was read and checked.")
    scrub_records: int = counter("Index records whose entries were read and checked.")
    scrub_bytes: int = counter("Bytes of entry logs that were read and checked.")
    scrub_damages: int = counter("Damaged places that the scrubber found.")
    scrub_errors: int = counter("Times that the scrubber could not read, and will try again.")
    scrub_pass_share: float = gauge_of("Part of the present pass that is done, of the slowest.")
