// A client that changes to another cluster when its own is away, and back when that is there again.
//
// usage: java -cp 'lib/*' Failover.java PRIMARY SECONDARY TOPIC
//
// It publishes one message after the other, and says after each `sent N URL`: how many are confirmed, and the
// cluster that the client was at. It ends when its input does.

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.ServiceUrlProvider;
import org.apache.pulsar.client.impl.AutoClusterFailover;

public class Failover {
    public static void main(String[] args) throws Exception {
        ServiceUrlProvider urls = AutoClusterFailover.builder()
            .primary(args[0])
            .secondary(List.of(args[1]))
            .failoverDelay(1, TimeUnit.SECONDS)
            .switchBackDelay(1, TimeUnit.SECONDS)
            .checkInterval(500, TimeUnit.MILLISECONDS)
            .build();
        Thread over = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException ended) { }
            System.exit(0);
        });
        over.start();
        try (PulsarClient client = PulsarClient.builder().serviceUrlProvider(urls)
                .operationTimeout(20, TimeUnit.SECONDS).build();
             Producer<String> producer = client.newProducer(Schema.STRING).topic(args[2])
                .enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (long sent = 1; ; sent++) {
                producer.send("m-" + sent);
                System.out.println("sent " + sent + " " + urls.getServiceUrl());
                Thread.sleep(20);
            }
        } catch (PulsarClientException failed) {
            System.out.println("failed " + failed);
            System.exit(1);
        }
    }
}
