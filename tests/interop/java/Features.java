import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What the official client is used for, each once and all at the same time: {@code Features NAMESERVER PREFIX},
 * where PREFIX begins the names of its topics. One JSON line per
 * feature: {"event": "feature", "name": ..., "works": ..., "why": ...}. It compiles against 4.9
 * and 5.x.
 */
public class Features {
    private static final long LIMIT = TimeUnit.SECONDS.toMillis(120);
    private static String nameserver;
    private static String prefix;
    private static final List<Runnable> ends = Collections.synchronizedList(new ArrayList<>());

    public static void main(String[] args) throws Exception {
        nameserver = args[0];
        prefix = args[1];
        Map<String, Callable<String>> features = new LinkedHashMap<>();
        features.put("push", Features::push);
        features.put("retry", Features::retry);
        features.put("orderly", Features::orderly);
        features.put("broadcasting", Features::broadcasting);
        features.put("batch", Features::batch);
        features.put("delay", Features::delay);
        features.put("transaction", Features::transaction);
        features.put("request-reply", Features::requestReply);
        features.put("sql92", Features::sql92);
        features.put("lite pull", Features::litePull);
        features.put("namespace", Features::namespace);
        features.put("trace", Features::trace);
        long began = System.currentTimeMillis();
        ExecutorService threads = Executors.newFixedThreadPool(features.size());
        Map<String, Future<String>> running = new LinkedHashMap<>();
        for (Map.Entry<String, Callable<String>> feature : features.entrySet()) {
            running.put(feature.getKey(), threads.submit(() -> {
                String why = feature.getValue().call();
                System.err.println(feature.getKey() + ": " + (System.currentTimeMillis() - began) + " ms");
                return why;
            }));
        }
        for (Map.Entry<String, Future<String>> each : running.entrySet()) {
            String why;
            boolean works = false;
            try {
                why = each.getValue().get(2 * LIMIT, TimeUnit.MILLISECONDS);
                works = true;
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                why = String.valueOf(cause);
                cause.printStackTrace();
            }
            print("feature", each.getKey(), works, why);
        }
        for (Runnable end : ends) {
            end.run();
        }
        print("done", "", true, "");
        System.exit(0);
    }

    private static DefaultMQProducer producer(String name) throws Exception {
        return started(new DefaultMQProducer("producer-" + name), name);
    }

    private static <P extends DefaultMQProducer> P started(P producer, String name) throws Exception {
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(30_000);
        producer.setInstanceName("p-" + name);
        producer.setRetryTimesWhenSendFailed(30); // a fresh broker on a busy machine is "busy" for a while
        producer.setSendMsgTimeout(60_000);
        producer.start();
        ends.add(producer::shutdown);
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String name, String instance) {
        return prepared(new DefaultMQPushConsumer("group-" + name), instance);
    }

