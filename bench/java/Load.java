import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * {@code Load NAMESERVER}: Apache's client driven by JSON lines on standard input, answering as bench/roles.py does. Times are
 * seconds of the machine's monotonic clock, which Java's nanoTime and Python's monotonic() both read.
 */
public class Load {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final AtomicLong consumed = new AtomicLong();
    private static final Object arrived = new Object();
    private static volatile long target = Long.MAX_VALUE;
    private static volatile double first;
    private static volatile double last;
    private static final PrintStream ANSWERS = System.out;
    private static String nameserver;

    public static void main(String[] args) throws Exception {
        System.setOut(new PrintStream(OutputStream.nullOutputStream())); // where the client's logger says that it started
        nameserver = args[0];
        DefaultMQProducer producer = null;
        DefaultMQPushConsumer consumer = null;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            JSONObject command = JSON.parseObject(line);
            switch (command.getString("do")) {
                case "send":
                    producer = producer == null ? producer() : producer;
                    say(send(producer, command));
                    break;
                case "listen":
                    consumer = listen(command);
                    say(Map.of("ready", true));
                    break;
                case "expect":
                    say(expect(command.getLongValue("count")));
                    break;
                case "count":
                    say(Map.of("consumed", consumed.get()));
                    break;
                case "drain":
                    consumed.set(0);
                    first = 0;
                    DefaultMQPushConsumer fresh = listen(command);
                    Map<String, Object> found = expect(command.getLongValue("count"));
                    fresh.shutdown();
                    say(found);
                    break;
                default: // stop
                    if (consumer != null) {
                        consumer.shutdown();
                    }
                    say(Map.of("consumed", consumed.get()));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("bench-producer");
        made.setNamesrvAddr(nameserver);
        made.setSendMsgTimeout(60_000);
        made.setMqClientApiTimeout(60_000);
        made.setRetryTimesWhenSendAsyncFailed(0);
        made.start();
        return made;
    }

    private static Map<String, Object> send(DefaultMQProducer producer, JSONObject command) throws Exception {
        String topic = command.getString("topic");
        int batch = command.getIntValue("batch");
        int window = command.getIntValue("in_flight");
        double seconds = command.getDoubleValue("seconds"); // 0: as many as the count says
        long requests = seconds > 0 ? Long.MAX_VALUE : command.getLongValue("count") / batch;
        byte[] body = new byte[command.getIntValue("size")];
        new java.util.Random(1).nextBytes(body);
        Semaphore free = new Semaphore(window);
        AtomicLong acknowledged = new AtomicLong();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.addAndGet(batch);
                }
                free.release();
            }

            @Override
            public void onException(Throwable error) {
                System.err.println(error);
                free.release();
            }
        };
        long cpu = SYSTEM.getProcessCpuTime();
        double started = now();
        long n = 0;
        for (; n < requests && (seconds == 0 || now() < started + seconds); n++) {
            free.acquire();
            if (batch == 1) {
                producer.send(new Message(topic, body), callback);
            } else {
                List<Message> messages = new ArrayList<>(batch);
                for (int i = 0; i < batch; i++) {
                    messages.add(new Message(topic, body));
                }
                producer.send(messages, callback);
            }
        }
        free.acquire(window);
        return Map.of("sent", n * batch, "acknowledged", acknowledged.get(), "started", started, "ended", now(),
            "cpu", (SYSTEM.getProcessCpuTime() - cpu) / 1e9);
    }

    private static DefaultMQPushConsumer listen(JSONObject command) throws Exception {
        String group = command.getString("group");
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(nameserver);
        made.setInstanceName(group);
        made.setMqClientApiTimeout(60_000);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.setConsumeMessageBatchMaxSize(32);
        made.subscribe(command.getString("topic"), "*");
        if (command.getIntValue("orderly") > 0) {
            made.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                count(messages.size());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            made.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                count(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        made.start();
        return made;
    }

    private static void count(int more) {
        long before = consumed.getAndAdd(more);
        if (before == 0) {
            first = now();
        }
        if (before < target && before + more >= target) {
            synchronized (arrived) {
                last = now();
                target = Long.MAX_VALUE;
                arrived.notifyAll();
            }
        }
    }

    private static Map<String, Object> expect(long wanted) throws Exception {
        long cpu = SYSTEM.getProcessCpuTime();
        double started = now();
        synchronized (arrived) {
            last = 0;
            target = wanted;
            if (consumed.get() >= wanted) {
                last = now();
            }
            while (last == 0) {
                arrived.wait();
            }
            target = Long.MAX_VALUE;
        }
        return Map.of("consumed", consumed.get(), "first", first, "started", started, "ended", last, "cpu",
            (SYSTEM.getProcessCpuTime() - cpu) / 1e9);
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void say(Map<String, Object> what) {
        ANSWERS.println(JSON.toJSONString(what));
        ANSWERS.flush();
    }
}
