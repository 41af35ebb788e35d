import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Transactions of the official Java client. Ends with 0 if all was right. */
public class Transactions {
    static void expect(boolean is, String what) {
        if (!is) {
            throw new AssertionError("not as expected: " + what);
        }
    }

    static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
    }

    static void expectNext(Consumer<byte[]> consumer, String wanted) throws Exception {
        Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
        expect(message != null, "there is " + wanted);
        String found = new String(message.getData());
        expect(found.equals(wanted), found + " instead of " + wanted);
        consumer.acknowledge(message);
    }

    static void story(PulsarClient client, String topic, boolean isBatched) throws Exception {
        String in = topic + "-in";
        String out = topic + "-out";
        Producer<byte[]> source =
                client.newProducer().topic(in).enableBatching(isBatched).create();
        Producer<byte[]> results =
                client.newProducer().topic(out).enableBatching(isBatched).sendTimeout(0, TimeUnit.SECONDS).create();
        Consumer<byte[]> consumer = client.newConsumer().topic(in).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Consumer<byte[]> reader = client.newConsumer().topic(out).subscriptionName("r")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        for (int number = 0; number < 10; number++) {
            source.sendAsync(("message-" + number).getBytes());
        }
        source.flush();

        Transaction aborted = begin(client);
        List<Message<byte[]>> messages = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
            expect(message != null, "message " + number);
            messages.add(message);
            results.newMessage(aborted).value(("aborted-" + number).getBytes()).sendAsync();
            consumer.acknowledgeAsync(message.getMessageId(), aborted).get();
        }
        aborted.abort().get();
        expect(reader.receive(1, TimeUnit.SECONDS) == null, "nothing of the aborted one");

        Transaction committed = begin(client);
        for (int number = 0; number < 10; number++) {
            Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
            expect(message != null, "message " + number + " once more");
            results.newMessage(committed).value(("result-" + number).getBytes()).sendAsync();
            consumer.acknowledgeAsync(message.getMessageId(), committed).get();
            if (number == 0) {
                Transaction other = begin(client);
                try {
                    consumer.acknowledgeAsync(message.getMessageId(), other).get();
                    expect(false, "two transactions acknowledge the same");
                } catch (ExecutionException error) {
                    expect(error.getCause() instanceof PulsarClientException.TransactionConflictException,
                            "a conflict: " + error.getCause());
                }
                other.abort().get();
            }
        }
        expect(reader.receive(1, TimeUnit.SECONDS) == null, "nothing before the commit");
        committed.commit().get();
        for (int number = 0; number < 10; number++) {
            expectNext(reader, "result-" + number);
        }
        consumer.close();
        consumer = client.newConsumer().topic(in).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        expect(consumer.receive(1, TimeUnit.SECONDS) == null, "all is acknowledged");
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client =
                PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        story(client, arguments[1] + "-plain", false);
        story(client, arguments[1] + "-batched", true);
        client.close();
        System.exit(0);
    }
}
