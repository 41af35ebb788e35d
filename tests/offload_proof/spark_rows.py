"""Positions and hashes of all rows of some topics, by one batch query.

    python -m tests.offload_proof.spark_rows OPTIONS DIRECTORY RESULT

OPTIONS are those of the source, as JSON. RESULT is written as JSON: `seconds` of the query, without
the start of Java, and `rows` by topic in the order of their positions.
"""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

from pyspark.sql.functions import col, sha2

from magnetar.sdk.wire.pulsar_pb2 import MessageIdData
from tests.integration.spark.support import load, make_session


def main() -> None:
    """The command."""
    options, directory, result = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    spark = make_session("local[2]", directory, spark__driver__memory="2g")
    frame = load(spark, options).select("__topic", "__messageId", sha2(col("value"), 256))
    began_s = time.monotonic()
    found = frame.collect()
    seconds = time.monotonic() - began_s
    spark.stop()
    rows: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    for topic, message_id, digest in found:
        place = MessageIdData.FromString(bytes(message_id))
        rows[topic].append((place.ledgerId, place.entryId, place.batch_index, digest))
    for each in rows.values():
        each.sort()
    result.write_text(json.dumps({"seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
