"""Every kind of JSON value that lies in the metadata store or beside the data: how it is read.

Each kind has a sample in a set (`records/<kind>.json`), a reader that gives the value in the terms
of the code, and the same value written anew. A sample must be read, and written anew it must say
the same; with a higher `format` it must be refused.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar.bookie.cookie import decode_cookie
from magnetar.broker.cluster.balance.layouts import LayoutRecord
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord
from magnetar.broker.policies.model import decode
from magnetar.cursors.node import decode_node, encode_node
from magnetar.deploy.cluster_files import ClusterRecord
from magnetar.deploy.cluster_files import Layout as ClusterLayout
from magnetar.ledger.autorecovery import controls
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata import election
from magnetar.ledger.under_replication import decode_item, encode_item

PATH = "/where/it/lies"


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a kind are read, and written anew."""

    rewrite: Callable[[bytes], bytes]
    """Reads the value and writes it again; raises what the reader raises."""


def _work_item(value: bytes) -> bytes:
    missing, since_ms = decode_item(value, path=PATH)
    return encode_item(json.loads(value)["ledger_id"], missing, since_ms)


def _model(model: Any) -> Callable[[bytes], bytes]:
    def rewrite(value: bytes) -> bytes:
        written: str = model.model_validate_json(value).model_dump_json()
        return written.encode()

    return rewrite


KINDS: dict[str, Kind] = {
    "ledger": Kind(lambda value: LedgerMetadata.from_json(value, where=PATH).to_json()),
    "log": Kind(lambda value: LogMetadata.from_json(value, path=PATH).to_json()),
    "cursor-node": Kind(lambda value: encode_node(decode_node(value))),
    "cookie": Kind(lambda value: decode_cookie(value, PATH).model_dump_json().encode()),
    "work-item": Kind(_work_item),
    "lease": Kind(lambda value: decode(LeaseRecord, PATH, value).encode()),
    "broker": Kind(lambda value: decode(BrokerRecord, PATH, value).encode()),
    "bundles": Kind(_model(LayoutRecord)),
    "vote": Kind(_model(election._VoteRecord)),
    "recovery-layout": Kind(_model(controls._LayoutRecord)),
    "recovery-disabled": Kind(_model(controls._DisableRecord)),
    "recovery-delay": Kind(_model(controls._DelayRecord)),
    "recovery-check": Kind(_model(controls._CheckRecord)),
    "cluster": Kind(_model(ClusterRecord)),
    "cluster-layout": Kind(_model(ClusterLayout)),
}
