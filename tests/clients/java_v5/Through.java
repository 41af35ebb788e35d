import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Producers and all kinds of consumers of a scalable topic, for as long as whoever started this changes the topic and
 * its brokers. Commands come by standard input:
 *
 *   join NAME, leave NAME   a stream consumer comes, or goes
 *   restore                 the checkpoint consumer goes on from its checkpoint, as a new one
 *   mark                    count the longest time without a receipt anew
 *   stop                    publish no more, receive all, judge: the end
 *
 * What happens is told by lines: "confirmed N", "got NAME N", "longest N" (ms, since the mark). Ends with 0 if each
 * consumer got all confirmed messages in the order of their keys, and the topic holds each of them once.
 */
public class Through {
    static final int PRODUCERS = 2;
    static final int KEYS = 20;
    static final long PAUSE_NS = 4_000_000;
    static final Duration LITTLE = Duration.ofMillis(100);
    static final Duration PATIENT = Duration.ofSeconds(90);
    static final long SETTLE_NS = Duration.ofSeconds(120).toNanos();

    static final Queue<String> faults = new ConcurrentLinkedQueue<>();
    static final Map<String, Long> confirmed = new ConcurrentHashMap<>();
    /** Messages with a receipt, by key of a producer: their numbers are 0 to below that. */
    static final AtomicLong receipts = new AtomicLong();
    static final AtomicLong longestMs = new AtomicLong();
    static volatile boolean isPublishing = true;
    static volatile boolean isReceiving = true;
    static volatile boolean isToRestore;

    static void fault(String what) {
        if (faults.size() < 20) {
            faults.add(what);
        }
    }

    /** What one subscription, or one reader, has received. */
    static class Received {
        final String who;
        final boolean isOrdered;
        final Map<String, Long> next = new TreeMap<>();
        final Map<String, java.util.TreeSet<Long>> ahead = new TreeMap<>();
        long count;
        long repeated;

        Received(String who, boolean isOrdered) {
            this.who = who;
            this.isOrdered = isOrdered;
        }

        /** Values are PRODUCER:KEY:NUMBER. */
        synchronized void take(String value) {
            int at = value.lastIndexOf(':');
            String key = value.substring(0, at);
            long number = Long.parseLong(value.substring(at + 1));
            long wanted = next.getOrDefault(key, 0L);
            java.util.TreeSet<Long> waiting = ahead.computeIfAbsent(key, ignored -> new java.util.TreeSet<>());
            if (number < wanted || waiting.contains(number)) {
                repeated++;
                return;
            }
            count++;
            if (number > wanted && isOrdered) {
                fault(who + ": " + value + " came before number " + wanted);
            }
            waiting.add(number);
            while (waiting.remove(wanted)) {
                wanted++;
            }
            next.put(key, wanted);
        }

        synchronized boolean hasAll() {
            return confirmed.entrySet().stream()
                    .allMatch(each -> next.getOrDefault(each.getKey(), 0L) >= each.getValue());
        }

        synchronized String lacking() {
            List<String> found = new ArrayList<>();
            confirmed.forEach((key, count) -> {
                long have = next.getOrDefault(key, 0L);
                if (have < count) {
                    found.add(key + ":" + have + " of " + count);
                }
            });
            return found.toString();
        }
    }

    static final Received stream = new Received("stream", true);
    static final Received queue = new Received("queue", false);
    static final Received read = new Received("checkpoint", true);

    /** One producer: messages of random keys, at a steady pace, until the end. */
    static void publish(PulsarClient client, String topic, int number) throws Exception {
        Producer<String> producer = client.newProducer(Schema.string()).topic(topic).producerName("p" + number)
                .sendTimeout(PATIENT).create();
        java.util.Random random = new java.util.Random(number);
        long[] given = new long[KEYS];
        Queue<CompletableFuture<?>> pending = new ConcurrentLinkedQueue<>();
        long dueNs = System.nanoTime();
        while (isPublishing) {
            int key = random.nextInt(KEYS);
            String name = "p" + number + ":k" + key;
            long order = given[key]++;
            long begunNs = System.nanoTime();
            pending.add(producer.async().newMessage().key("k" + key).value(name + ":" + order).send()
                    .handle((id, error) -> {
                        longestMs.accumulateAndGet((System.nanoTime() - begunNs) / 1_000_000, Math::max);
                        if (error != null) {
                            fault(name + ":" + order + " was not stored: " + error);
                        } else {
                            confirmed.merge(name, order + 1, Math::max);
                            receipts.incrementAndGet();
                        }
                        return null;
                    }));
            while (!pending.isEmpty() && pending.peek().isDone()) {
                pending.remove();
            }
            dueNs = Math.max(dueNs + PAUSE_NS, System.nanoTime() - 20 * PAUSE_NS);
            java.util.concurrent.locks.LockSupport.parkNanos(dueNs - System.nanoTime());
        }
        CompletableFuture.allOf(pending.toArray(new CompletableFuture[0])).get();
        producer.close();
    }

    /** A stream consumer by its name, until it leaves. */
    static class Member implements Runnable {
        final PulsarClient client;
        final StreamConsumer<String> consumer;
        final Thread thread = new Thread(this);
        final AtomicLong got = new AtomicLong();
        volatile boolean isLeaving;

        Member(PulsarClient client, String topic, String name) throws Exception {
            this.client = client;
            consumer = client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName("stream")
                    .consumerName(name).subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
            thread.start();
        }

