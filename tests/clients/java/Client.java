import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** The official Java client: produce, consume, acknowledge, seek. Ends with 0 if all was right. */
public class Client {
    static final int COUNT = 50;

    static void expect(boolean is, String what) {
        if (!is) {
            throw new AssertionError("not as expected: " + what);
        }
    }

    static Message<byte[]> receive(Consumer<byte[]> consumer, int number) throws Exception {
        Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
        expect(message != null, "a message " + number);
        String found = new String(message.getData());
        expect(found.equals("message-" + number), found + " instead of " + number);
        return message;
    }

    static Consumer<byte[]> subscribe(PulsarClient client, String topic) throws Exception {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName("s")
                .receiverQueueSize(10)
                .enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    static void story(PulsarClient client, String topic, boolean isBatched) throws Exception {
        Consumer<byte[]> consumer = subscribe(client, topic);
        Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(isBatched).batchingMaxMessages(7).create();
        for (int number = 0; number < COUNT; number++) {
            producer.sendAsync(("message-" + number).getBytes());
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            Message<byte[]> message = receive(consumer, number);
            ids.add(message.getMessageId());
            if (number < 20) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        consumer = subscribe(client, topic);
        for (int number = 20; number < COUNT; number++) {
            consumer.acknowledge(receive(consumer, number));
        }
        consumer.seek(ids.get(30));
        receive(consumer, 31);
        consumer.seek(0L);
        for (int number = 0; number < COUNT; number++) {
            consumer.acknowledgeCumulative(receive(consumer, number));
        }
        consumer.unsubscribe();
        Reader<byte[]> reader =
                client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
        for (int number = 0; number < COUNT; number++) {
            String found = new String(reader.readNext(30, TimeUnit.SECONDS).getData());
            expect(found.equals("message-" + number), "read in order");
        }
        expect(!reader.hasMessageAvailable(), "nothing left");
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        story(client, arguments[1] + "-plain", false);
        story(client, arguments[1] + "-batched", true);
        client.close();
        System.exit(0);
    }
}
