"""A restart of the broker keeps the order of keys. The official client is back after a while."""

from pathlib import Path

from tests.integration.pulsar_client.keyed import Members, plain, publish_keyed
from tests.integration.pulsar_client.support import connect
from tests.standalone import Standalone


def test_a_restart_keeps_the_order_of_keys(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as standalone:
        client = connect(standalone.url, log_path=tmp_path / "client.log")
        members = Members(client, "persistent://public/default/restart")
        members.join("one", receiver_queue_size=20)
        members.join("two", receiver_queue_size=20)
        producer = plain(client, "persistent://public/default/restart")
        publish_keyed(producer, 0, 200)
        members.wait_for(150)
        standalone.kill()
        standalone.start()
        publish_keyed(producer, 200, 200)
        members.wait_for(400)
        members.assert_complete_and_in_order(400)
        client.close()