    private static DefaultMQPushConsumer prepared(DefaultMQPushConsumer consumer, String instance) {
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setInstanceName("c-" + instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        ends.add(consumer::shutdown);
        return consumer;
    }

    private static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** Waits until {@code found} has {@code count} entries, then a little for too many. */
    private static void await(java.util.Collection<?> found, int count) throws Exception {
        long end = System.currentTimeMillis() + LIMIT;
        while (found.size() < count && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Thread.sleep(300);
        check(found.size() == count, count + " wanted, found " + found);
    }

    private static void check(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    private static Set<String> concurrent() {
        return ConcurrentHashMap.newKeySet();
    }

    private static DefaultMQPushConsumer collect(DefaultMQPushConsumer consumer, java.util.Collection<String> into)
            throws Exception {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                into.add(body(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static String push() throws Exception {
        DefaultMQProducer producer = producer("push");
        Set<String> found = concurrent();
        for (int n = 0; n < 20; n++) {
            producer.send(message(prefix + "-push", "t" + n % 4, "m" + n));
        }
        DefaultMQPushConsumer consumer = consumer("push", "push");
        consumer.subscribe(prefix + "-push", "t1 || t3");
        collect(consumer, found);
        for (int n = 20; n < 40; n++) {
            producer.send(message(prefix + "-push", "t" + n % 4, "m" + n));
        }
        await(found, 20);
        return "40 sent, the 20 with its tags consumed";
    }

    private static String retry() throws Exception {
        List<String> found = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer("retry", "retry");
        consumer.subscribe(prefix + "-retry", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            found.add(body(message) + " " + message.getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return message.getReconsumeTimes() < 2
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer("retry").send(message(prefix + "-retry", "t", "m"));
        consumer.start();
        await(found, 3);
        check(found.equals(Arrays.asList("m 0", "m 1", "m 2")), found.toString());
        return "twice";
    }

    private static String orderly() throws Exception {
        DefaultMQProducer producer = producer("orderly");
        Map<String, List<Integer>> found = new ConcurrentHashMap<>();
        List<String> all = Collections.synchronizedList(new ArrayList<>());
        Set<String> failed = concurrent();
        for (int n = 0; n < 60; n++) {
            int key = n % 5;
            producer.send(message(prefix + "-orderly", "t", key + ":" + n), (queues, m, k) -> queues.get((int) k % queues.size()), key);
        }
        DefaultMQPushConsumer consumer = consumer("orderly", "orderly");
        consumer.subscribe(prefix + "-orderly", "*");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            String text = body(messages.get(0));
            if (text.endsWith(":7") && failed.add(text)) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            String[] parts = text.split(":");
            found.computeIfAbsent(parts[0], k -> Collections.synchronizedList(new ArrayList<>())).add(Integer.valueOf(parts[1]));
            all.add(text);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(all, 60);
        for (List<Integer> numbers : found.values()) {
            List<Integer> sorted = new ArrayList<>(numbers);
            Collections.sort(sorted);
            check(numbers.equals(sorted), numbers.toString());
        }
        return "60 of 5 keys in order through a failure";
    }

    private static String broadcasting() throws Exception {
        List<Set<String>> found = Arrays.asList(concurrent(), concurrent());
        producer("broadcasting").send(message(prefix + "-broadcasting", "t", "before"));
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer consumer = consumer("broadcasting", "broadcasting-" + n);
            broadcast(consumer);
            consumer.subscribe(prefix + "-broadcasting", "*");
            collect(consumer, found.get(n));
        }
        DefaultMQProducer producer = producer("broadcasting-2");
        for (int n = 0; n < 5; n++) {
            producer.send(message(prefix + "-broadcasting", "t", "m" + n));
        }
        await(found.get(0), 6);
        await(found.get(1), 6);
        return "both of two members got all 6";
    }

    /** {@code setMessageModel(MessageModel.BROADCASTING)}: the enum moved to another package from 4.9 to 5. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    private static String batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < 30; n++) {
            messages.add(message(prefix + "-batch", "t", "m" + n));
        }
        SendResult result = producer("batch").send(messages);
        check(result.getMsgId().split(",").length == 30, "ids: " + result.getMsgId());
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = consumer("batch", "batch");
        consumer.subscribe(prefix + "-batch", "*");
        collect(consumer, found);
        await(found, 30);
        return "30 in one request, 30 ids";
    }

    private static String delay() throws Exception {
        Message message = message(prefix + "-delay", "t", "m");
        message.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        producer("delay").send(message);
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = consumer("delay", "delay");
        consumer.subscribe(prefix + "-delay", "*");
        collect(consumer, found);
        await(found, 1);
        long took = System.currentTimeMillis() - sent;
        check(took >= 5_000, "after " + took + " ms");
        return "level 2 came after its 5 s";
    }

    private static String transaction() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        TransactionMQProducer producer = new TransactionMQProducer("producer-transaction");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        started(producer, "transaction");
        for (LocalTransactionState state : LocalTransactionState.values()) {
            Message message = message(prefix + "-transaction", "t", state.name());
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1");
            producer.sendMessageInTransaction(message, state);
        }
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = consumer("transaction", "transaction");
        consumer.subscribe(prefix + "-transaction", "*");
        collect(consumer, found);
        await(found, 2);
        check(!found.contains("ROLLBACK_MESSAGE") && checks.get() > 0, found + ", " + checks + " checks");
        return "commit, rollback, and a commit by check-back";
    }

    private static String requestReply() throws Exception {
        DefaultMQProducer replies = producer("replies");
        DefaultMQPushConsumer consumer = consumer("request", "request");
        consumer.subscribe(prefix + "-request", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] text = ("re: " + body(message)).getBytes(StandardCharsets.UTF_8);
                    replies.send(MessageUtil.createReplyMessage(message, text));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = producer("request");
        producer.send(message(prefix + "-request", "t", "makes the topic"));
        consumer.start();
        Message answer = producer.request(message(prefix + "-request", "t", "ping"), LIMIT);
        String text = new String(answer.getBody(), StandardCharsets.UTF_8);
        check(text.equals("re: ping"), text);
        return "ping and its reply";
    }

    private static String sql92() throws Exception {
        DefaultMQProducer producer = producer("sql92");
        for (int n = 0; n < 20; n++) {
            Message message = message(prefix + "-sql92", "t", "m" + n);
            message.putUserProperty("n", String.valueOf(n));
            producer.send(message);
        }
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = consumer("sql92", "sql92");
        consumer.subscribe(prefix + "-sql92", MessageSelector.bySql("n BETWEEN 5 AND 9 AND TAGS = 't'"));
        collect(consumer, found);
        await(found, 5);
        return "5 of 20";
    }

    private static String litePull() throws Exception {
        DefaultMQProducer producer = producer("lite");
        for (int n = 0; n < 20; n++) {
            producer.send(message(prefix + "-lite", "t", "m" + n));
        }
        Set<String> found = new HashSet<>();
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("group-lite");
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setInstanceName("c-lite");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(prefix + "-lite", "*");
        consumer.start();
        long end = System.currentTimeMillis() + LIMIT;
        while (found.size() < 20 && System.currentTimeMillis() < end) {
            consumer.poll(500).forEach(message -> found.add(body(message)));
        }
        consumer.commitSync();
        long committed = 0;
        for (MessageQueue queue : consumer.fetchMessageQueues(prefix + "-lite")) {
            committed += Math.max(0, consumer.committed(queue));
        }
        consumer.shutdown();
        check(found.size() == 20 && committed == 20, found.size() + " polled, " + committed + " committed");
        return "20 polled and committed";
    }

    private static String namespace() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producer-space");
        producer.setNamespace("space");
        started(producer, "space");
        producer.send(message(prefix + "-space", "t", "within"));
        producer("no-space").send(message(prefix + "-space", "t", "without"));
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-space");
        consumer.setNamespace("space");
        prepared(consumer, "space");
        consumer.subscribe(prefix + "-space", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> found.add(message.getTopic() + " " + body(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(found, 1);
        check(found.contains(prefix + "-space within"), found.toString());
        return "its own messages, under the topic's plain name";
    }

    /** Whether the trace arrived is for whoever reads it; the id of the message is in the line. */
    private static String trace() throws Exception {
        DefaultMQProducer producer = traced(DefaultMQProducer.class, "producer-trace");
        started(producer, "trace");
        Set<String> found = concurrent();
        DefaultMQPushConsumer consumer = traced(DefaultMQPushConsumer.class, "group-trace");
        prepared(consumer, "trace");
        consumer.subscribe(prefix + "-trace", "*");
        SendResult result = producer.send(message(prefix + "-trace", "t", "m"));
        collect(consumer, found);
        await(found, 1);
        return result.getMsgId();
    }

    /** A client that writes traces: by its constructor in 4.9, by a setter in 5. */
    private static <C> C traced(Class<C> kind, String group) throws Exception {
        try {
            return kind.getConstructor(String.class, boolean.class).newInstance(group, true);
        } catch (NoSuchMethodException later) {
            C client = kind.getConstructor(String.class).newInstance(group);
            kind.getMethod("setEnableTrace", boolean.class).invoke(client, true);
            return client;
        }
    }

    private static synchronized void print(String event, String name, boolean works, String why) {
        StringBuilder out = new StringBuilder();
        for (char c : String.valueOf(why).toCharArray()) {
            out.append(c == '"' || c == '\\' || c < 0x20 || c > 0x7e ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        System.out.println("{\"event\":\"" + event + "\",\"name\":\"" + name + "\",\"works\":" + works + ",\"why\":\"" + out + "\"}");
        System.out.flush();
    }
}
