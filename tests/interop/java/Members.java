import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One member of a group, of the official client, until it is told to end (SIGTERM): then it leaves the group properly.
 *
 * <pre>
 * Members orderly|broadcast|concurrent|lite NAMESERVER TOPIC GROUP [FAILING]
 * </pre>
 *
 * Prints one JSON line per delivery. A body that starts with FAILING fails on its first delivery here.
 * "lite" polls, and commits what it got before it polls again. It compiles against 4.9 and 5.x.
 */
public class Members {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("lite")) {
            lite(arguments[1], arguments[2], arguments[3]);
            return;
        }
        boolean orderly = arguments[0].equals("orderly");
        String failing = arguments.length > 4 ? arguments[4] : "\0";
        Set<String> failed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(arguments[1]);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(arguments[2], "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    String body = body(message);
                    if (body.startsWith(failing) && failed.add(body)) {
                        say("failed", message);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    say("message", message);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            if (arguments[0].equals("broadcast")) {
                Features.broadcast(consumer);
            }
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    say("message", message);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        untilTold(consumer::shutdown);
        Thread.currentThread().join();
    }

    private static void lite(String nameserver, String topic, String group) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        untilTold(consumer::shutdown);
        while (consumer.isRunning()) {
            List<MessageExt> messages = consumer.poll(200);
            messages.forEach(message -> say("message", message));
            if (!messages.isEmpty()) {
                consumer.commitSync();
            }
        }
    }

    private static void untilTold(Runnable leave) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leave.run();
            System.out.println("{\"event\":\"done\"}");
            System.out.flush();
        }));
        System.out.println("{\"event\":\"started\"}");
        System.out.flush();
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String event, MessageExt message) {
        System.out.printf("{\"event\":\"%s\",\"body\":\"%s\",\"queueId\":%d,\"queueOffset\":%d,\"reconsumeTimes\":%d}%n",
            event, body(message), message.getQueueId(), message.getQueueOffset(), message.getReconsumeTimes());
        System.out.flush();
    }
}
