import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions, a SQL filter and request-reply with the official client: name server, topic, topic for requests. Both
 * topics exist. Prints one JSON line per fact and ends when everything expected has arrived.
 */
public class Transactions {
    private static final Set<String> GOT = ConcurrentHashMap.newKeySet();

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        String topic = arguments[1];
        String requests = arguments[2];

        DefaultMQPushConsumer consumer = consumer(nameserver, "filter-" + topic);
        consumer.subscribe(topic, MessageSelector.bySql("n BETWEEN 0 AND 100 AND kind IS NOT NULL"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (GOT.add(body(message))) {
                    say("got", body(message), "sysFlag", message.getSysFlag() & 0x0C);
                } else {
                    say("again", body(message), "sysFlag", message.getSysFlag() & 0x0C);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        TransactionMQProducer producer = new TransactionMQProducer("shop-" + topic);
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(30_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String text = body(message);
                return text.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : text.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("check", body(message), "isRealTopic", message.getTopic().equals(topic) ? 1 : 0);
                return body(message).startsWith("later-commit")
                    ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        for (String text : new String[] {"rollback", "later-rollback", "commit", "later-commit"}) {
            TransactionSendResult result = producer.sendMessageInTransaction(message(topic, text, 7, true), null);
            say("half", text, "ok", result.getSendStatus().ordinal());
        }
        for (int n = 0; n < 4; n++) {
            producer.send(message(topic, "plain-" + n, n * 40, n != 1));
        }

        DefaultMQProducer replier = new DefaultMQProducer("replier-" + topic);
        replier.setNamesrvAddr(nameserver);
        replier.setMqClientApiTimeout(30_000);
        replier.start();
        DefaultMQPushConsumer answering = consumer(nameserver, "answer-" + topic);
        answering.subscribe(requests, "*");
        answering.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message, ("re " + body(message)).getBytes());
                    SendResult result = replier.send(reply, 5000);
                    say("replied", body(message), "ok", result.getSendStatus().ordinal());
                } catch (Exception error) {
                    say("failed", error.getClass().getSimpleName(), "ok", -1);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        answering.start();
        Message answer = producer.request(new Message(requests, "question".getBytes()), 60_000);
        say("answer", body(answer), "ok", 0);

        Set<String> expected = Set.of("commit", "later-commit", "plain-0", "plain-2");
        for (int round = 0; round < 1200 && !GOT.containsAll(expected); round++) {
            Thread.sleep(100);
        }
        Thread.sleep(3000);  // whatever must not come has had the time to
        say("done", "", "ok", 0);
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQPushConsumer consumer(String nameserver, String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static Message message(String topic, String text, int n, boolean kind) {
        Message message = new Message(topic, text.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("n", String.valueOf(n));
        if (kind) {
            message.putUserProperty("kind", "x");
        }
        return message;
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String event, String body, String name, int value) {
        System.out.printf("{\"event\":\"%s\",\"body\":\"%s\",\"%s\":%d}%n", event, body, name, value);
        System.out.flush();
    }
}
