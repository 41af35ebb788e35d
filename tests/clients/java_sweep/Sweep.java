// Every command of pulsar-admin, run once at least: the list comes from its own help, the arguments
// from commands.txt. Prints a line per command: ok, failed or left, the command, and why.

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;
import picocli.CommandLine;
import picocli.CommandLine.Model.CommandSpec;

public class Sweep {
    private static final PrintStream OUT = System.out;
    private static final List<String> MAKING =
            List.of("create", "set", "update", "enable", "grant", "upload");
    private static final List<String> TAKING = List.of(
            "abort", "remove", "clear", "delete", "revoke", "disable", "unsubscribe", "terminate", "truncate");

    /** One for all commands, as in its own shell: each would leave a client open. */
    private final PulsarAdminTool tool;

    private final Map<String, String> values = new TreeMap<>();
    private final List<List<String>> first = new ArrayList<>();
    private final Map<String, List<List<String>>> given = new TreeMap<>();
    private final Map<String, String> left = new TreeMap<>();

    public static void main(String[] arguments) throws Exception {
        Sweep sweep = new Sweep(arguments[0]);
        sweep.read(Path.of(arguments[2]));
        sweep.run(arguments[1]);
        System.exit(0);
    }

    private Sweep(String url) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", url);
        var constructor = PulsarAdminTool.class.getDeclaredConstructor(Properties.class);
        constructor.setAccessible(true);
        tool = constructor.newInstance(properties);
    }

    private void read(Path file) throws Exception {
        for (String line : Files.readAllLines(file)) {
            String text = line.strip();
            if (text.isEmpty() || text.startsWith("#")) {
                continue;
            }
            List<String> words = new ArrayList<>(Arrays.asList(text.split(" +")));
            String kind = words.remove(0);
            switch (kind) {
                case "value" -> values.put(
                        String.join(" ", words.subList(0, words.size() - 1)), words.get(words.size() - 1));
                case "first" -> first.add(words);
                case "run" -> given.computeIfAbsent(name(words), n -> new ArrayList<>()).add(words);
                case "left" -> left.put(
                        words.get(1).equals("*") ? words.get(0) : name(words),
                        String.join(" ", words.subList(2, words.size())));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static String name(List<String> words) {
        return words.get(0) + " " + words.get(1);
    }

    private void run(String serviceUrl) throws Exception {
        for (List<String> words : first) {
            String why = call(words);
            if (why != null) {
                OUT.println("failed\tfirst: " + String.join(" ", words) + "\t" + why);
            }
        }
        try (PulsarClient client =
                        PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true).build();
                var user = client.newProducer().topic(values.get("non-persistent <topicName>")).create()) {
            publish(client);
            Map<String, List<List<String>>> commands = new LinkedHashMap<>();
            for (int phase = 0; phase < 3; phase++) {
                for (var each : help().entrySet()) {
                    if (phase == phase(each.getKey().split(" ")[1])) {
                        commands.put(each.getKey(), given.getOrDefault(
                                each.getKey(), List.of(made(each.getKey(), each.getValue()))));
                    }
                }
            }
            for (var each : commands.entrySet()) {
                String reason = left.getOrDefault(each.getKey(), left.get(each.getKey().split(" ")[0]));
                if (reason != null) {
                    OUT.println("left\t" + each.getKey() + "\t" + reason);
                    continue;
                }
                String why = null;
                if (each.getKey().startsWith("non-persistent ")) {
                    // Unloaded by a command before, the topic is there again with its producer.
                    while (!user.isConnected()) {
                        Thread.sleep(10);
                    }
                }
                for (List<String> words : each.getValue()) {
                    String problem = call(words);
                    why = problem == null ? why : String.join(" ", words) + ": " + problem;
                }
                OUT.println(why == null ? "ok\t" + each.getKey() : "failed\t" + each.getKey() + "\t" + why);
            }
        }
    }

    /** Messages to look at, and an open transaction with one more. */
    private void publish(PulsarClient client) throws Exception {
        String topic = values.get("<topicName>");
        try (var producer = client.newProducer(Schema.BYTES)
                        .topic(topic).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create();
                var consumer = client.newConsumer().topic(topic).subscriptionName(values.get("--subscription"))
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            MessageIdAdv id = null;
            for (int i = 0; i < 10; i++) {
                MessageIdAdv sent = (MessageIdAdv) producer.send(("message " + i).getBytes(StandardCharsets.UTF_8));
                id = id == null ? sent : id;
            }
            values.put("--ledgerId", "" + id.getLedgerId());
            values.put("--ledger-id", "" + id.getLedgerId());
            values.put("--entryId", "" + id.getEntryId());
            values.put("--entry-id", "" + id.getEntryId());
            values.put("{id}", id.getLedgerId() + ":" + id.getEntryId());
            Transaction transaction =
                    client.newTransaction().withTransactionTimeout(30, TimeUnit.MINUTES).build().get();
            producer.newMessage(transaction).value("open".getBytes(StandardCharsets.UTF_8)).send();
            consumer.acknowledgeAsync(consumer.receive().getMessageId(), transaction).get();
            values.put("--most-sig-bits", "" + transaction.getTxnID().getMostSigBits());
            values.put("--least-sig-bits", "" + transaction.getTxnID().getLeastSigBits());
        }
    }

    private static int phase(String command) {
        String verb = command.split("-")[0];
        return MAKING.contains(verb) ? 0 : TAKING.contains(verb) ? 2 : 1;
    }

    private Map<String, CommandSpec> help() throws Exception {
        var field = PulsarAdminTool.class.getDeclaredField("commander");
        field.setAccessible(true);
        Map<String, CommandSpec> found = new TreeMap<>();
        for (var group : ((CommandLine) field.get(tool)).getSubcommands().entrySet()) {
            for (var each : group.getValue().getSubcommands().entrySet()) {
                found.put(group.getKey() + " " + each.getKey(), each.getValue().getCommandSpec());
            }
        }
        return found;
    }

    /** A command with what it needs: what stands in its help as required, out of the values. */
    private List<String> made(String name, CommandSpec spec) {
        List<String> words = new ArrayList<>(Arrays.asList(name.split(" ")));
        String group = words.get(0);
        spec.positionalParameters().forEach(
                each -> words.add(value(group, "<" + each.paramLabel().replaceAll("[<>]", "") + ">")));
        spec.options().stream().filter(each -> each.required()).forEach(each -> {
            words.add(each.longestName());
            if (each.arity().max() > 0) {
                words.add(value(group, each.longestName()));
            }
        });
        return words;
    }

    private String value(String group, String key) {
        return values.getOrDefault(group + " " + key, values.getOrDefault(key, "?" + key));
    }

    /** Null if it was done, else why not. */
    private String call(List<String> words) throws Exception {
        List<String> filled = new ArrayList<>(List.of("--request-timeout", "60"));
        for (String word : words) {
            filled.add(word.startsWith("{") ? values.get(word) : word);
        }
        var run = PulsarAdminTool.class.getDeclaredMethod("run", String[].class);
        run.setAccessible(true);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(printed, true);
        PrintStream error = System.err;
        System.setOut(stream);
        System.setErr(stream);
        try {
            boolean isDone = (boolean) run.invoke(tool, (Object) filled.toArray(new String[0]));
            return isDone ? null : oneLine(printed.toString());
        } catch (java.lang.reflect.InvocationTargetException problem) {
            return oneLine(problem.getCause() + " " + printed);
        } finally {
            System.setOut(OUT);
            System.setErr(error);
        }
    }

    private static String oneLine(String text) {
        String line = text.strip().replaceAll("\\s+", " ");
        return line.substring(0, Math.min(400, line.length()));
    }
}
