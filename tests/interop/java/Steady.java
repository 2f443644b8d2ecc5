import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code Steady NAMESERVER TOPIC LIMIT}: sends until standard input ends, whatever fails, while a consumer listens; then waits at
 * most LIMIT seconds until all that was acknowledged was consumed. One JSON line says how it went.
 */
public class Steady {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        AtomicBoolean ended = new AtomicBoolean();
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Set<String> consumed = ConcurrentHashMap.newKeySet();
        AtomicInteger failed = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("steady-consumer");
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                consumed.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("steady-producer");
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(30_000);
        producer.setSendMsgTimeout(2_000);
        producer.start();
        Thread[] threads = new Thread[4];
        for (int t = 0; t < threads.length; t++) {
            String name = "t" + t + "-";
            threads[t] = new Thread(() -> {
                for (int n = 0; !ended.get(); n++) {
                    String body = name + n;
                    try {
                        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
                        if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                            acknowledged.add(body);
                        }
                        Thread.sleep(5);
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                }
            });
            threads[t].start();
        }
        System.out.println("{\"event\":\"started\"}");
        System.in.readAllBytes();
        ended.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        long began = System.currentTimeMillis();
        long limit = began + 1000 * Long.parseLong(args[2]);
        while (!consumed.containsAll(acknowledged) && System.currentTimeMillis() < limit) {
            Thread.sleep(50);
        }
        int missing = 0;
        for (String body : acknowledged) {
            missing += consumed.contains(body) ? 0 : 1;
        }
        System.out.println("{\"event\":\"done\",\"acknowledged\":" + acknowledged.size() + ",\"failed\":" + failed
            + ",\"missing\":" + missing + ",\"after\":" + (System.currentTimeMillis() - began) + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
