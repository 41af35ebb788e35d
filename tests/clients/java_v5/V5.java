import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** The official client of Pulsar 5 on topics of all kinds. Ends with 0 if all was right. */
public class V5 {
    static final int COUNT = 40;
    static final Duration WAIT = Duration.ofSeconds(30);
    static final Duration LITTLE = Duration.ofMillis(200);

    static void expect(boolean is, String what) {
        if (!is) {
            throw new AssertionError("not as expected: " + what);
        }
    }

    /** The administration, as far as it is needed. */
    record Admin(String url) {
        HttpResponse<String> ask(String method, String kind, String path, String body) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/admin/v2/" + kind + "/public/default/" + path))
                    .header("Content-Type", "application/json")
                    .method(method, HttpRequest.BodyPublishers.ofString(body))
                    .build();
            HttpClient client = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.ALWAYS).build();
            return client.send(request, HttpResponse.BodyHandlers.ofString());
        }

        void partitions(String topic, int count, boolean grows) throws Exception {
            HttpResponse<String> answer = ask(grows ? "POST" : "PUT", "persistent", topic + "/partitions", "" + count);
            expect(answer.statusCode() == 204, topic + " with " + count + " partitions: " + answer.body());
        }

        void scalable(String method, String path) throws Exception {
            HttpResponse<String> answer = ask(method, "scalable", path, "");
            expect(answer.statusCode() == 204, method + " " + path + ": " + answer.statusCode() + answer.body());
        }

        long messagesIn(String topic) throws Exception {
            HttpResponse<String> answer = ask("GET", "persistent", topic + "/stats", "");
            Matcher found = Pattern.compile("\"msgInCounter\":\\s*(\\d+)").matcher(answer.body());
            return answer.statusCode() == 200 && found.find() ? Long.parseLong(found.group(1)) : 0;
        }
    }

    static String local(String topic) {
        return topic.substring(topic.lastIndexOf('/') + 1);
    }

    static QueueConsumer<String> queue(PulsarClient client, String topic) throws Exception {
        return client.newQueueConsumer(Schema.string()).topic(topic).subscriptionName("queue")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    static StreamConsumer<String> stream(PulsarClient client, String topic, String name) throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("stream").consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    static CheckpointConsumer<String> checkpoint(PulsarClient client, String topic, Checkpoint start)
            throws Exception {
        return client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(start).create();
    }

    interface Receive {
        Message<String> next(Duration timeout) throws Exception;
    }

    /** Receives until all wanted messages have come, each of them once. */
    static List<String> receive(String who, Set<String> wanted, Receive receive) throws Exception {
        List<String> found = new ArrayList<>();
        Set<String> missing = new HashSet<>(wanted);
        while (!missing.isEmpty()) {
            Message<String> message = receive.next(WAIT);
            expect(message != null, who + " lacks " + missing.size() + " messages: " + missing);
            expect(missing.remove(message.value()), who + " did not wait for " + message.value());
            found.add(message.value());
        }
        return found;
    }

    static Receive of(QueueConsumer<String> consumer) {
        return timeout -> {
            Message<String> message = consumer.receive(timeout);
            if (message != null) {
                consumer.acknowledge(message.id());
            }
            return message;
        };
    }

    static Receive of(StreamConsumer<String> consumer) {
        return timeout -> {
            Message<String> message = consumer.receive(timeout);
            if (message != null) {
                consumer.acknowledgeCumulative(message.id());
            }
            return message;
        };
    }

    static Set<String> publish(Producer<String> producer, String prefix) throws Exception {
        Set<String> sent = new HashSet<>();
        for (int number = 0; number < COUNT; number++) {
            String value = prefix + "-k" + number % 10 + "-" + number;
            producer.newMessage().key("k" + number % 10).value(value).send();
            sent.add(value);
        }
        return sent;
    }

    /** Messages of one key come in the order in which they were sent. */
    static void expectKeysInOrder(String who, List<String> values) {
        for (int key = 0; key < 10; key++) {
            int last = -1;
            for (String value : values) {
                if (value.contains("-k" + key + "-")) {
                    int number = Integer.parseInt(value.substring(value.lastIndexOf('-') + 1));
                    expect(number > last, who + ": " + value + " after number " + last);
                    last = number;
                }
            }
        }
    }

    /** All three kinds of consumers, and the same again from where each of them was. */
    static void allConsumers(PulsarClient client, String topic, Admin admin, int grownTo) throws Exception {
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).producerName("p").create();
        Set<String> first = publish(producer, "first");
        QueueConsumer<String> queue = queue(client, topic);
        StreamConsumer<String> stream = stream(client, topic, "a");
        CheckpointConsumer<String> reader = checkpoint(client, topic, Checkpoint.earliest());
        receive("queue", first, of(queue));
        expectKeysInOrder("stream", receive("stream", first, of(stream)));
        expectKeysInOrder("checkpoint", receive("checkpoint", first, reader::receive));
        byte[] saved = reader.checkpoint().toByteArray();
        if (grownTo > 0) {
            grow(producer, topic, admin, grownTo, List.of(of(queue), of(stream), reader::receive));
        }
        Set<String> second = publish(producer, "second");
        receive("queue", second, of(queue));
        receive("stream", second, of(stream));
        receive("checkpoint", second, reader::receive);
        reader.close();
        stream.close();
        queue.close();
        expect(queue(client, topic).receive(LITTLE) == null, "the queue remembers what was acknowledged");
        expect(stream(client, topic, "b").receive(LITTLE) == null, "the stream remembers what was acknowledged");
        CheckpointConsumer<String> resumed = checkpoint(client, topic, Checkpoint.fromByteArray(saved));
        Set<String> left = new HashSet<>(second);
        while (!left.isEmpty()) {
            Message<String> message = resumed.receive(WAIT);
            expect(message != null, "the checkpoint lacks " + left);
            expect(!first.contains(message.value()), "the checkpoint was behind " + message.value());
            left.remove(message.value());
        }
        resumed.close();
        producer.close();
    }

    /** The topic gets more partitions; the open producer comes to use them, and all consumers, too. */
    static void grow(Producer<String> producer, String topic, Admin admin, int partitions, List<Receive> consumers)
            throws Exception {
        admin.partitions(local(topic), partitions, true);
        String newest = local(topic) + "-partition-" + (partitions - 1);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        for (int round = 0; admin.messagesIn(newest) == 0; round++) {
            expect(System.nanoTime() < deadline, "the producer uses " + newest);
            Set<String> sent = publish(producer, "growing" + round);
            for (Receive each : consumers) {
                receive("a consumer after the growth", sent, each);
            }
        }
    }

    /** Two stream consumers share the partitions; when one leaves, the other has all. */
    static void sharedStream(PulsarClient client, String topic) throws Exception {
        StreamConsumer<String> one = stream(client, topic, "one");
        StreamConsumer<String> two = stream(client, topic, "two");
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create();
        Set<String> missing = publish(producer, "shared");
        Set<String> byOne = new HashSet<>();
        Set<String> byTwo = new HashSet<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!missing.isEmpty()) {
            expect(System.nanoTime() < deadline, "both together lack " + missing);
            collect(of(one).next(LITTLE), missing, byOne);
            collect(of(two).next(LITTLE), missing, byTwo);
        }
        expect(!byOne.isEmpty() && !byTwo.isEmpty(), "each has its share: " + byOne.size() + ", " + byTwo.size());
        one.close();
        receive("the one that stays", publish(producer, "alone"), of(two));
        two.close();
        producer.close();
    }

    /** Two checkpoint consumers of one group share the partitions. */
    static void checkpointGroup(PulsarClient client, String topic) throws Exception {
        List<CheckpointConsumer<String>> both = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            both.add(client.newCheckpointConsumer(Schema.string()).topic(topic).consumerGroup("group")
                    .startPosition(Checkpoint.earliest()).create());
        }
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create();
        Set<String> missing = publish(producer, "group");
        List<Set<String>> found = List.of(new HashSet<>(), new HashSet<>());
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!missing.isEmpty()) {
            expect(System.nanoTime() < deadline, "the group lacks " + missing);
            for (int number = 0; number < 2; number++) {
                collect(both.get(number).receive(LITTLE), missing, found.get(number));
            }
        }
        expect(!found.get(0).isEmpty() && !found.get(1).isEmpty(), "each of the group has its share");
        for (CheckpointConsumer<String> each : both) {
            each.close();
        }
        producer.close();
    }

    static void collect(Message<String> message, Set<String> missing, Set<String> found) {
        if (message != null) {
            expect(missing.remove(message.value()), message.value() + " came once");
            found.add(message.value());
        }
    }

    /** Consumers of version 4 read what producers of version 5 send, and the other way round. */
    static void withVersion4(PulsarClient client, String url, String topic) throws Exception {
        org.apache.pulsar.client.api.PulsarClient old =
                org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(url).build();
        org.apache.pulsar.client.api.Consumer<String> oldConsumer =
                old.newConsumer(org.apache.pulsar.client.api.Schema.STRING).topic(topic).subscriptionName("old")
                        .subscriptionInitialPosition(
                                org.apache.pulsar.client.api.SubscriptionInitialPosition.Earliest)
                        .subscribe();
        QueueConsumer<String> queue = queue(client, topic);
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create();
        Set<String> sent = publish(producer, "new");
        Set<String> missing = new HashSet<>(sent);
        while (!missing.isEmpty()) {
            org.apache.pulsar.client.api.Message<String> message = oldConsumer.receive(30, TimeUnit.SECONDS);
            expect(message != null, "version 4 lacks " + missing);
            expect(missing.remove(message.getValue()), message.getValue() + " came once");
            oldConsumer.acknowledge(message);
        }
        receive("version 5", sent, of(queue));
        old.newProducer(org.apache.pulsar.client.api.Schema.STRING).topic(topic).create().send("old");
        receive("version 5", Set.of("old"), of(queue));
        queue.close();
        producer.close();
        old.close();
    }

    static void transactions(String url, String topic) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(url)
                .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofMinutes(1)).build()).build();
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create();
        QueueConsumer<String> queue = queue(client, topic);
        Transaction aborted = client.newTransaction();
        producer.newMessage().transaction(aborted).value("aborted").send();
        aborted.abort();
        Transaction committed = client.newTransaction();
        producer.newMessage().transaction(committed).value("committed").send();
        expect(queue.receive(LITTLE) == null, "nothing is seen before the commit");
        committed.commit();
        receive("queue", Set.of("committed"), of(queue));
        queue.close();
        producer.close();
        client.close();
    }

    /** A scalable topic, made by its first producer: split and merged while all use it. */
    static void scalableTopic(PulsarClient client, String url, Admin admin, String name) throws Exception {
        String topic = "topic://public/default/" + name;
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).producerName("p").create();
        Set<String> first = publish(producer, "first");
        QueueConsumer<String> queue = queue(client, topic);
        StreamConsumer<String> stream = stream(client, topic, "a");
        CheckpointConsumer<String> reader = checkpoint(client, topic, Checkpoint.earliest());
        List<Receive> all = List.of(of(queue), of(stream), reader::receive);
        for (Receive each : all) {
            expectKeysInOrder("first", receive("first", first, each));
        }
        byte[] saved = reader.checkpoint().toByteArray();
        String[] changes = {"split/0", "split/2", "merge/1/3"};
        for (int round = 0; round < changes.length; round++) {
            Set<String> before = publish(producer, "before" + round);
            admin.scalable("POST", name + "/" + changes[round]);
            Set<String> after = publish(producer, "after" + round);
            Set<String> both = new HashSet<>(before);
            both.addAll(after);
            receive("queue", both, of(queue));
            List<String> values = receive("stream", both, of(stream));
            for (int key = 0; key < 10; key++) {
                expectParentFirst(values, key, round);
            }
            receive("checkpoint", both, reader::receive);
        }
        // Another consumer takes its share; both see everything once.
        StreamConsumer<String> other = stream(client, topic, "b");
        Set<String> missing = publish(producer, "shared");
        Set<String> byOne = new HashSet<>();
        Set<String> byTwo = new HashSet<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!missing.isEmpty()) {
            expect(System.nanoTime() < deadline, "both together lack " + missing);
            collect(of(stream).next(LITTLE), missing, byOne);
            collect(of(other).next(LITTLE), missing, byTwo);
        }
        expect(!byOne.isEmpty() && !byTwo.isEmpty(), "each has its share: " + byOne.size() + ", " + byTwo.size());
        CheckpointConsumer<String> resumed = checkpoint(client, topic, Checkpoint.fromByteArray(saved));
        Message<String> message = resumed.receive(WAIT);
        expect(message != null && !first.contains(message.value()), "the checkpoint goes on behind the first");
        resumed.close();
        reader.close();
        other.close();
        stream.close();
        queue.close();
        producer.close();
        admin.scalable("DELETE", name + "?force=true");
    }

    /** What was sent before a split comes before what was sent after it, key by key. */
    static void expectParentFirst(List<String> values, int key, int round) {
        boolean isAfter = false;
        for (String value : values) {
            if (value.contains("-k" + key + "-")) {
                expect(!isAfter || value.startsWith("after" + round), value + " comes late");
                isAfter |= value.startsWith("after" + round);
            }
        }
    }

    /** Threads of the client keep the process alive: whatever is wrong must end it. */
    public static void main(String[] arguments) {
        try {
            all(arguments);
            System.exit(0);
        } catch (Throwable wrong) {
            wrong.printStackTrace();
            System.exit(1);
        }
    }

    static void all(String[] arguments) throws Exception {
        String url = arguments[0];
        Admin admin = new Admin(arguments[1]);
        String topic = arguments[2];
        PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
        scalableTopic(client, url, admin, local(topic) + "-scalable");
        allConsumers(client, topic + "-plain", admin, 0);
        admin.partitions(local(topic) + "-parts", 2, false);
        allConsumers(client, topic + "-parts", admin, 5);
        admin.partitions(local(topic) + "-shared", 4, false);
        sharedStream(client, topic + "-shared");
        admin.partitions(local(topic) + "-group", 4, false);
        checkpointGroup(client, topic + "-group");
        withVersion4(client, url, topic + "-plain-with-4");
        admin.partitions(local(topic) + "-with-4", 3, false);
        withVersion4(client, url, topic + "-with-4");
        client.close();
        transactions(url, topic + "-transactions");
    }
}
