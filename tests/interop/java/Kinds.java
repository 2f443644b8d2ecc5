import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Every kind of message, as the official client is told of it and as it comes back: one JSON line each.
 *
 * <pre>
 * Kinds NAMESERVER TOPIC LIMIT_SECONDS
 * </pre>
 *
 * Bodies name the kind. "retried" fails on its first delivery, "dead" on every one; the latter is read from its dead letters.
 */
public class Kinds {
    private static final Set<String> awaited = ConcurrentHashMap.newKeySet();
    /** When a recalled message would have come. */
    private static long recalledUntil;
    private static final CountDownLatch complete = new CountDownLatch(1);

    public static void main(String[] args) throws Exception {
        String nameserver = args[0];
        String topic = args[1];
        boolean timed = args.length < 4;
        Collections.addAll(awaited, "plain", "bare", "delayed", "retried", "dead", "transactional", "batch-0", "batch-1");
        if (timed) {
            Collections.addAll(awaited, "timer", "timer-retried");
        }

        DefaultMQProducer producer = new DefaultMQProducer("kinds-sender");
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(30_000);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        sent("plain", producer.send(message(topic, "plain")));
        sent("bare", producer.send(new Message(topic, "bare".getBytes(StandardCharsets.UTF_8))));
        Message delayed = message(topic, "delayed");
        delayed.setDelayTimeLevel(1);
        sent("delayed", producer.send(delayed));
        sent("retried", producer.send(message(topic, "retried")));
        if (timed) {
            Message timer = message(topic, "timer");
            timer.setDelayTimeMs(3_000);
            sent("timer", producer.send(timer));
            Message timerRetried = message(topic, "timer-retried");
            timerRetried.setDelayTimeSec(2);
            sent("timer-retried", producer.send(timerRetried));
            Message absolute = message(topic, "recalled");
            absolute.setDeliverTimeMs(System.currentTimeMillis() + 8_000);
            SendResult recallable = producer.send(absolute);
            sent("recalled", recallable);
            recalledUntil = System.currentTimeMillis() + 10_000;
            Map<String, Object> recall = new LinkedHashMap<>();
            recall.put("event", "recalled");
            recall.put("kind", "recalled");
            recall.put("msgId", producer.recallMessage(topic, recallable.getRecallHandle()));
            print(recall);
        }
        sent("dead", producer.send(message(topic, "dead")));
        List<Message> batch = new ArrayList<>();
        batch.add(message(topic, "batch-0"));
        batch.add(message(topic, "batch-1"));
        sent("batch", producer.send(batch));

        TransactionMQProducer transactions = new TransactionMQProducer("kinds-transactions");
        transactions.setNamesrvAddr(nameserver);
        transactions.setMqClientApiTimeout(30_000);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
        sent("transactional", transactions.sendMessageInTransaction(message(topic, "transactional"), null));

        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        consumers.add(consume(nameserver, "kinds", topic, "* ", 16));
        consumers.add(consume(nameserver, "kinds-dying", topic, "dead", 0));
        consumers.add(consume(nameserver, "kinds-undertaker", "%DLQ%kinds-dying", "*", 16));
        boolean all = complete.await(Long.parseLong(args[2]), TimeUnit.SECONDS);
        Thread.sleep(Math.max(0, recalledUntil - System.currentTimeMillis()));
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", "done");
        line.put("missing", String.join(",", awaited));
        print(line);
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        producer.shutdown();
        transactions.shutdown();
        System.exit(all ? 0 : 1);
    }

    private static Message message(String topic, String kind) {
        Message message = new Message(topic, kind, "key-" + kind, kind.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("mine", "grün");
        return message;
    }

    private static DefaultMQPushConsumer consume(String nameserver, String group, String topic, String tag, int attempts)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        consumer.setMaxReconsumeTimes(attempts);
        consumer.subscribe(topic, tag.trim());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String kind = new String(message.getBody(), StandardCharsets.UTF_8);
                boolean dying = group.equals("kinds-dying");
                if (dying || kind.endsWith("retried") && message.getReconsumeTimes() == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (kind.equals("dead") && group.equals("kinds")) {
                    continue;
                }
                received(kind, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static void sent(String kind, SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", "sent");
        line.put("kind", kind);
        line.put("msgId", result.getMsgId());
        line.put("offsetMsgId", result.getOffsetMsgId());
        line.put("transactionId", result.getTransactionId());
        line.put("regionId", result.getRegionId());
        line.put("traceOn", result.isTraceOn());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("recallable", result.getRecallHandle() != null);
        print(line);
    }

    private static void received(String kind, MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", "received");
        line.put("kind", kind);
        line.put("msgId", message.getMsgId());
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("sysFlag", message.getSysFlag());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("prepared", message.getPreparedTransactionOffset() > 0);
        line.put("transactionId", message.getTransactionId());
        line.put("properties", message.getProperties());
        print(line);
        awaited.remove(kind);
        if (awaited.isEmpty()) {
            complete.countDown();
        }
    }

    private static synchronized void print(Map<String, Object> line) {
        StringBuilder text = new StringBuilder();
        write(text, line);
        System.out.println(text);
    }

    private static void write(StringBuilder text, Object value) {
        if (value instanceof Map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                text.append(separator);
                write(text, entry.getKey());
                text.append(':');
                write(text, entry.getValue());
                separator = ",";
            }
            text.append(separator.equals("{") ? "{}" : "}");
        } else if (value instanceof String) {
            text.append('"');
            for (char character : ((String) value).toCharArray()) {
                if (character < ' ' || character == '"' || character == '\\' || character > '~') {
                    text.append(String.format("\\u%04x", (int) character));
                } else {
                    text.append(character);
                }
            }
            text.append('"');
        } else {
            text.append(value);
        }
    }
}