        public void run() {
            try {
                while (isReceiving && !isLeaving) {
                    Message<String> message = consumer.receive(LITTLE);
                    if (message != null) {
                        stream.take(message.value());
                        got.incrementAndGet();
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
                consumer.close();
            } catch (Exception error) {
                fault("stream consumer: " + error);
            }
        }
    }

    static void consumeQueue(PulsarClient client, String topic) throws Exception {
        QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string()).topic(topic)
                .subscriptionName("queue").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        while (isReceiving) {
            Message<String> message = consumer.receive(LITTLE);
            if (message != null) {
                queue.take(message.value());
                consumer.acknowledge(message.id());
            }
        }
        consumer.close();
    }

    static CheckpointConsumer<String> reader(PulsarClient client, String topic, Checkpoint start) throws Exception {
        return client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(start).create();
    }

    static void readOn(PulsarClient client, String topic) throws Exception {
        CheckpointConsumer<String> consumer = reader(client, topic, Checkpoint.earliest());
        while (isReceiving) {
            if (isToRestore) {
                isToRestore = false;
                byte[] saved = consumer.checkpoint().toByteArray();
                consumer.close();
                consumer = reader(client, topic, Checkpoint.fromByteArray(saved));
                say("restored");
            }
            Message<String> message = consumer.receive(LITTLE);
            if (message != null) {
                read.take(message.value());
            }
        }
        consumer.close();
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    interface Work {
        void run() throws Exception;
    }

    static Thread start(String name, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                error.printStackTrace();
                fault(name + ": " + error);
            }
        }, name);
        thread.start();
        return thread;
    }

    static void tell(Map<String, Member> members) throws InterruptedException {
        while (isReceiving) {
            say("confirmed " + receipts.get());
            members.forEach((name, each) -> say("got " + name + " " + each.got.get()));
            say("got queue " + queue.count);
            say("got checkpoint " + read.count);
            say("longest " + longestMs.get());
            faults.forEach(each -> say("fault " + each));
            Thread.sleep(200);
        }
    }

    public static void main(String[] arguments) {
        try {
            story(arguments[0], arguments[1]);
        } catch (Throwable wrong) {
            wrong.printStackTrace();
            fault("" + wrong);
        }
        faults.forEach(each -> say("fault " + each));
        System.exit(faults.isEmpty() ? 0 : 1);
    }

    static void story(String url, String topic) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(url).operationTimeout(PATIENT).build();
        Map<String, Member> members = new ConcurrentHashMap<>();
        List<Thread> producers = new ArrayList<>();
        for (int number = 0; number < PRODUCERS; number++) {
            int own = number;
            producers.add(start("producer " + own, () -> publish(client, topic, own)));
        }
        List<Thread> consumers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            consumers.add(start("queue consumer", () -> consumeQueue(client, topic)));
        }
        consumers.add(start("checkpoint consumer", () -> readOn(client, topic)));
        Thread telling = start("telling", () -> tell(members));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        String line = commands.readLine();
        while (line != null && !line.equals("stop")) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "join" -> members.put(words[1], new Member(client, topic, words[1]));
                case "leave" -> {
                    Member leaving = members.remove(words[1]);
                    leaving.isLeaving = true;
                    leaving.thread.join();
                }
                case "restore" -> isToRestore = true;
                case "mark" -> longestMs.set(0);
                default -> throw new IllegalArgumentException(line);
            }
            say("done " + line);
            line = commands.readLine();
        }
        isPublishing = false;
        for (Thread each : producers) {
            each.join();
        }
        awaitAll();
        isReceiving = false;
        telling.join();
        for (Thread each : consumers) {
            each.join();
        }
        for (Member each : members.values()) {
            each.thread.join();
        }
        judge(client, topic);
        client.close();
    }

    static void awaitAll() throws InterruptedException {
        long deadlineNs = System.nanoTime() + SETTLE_NS;
        for (Received each : List.of(stream, queue, read)) {
            while (!each.hasAll() && faults.isEmpty()) {
                if (System.nanoTime() > deadlineNs) {
                    fault(each.who + " lacks " + each.lacking());
                    return;
                }
                Thread.sleep(50);
            }
        }
    }

    /** What the topic holds, from its beginning: each confirmed message once, each key in order. */
    static void judge(PulsarClient client, String topic) throws Exception {
        Received stored = new Received("the topic", true);
        CheckpointConsumer<String> reader = reader(client, topic, Checkpoint.earliest());
        long deadlineNs = System.nanoTime() + SETTLE_NS;
        boolean isOver = false;
        while (!isOver) {
            Message<String> message = reader.receive(stored.hasAll() ? Duration.ofSeconds(1) : LITTLE);
            if (message != null) {
                stored.take(message.value());
            } else {
                isOver = stored.hasAll() || System.nanoTime() > deadlineNs;
            }
        }
        reader.close();
        if (!stored.hasAll()) {
            fault("the topic lacks " + stored.lacking());
        }
        if (stored.repeated > 0) {
            fault("the topic holds " + stored.repeated + " messages again");
        }
        if (read.repeated > 0) {
            fault("the checkpoint consumer got " + read.repeated + " messages again");
        }
        say("end " + receipts.get() + " confirmed, again: stream " + stream.repeated + ", queue " + queue.repeated);
    }
}
