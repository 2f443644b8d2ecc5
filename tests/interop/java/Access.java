import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The official client with credentials, 4.9 and 5.x: sends COUNT messages and consumes them. What it learns is one JSON line each.
 *
 * <pre>
 * Access NAMESERVER TOPIC GROUP ACCESS_KEY SECRET_KEY COUNT
 * </pre>
 *
 * TLS comes by system properties.
 */
public class Access {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[5]);
        RPCHook hook = args[3].isEmpty() ? null : new AclClientRPCHook(new SessionCredentials(args[3], args[4]));
        DefaultMQProducer producer = new DefaultMQProducer("java-access", hook);
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(30_000);
        producer.setSendMsgTimeout(60_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            for (int index = 0; index < count; index++) {
                producer.send(new Message(topic, "tag", ("m-" + index).getBytes(StandardCharsets.UTF_8)));
            }
            say("sent", "");
        } catch (Exception error) {
            say("refused", String.valueOf(error.getMessage()) + " " + error.getCause());
            producer.shutdown();
            end();
        }
        Set<String> got = ConcurrentHashMap.newKeySet();
        CountDownLatch all = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2], hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                if (got.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    all.countDown();
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(60, TimeUnit.SECONDS);
        say(complete ? "consumed" : "lacking", String.valueOf(got.size()));
        consumer.shutdown();
        producer.shutdown();
        end();
    }

    private static void end() {
        say("done", "");
        System.exit(0);
    }

    private static void say(String event, String text) {
        String escaped = text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\r", "").replace("\t", " ");
        System.out.println("{\"event\":\"" + event + "\",\"text\":\"" + escaped + "\"}");
        System.out.flush();
    }
}
