import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A load on Apache Kafka; {@link Commands} of the harness:
 *
 * <pre>
 * open PARTITIONS SYNCED                                 makes the topic for `append`, instead of an earlier one with
 *                                                        this SYNCED, `true` for a sync after each write; one of many
 *                                                        partitions is used again: it takes several seconds to make
 * append LINGER_MS BATCH_BYTES SIZE OUTSTANDING SECONDS  one round, to the partitions in turn
 * close                                                  deletes the topics
 * </pre>
 *
 * This thread sends whenever one of OUTSTANDING permits is free. The process lives over all rounds, so that its
 * compiled code does.
 */
public final class KafkaBench {
    private static final short REPLICAS = 3;
    private static final String NEVER = String.valueOf(Long.MAX_VALUE);

    private final String servers;
    private final Admin admin;
    private final Map<Boolean, Topic> topics = new HashMap<>(); // by whether they are synced
    private Topic topic; // the one that was opened last
    private int topicsMade;

    private static final class Topic {
        final String name;
        final int partitions;

        Topic(String name, int partitions) {
            this.name = name;
            this.partitions = partitions;
        }
    }

    private KafkaBench(String servers) throws Exception {
        this.servers = servers;
        admin = Admin.create(Map.of("bootstrap.servers", servers));
        awaitBrokers();
    }

    public static void main(String[] args) throws Exception {
        Commands.serve(() -> new KafkaBench(args[0])::command);
    }

    private String command(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                return open(Integer.parseInt(words[1]), Boolean.parseBoolean(words[2]));
            case "append":
                return append(words[1], words[2], new byte[Integer.parseInt(words[3])],
                        Integer.parseInt(words[4]), Double.parseDouble(words[5]));
            case "close":
                return close();
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Round.STALL_S);
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new Exception(what + " did not come within " + Round.STALL_S + " s");
            }
            Thread.sleep(50);
        }
    }

    private void awaitBrokers() throws Exception {
        await("three brokers", () -> admin.describeCluster().nodes().get().size() == REPLICAS);
    }

    private String open(int count, boolean synced) throws Exception {
        Topic earlier = topics.get(synced);
        if (earlier != null && earlier.partitions == count && count > 1) {
            topic = earlier;
        } else {
            delete(earlier);
            topic = new Topic("bench-" + topicsMade++, count);
            topics.put(synced, topic);
            create(synced);
        }
        return "{\"partitions\": " + count + "}";
    }

    private void create(boolean synced) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic.name, topic.partitions, REPLICAS).configs(Map.of(
                "min.insync.replicas", "2",
                "flush.messages", synced ? "1" : NEVER,
                "compression.type", "producer")))).all().get();
        await("the replicas of " + topic.name, this::replicated);
        appendOneEach();
    }

    /** Whether each partition has a leader, and all of its replicas are in sync. */
    private boolean replicated() throws Exception {
        TopicDescription found;
        try {
            found = admin.describeTopics(Set.of(topic.name)).allTopicNames().get().get(topic.name);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof UnknownTopicOrPartitionException) {
                return false; // the broker that was asked doesn't know of it yet
            }
            throw e;
        }
        for (TopicPartitionInfo partition : found.partitions()) {
            if (partition.leader() == null || partition.isr().size() < REPLICAS) {
                return false;
            }
        }
        return found.partitions().size() == topic.partitions;
    }

    /** Followers find out about a new topic in their own time, and the first append to it waits for that. */
    private void appendOneEach() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("0", "16384")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < topic.partitions; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic.name, i, null, new byte[1])));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }
    }

    private String close() throws Exception {
        for (Topic each : topics.values()) {
            delete(each);
        }
        topics.clear();
        return "{\"partitions\": 0}";
    }

    private void delete(Topic each) throws Exception {
        if (each != null) {
            admin.deleteTopics(Set.of(each.name)).all().get();
        }
    }

    private String append(String lingerMs, String batchBytes, byte[] payload, int outstanding, double seconds)
            throws Exception {
        Semaphore permits = new Semaphore(outstanding);
        try (KafkaProducer<byte[], byte[]> producer = producer(lingerMs, batchBytes)) {
            producer.partitionsFor(topic.name);
            Round round = new Round(seconds);
            for (int i = 0; round.goesOn(); i = (i + 1) % topic.partitions) {
                Round.acquire(permits, 1);
                long began = System.nanoTime();
                producer.send(new ProducerRecord<>(topic.name, i, null, payload), (metadata, error) -> {
                    if (error == null) {
                        round.count(1, began);
                    } else {
                        round.failure = error;
                    }
                    permits.release();
                });
            }
            Round.acquire(permits, outstanding); // all are acknowledged before the round's figures are read
            return round.result();
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String lingerMs, String batchBytes) {
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(ProducerConfig.ACKS_CONFIG, "all");
        settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "true");
        settings.put(ProducerConfig.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION, "5"); // the most that keeps the order
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "none");
        settings.put(ProducerConfig.LINGER_MS_CONFIG, lingerMs);
        settings.put(ProducerConfig.BATCH_SIZE_CONFIG, batchBytes);
        settings.put(ProducerConfig.BUFFER_MEMORY_CONFIG, "268435456");
        settings.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, "16777216");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
