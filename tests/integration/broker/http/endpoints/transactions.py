"""Endpoints of transactions; those of single ones are tested with the transactions themselves."""

from tests.integration.broker.http.endpoints.rows import NAMESPACE, Row

X = "/admin/v3/transactions"
TRANSACTIONS = (
    Row("GET", f"{X}/coordinators"),
    Row(
        "GET",
        f"{X}/coordinatorStats?coordinatorId=0",
        None,
        200,
        (f"{X}/coordinatorStats?coordinatorId=none", None, 400),
        (f"{X}/coordinatorStats?coordinatorId=4", 404),
    ),
    Row(
        "GET",
        f"{X}/slowTransactions/0",
        None,
        200,
        (f"{X}/slowTransactions/none", None, 400),
        (f"{X}/slowTransactions/0?coordinatorId=4", 404),
    ),
    Row(
        "GET",
        f"{X}/transactionMetadata/0/99",
        None,
        404,
        (f"{X}/transactionMetadata/0/none", None, 400),
        (f"{X}/transactionMetadata/4/0", 404),
    ),
    Row(
        "POST",
        f"{X}/abortTransaction/0/99",
        None,
        404,
        (f"{X}/abortTransaction/0/none", None, 400),
        (f"{X}/abortTransaction/4/0", 404),
    ),
    Row("POST", f"{X}/transactionCoordinator/replicas", 1, 406, (None, "x", 400)),
    Row(
        "GET",
        f"{X}/coordinatorInternalStats/0",
        None,
        200,
        (f"{X}/coordinatorInternalStats/none", None, 400),
        (f"{X}/coordinatorInternalStats/400", 404),
    ),
    Row("GET", f"{X}/transactionInBufferStats/{NAMESPACE}/plain/0/1"),
    Row("GET", f"{X}/transactionInPendingAckStats/{NAMESPACE}/plain/s/0/1"),
    Row(
        "GET",
        f"{X}/positionStatsInPendingAck/{NAMESPACE}/plain/s/{{ledger}}/{{entry}}",
        None,
        200,
        None,
        (f"{X}/positionStatsInPendingAck/{NAMESPACE}/plain/missing/0/0", 404),
    ),
    Row("GET", f"{X}/transactionBufferInternalStats/{NAMESPACE}/plain", None, 404),
    Row("GET", f"{X}/pendingAckInternalStats/{NAMESPACE}/plain/s", None, 404),
    Row(
        "GET",
        f"{X}/transactionBufferStats/{NAMESPACE}/plain",
        None,
        200,
        None,
        (f"{X}/transactionBufferStats/{NAMESPACE}/missing", 404),
    ),
    Row(
        "GET",
        f"{X}/pendingAckStats/{NAMESPACE}/plain/s",
        None,
        200,
        None,
        (f"{X}/pendingAckStats/{NAMESPACE}/plain/missing", 404),
    ),
)
