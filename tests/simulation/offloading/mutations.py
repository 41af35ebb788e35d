"""The rules of offloading, each switched off: a random run must notice (`mutate` below)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from magnetar.ledger.managed_log.log_objects import ObjectBase
from magnetar.ledger.offloading import log_offload, log_scrub, object_format, offloader
from magnetar.ledger.offloading.log_scrub import LogScrub
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offloader import Offloader
from magnetar.ledger.offloading.sweeper import Sweeper
from tests.simulation.mutations.mutation import Mutation, edited, replaced


@contextmanager
def _uncounted() -> Iterator[None]:
    with ExitStack() as off:
        for each in (
            edited(
                offloader,
                "packets_ahead",
                (
                    "packets = await under_way[0].packets\n",
                    "try:\n                packets = await under_way[0].packets\n"
                    "            except Exception:\n                break\n",
                ),
            ),
            edited(
                ObjectBuilder,
                "finish",
                ("if not is_whole or self._length != metadata.length:", "if False:"),
            ),
            replaced(offloader, "check_footer", lambda *_: None),
            replaced(object_format, "check_footer", lambda *_: None),
            edited(
                object_format.ObjectVerifier,
                "finish",
                (
                    "if self._next != len(self._footer.runs) or self._length != "
                    "self._metadata.length:",
                    "if False:",
                ),
            ),
        ):
            off.enter_context(each)
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="forgotten_without_reading_back",
        rule="tiered storage, section 16 step 6",
        defects=(),
        invariants=("O2",),
        description="bookies forget a ledger whose object was not read back in full",
        apply=lambda: edited(
            Offloader,
            "forget",
            (
                "await self._read_back(owned, reader.metadata, found, found.attempt)",
                "pass",
            ),
        ),
    ),
    Mutation(
        name="copy_ends_at_a_read_error",
        rule="tiered storage, defect 14.3",
        defects=(),
        invariants=("O2",),
        description="a copy that cannot read on is completed as it is, and nobody counts entries",
        apply=_uncounted,
    ),
    Mutation(
        name="deleted_before_it_is_marked",
        rule="tiered storage, section 16 steps 7 and 8",
        defects=(),
        invariants=("O1",),
        description="the ledger is deleted before the node says that it lies in the object only",
        apply=lambda: edited(
            Offloader,
            "forget",
            (
                "after = await owned.objects.only(ledger_id, found.attempt)",
                "await owned.objects._ledgers.delete(ledger_id)\n"
                "        after = await owned.objects.only(ledger_id, found.attempt)",
            ),
        ),
    ),
    Mutation(
        name="bytes_before_the_name",
        rule="tiered storage, section 16 steps 1 and 2",
        defects=(),
        invariants=("O2",),
        description="the object is written, and looked at, before the node names its attempt",
        apply=lambda: edited(
            Offloader,
            "_copy",
            (
                "begun = await owned.objects.begin(ledger_id, attempt, base)\n",
                "store = self._stores.store(base.store)\n"
                "    name = ObjectName(ledger_id, bytes.fromhex(attempt))\n"
                "    builder = ObjectBuilder(reader.metadata, codec_for(reader.metadata), "
                "name.attempt, instance_id='', log=owned.path, made_by='')\n"
                "    await store.put(base.key(ledger_id, attempt), self._pieces(reader, builder))\n"
                "    footer = await read_footer(store, base.key(ledger_id, attempt), name)\n"
                "    begun = await owned.objects.begin(ledger_id, attempt, base)\n",
            ),
            ("footer = await self._write(owned, reader, begun, attempt)", "pass"),
        ),
    ),
    Mutation(
        name="key_without_attempt",
        rule="tiered storage, defect 14.24",
        defects=(),
        invariants=("O4",),
        description="all tries to copy a ledger write one key",
        apply=lambda: edited(
            ObjectBase,
            "key",
            ("-{attempt}.mgo", "-{'0' * 32}.mgo"),
        ),
    ),
    Mutation(
        name="left_unfinished",
        rule="tiered storage, section 16 step 1",
        defects=(),
        invariants=("OL1",),
        description="a copy that an owner left unfinished is nobody's any more",
        apply=lambda: edited(
            log_offload,
            "to_copy",
            ("or ledger.is_in_object:", "or ledger.object is not None:"),
        ),
    ),
    Mutation(
        name="marked_and_not_deleted",
        rule="tiered storage, section 16 step 8",
        defects=(),
        invariants=("OL1",),
        description="nobody deletes a ledger that an owner before had marked",
        apply=lambda: edited(
            log_offload.LogOffload,
            "_forget",
            ("if not await self._finish():\n        return\n    for", "for"),
        ),
    ),
    Mutation(
        name="unreadable_node_names_nothing",
        rule="tiered storage, section 17",
        defects=(),
        invariants=("O3",),
        description="a log whose node cannot be read names no object",
        apply=lambda: edited(
            Sweeper,
            "_names",
            (
                "    except (LedgerError, InvalidPathError) as error:\n"
                '        log.warning("object_undecided", key=key, error=str(error))\n'
                "        return None\n",
                "    except (LedgerError, InvalidPathError) as error:\n"
                "        return _Names(set(), range(0))\n",
            ),
        ),
    ),
    Mutation(
        name="replacement_not_named",
        rule="tiered storage, section 17",
        defects=(),
        invariants=("O3",),
        description="the sweep overlooks the attempt that is to replace an object",
        apply=lambda: edited(
            Sweeper,
            "_names",
            ("(ledger.object.attempt, ledger.object.next)", "(ledger.object.attempt,)"),
        ),
    ),
    Mutation(
        name="damaged_and_not_healed",
        rule="tiered storage, section 18",
        defects=(),
        invariants=("OS1",),
        description="an object that is damaged or gone is not written again out of the ledger",
        apply=lambda: edited(
            LogScrub,
            "_settle",
            (
                "is_healed = await self._offload.heal(ledger.ledger_id, found.attempt)",
                "is_healed = True",
            ),
        ),
    ),
    Mutation(
        name="unreachable_is_gone",
        rule="tiered storage, rule 18.1",
        defects=(),
        invariants=("O10",),
        description="an object counts as gone when the store gives no answer",
        apply=lambda: edited(
            ObjectScrubber,
            "_try",
            ("return Checked(Verdict.UNREACHABLE, error)", "return Checked(Verdict.GONE, error)"),
        ),
    ),
    Mutation(
        name="scrubbed_once",
        rule="tiered storage, section 18",
        defects=(),
        invariants=("OS1",),
        description="objects are read back once, and never again",
        apply=lambda: edited(
            log_scrub,
            "current_pass",
            ("is_due = mark.began_ms <= due_ms and", "is_due = mark.began_ms == 0 and"),
        ),
    ),
]
