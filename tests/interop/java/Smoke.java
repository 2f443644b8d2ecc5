import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client as a program: every fact it learns is one JSON line on standard output, the test judges them.
 *
 * <pre>
 * Smoke send    NAMESERVER TOPIC PREFIX COUNT
 * Smoke consume NAMESERVER TOPIC GROUP  COUNT FAILING_BODY LIMIT_SECONDS [asked]
 * </pre>
 *
 * {@code send} makes bodies PREFIX-0, PREFIX-1 ... with a tag, two keys and a property. {@code consume} reads from the first
 * offset until COUNT different bodies were consumed successfully; the body FAILING_BODY fails on its first delivery. With
 * {@code asked} it asks the broker for its queues, and pops where the broker says so.
 */
public class Smoke {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "send":
                send(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            case "consume":
                consume(args[1], args[2], args[3], Integer.parseInt(args[4]), args[5], Long.parseLong(args[6]), args.length < 8);
                break;
            default:
                throw new IllegalArgumentException("send or consume, not " + args[0]);
        }
        // Some threads of the client are not daemons; everything that matters was shut down and printed before.
        System.exit(0);
    }

    private static void send(String nameserver, String topic, String prefix, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-sender-" + prefix);
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(30_000);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        for (int index = 0; index < count; index++) {
            String body = prefix + "-" + index;
            Message message = new Message(topic, "tag-" + prefix, body.getBytes(StandardCharsets.UTF_8));
            message.setKeys(java.util.Arrays.asList("key-" + body, "all"));
            message.putUserProperty("from", "java grün");
            SendResult result = producer.send(message);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("event", "sent");
            line.put("body", body);
            line.put("status", result.getSendStatus().name());
            line.put("msgId", result.getMsgId());
            line.put("offsetMsgId", result.getOffsetMsgId());
            line.put("broker", result.getMessageQueue().getBrokerName());
            line.put("queueId", result.getMessageQueue().getQueueId());
            line.put("queueOffset", result.getQueueOffset());
            print(line);
        }
        producer.shutdown();
        print(Collections.singletonMap("event", "done"));
    }

    private static void consume(String nameserver, String topic, String group, int count, String failing, long limit,
            boolean clientRebalance) throws Exception {
        Set<String> succeeded = ConcurrentHashMap.newKeySet();
        AtomicBoolean failed = new AtomicBoolean();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // The retry topic becomes routable after the first heartbeat; 30 s until the next look would be most of the test.
        consumer.setPollNameServerInterval(1_000);
        consumer.setClientRebalance(clientRebalance);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                boolean fail = body.equals(failing) && failed.compareAndSet(false, true);
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("event", "message");
                line.put("body", body);
                line.put("failed", fail);
                line.put("at", System.currentTimeMillis());
                line.put("topic", message.getTopic());
                line.put("queueTopic", context.getMessageQueue().getTopic());
                line.put("queueId", message.getQueueId());
                line.put("queueOffset", message.getQueueOffset());
                line.put("reconsumeTimes", message.getReconsumeTimes());
                line.put("msgId", message.getMsgId());
                line.put("tags", message.getTags());
                line.put("keys", message.getKeys());
                line.put("bornTimestamp", message.getBornTimestamp());
                line.put("storeTimestamp", message.getStoreTimestamp());
                line.put("bornHost", String.valueOf(message.getBornHost()));
                line.put("storeHost", String.valueOf(message.getStoreHost()));
                line.put("properties", new LinkedHashMap<String, Object>(message.getProperties()));
                print(line);
                if (fail) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                succeeded.add(body);
                if (succeeded.size() == count) {
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        print(Collections.singletonMap("event", "started"));
        boolean complete = all.await(limit, TimeUnit.SECONDS);
        consumer.shutdown();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", "done");
        line.put("complete", complete);
        line.put("succeeded", succeeded.size());
        print(line);
    }

    private static void print(Map<String, ?> line) {
        String text = json(line);
        synchronized (System.out) {
            System.out.println(text);
            System.out.flush();
        }
    }

    /** ASCII JSON of what the lines are made of: maps, strings, numbers, booleans, null. */
    private static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        StringBuilder out = new StringBuilder();
        if (value instanceof Map) {
            out.append('{');
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(out.length() > 1 ? "," : "").append(json(entry.getKey())).append(':').append(json(entry.getValue()));
            }
            return out.append('}').toString();
        }
        out.append('"');
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\' || c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
