import java.nio.charset.StandardCharsets;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.BrokerStatsData;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * {@code Dashboard NAMESERVER TOPIC GROUP PRODUCERS KEY}: what the pages of RocketMQ's dashboard ask, through the same admin client
 * and, as there, over the VIP channel. One JSON line for each question: its page, and the answer or the error as text.
 */
public class Dashboard {
    private interface Question {
        Object ask() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        String group = args[2];
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(args[0]);
        admin.setMqClientApiTimeout(30_000);
        admin.setVipChannelEnabled(true);
        admin.setInstanceName("dashboard");
        admin.start();
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        String name = cluster.getBrokerAddrTable().keySet().iterator().next();
        String broker = cluster.getBrokerAddrTable().get(name).getBrokerAddrs().get(0L);

        say("ops", () -> admin.getNameServerAddressList());
        say("cluster", () -> cluster.getClusterAddrTable());
        say("cluster runtime", () -> new TreeMap<>(admin.fetchBrokerRuntimeStats(broker).getTable()).get("msgPutTotalTodayNow"));
        say("cluster config", () -> admin.getBrokerConfig(broker).getProperty("brokerName"));
        say("charts", () -> {
            BrokerStatsData data = admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic);
            return data.getStatsDay().getSum();
        });
        say("topics", () -> admin.fetchAllTopicList().getTopicList().contains(topic));
        say("topics configured", () -> admin.getAllTopicConfig(broker, 10_000).getTopicConfigTable().containsKey(topic));
        say("topic status", () -> {
            TopicStatsTable table = admin.examineTopicStats(topic);
            return table.getOffsetTable().values().stream().mapToLong(each -> each.getMaxOffset() - each.getMinOffset()).sum();
        });
        say("topic router", () -> admin.examineTopicRouteInfo(topic).getBrokerDatas().size());
        say("topic consumers", () -> admin.queryTopicConsumeByWho(topic).getGroupList());
        say("topic config", () -> admin.examineTopicConfig(broker, topic).getReadQueueNums());
        say("topic create", () -> {
            admin.createAndUpdateTopicConfig(broker, new TopicConfig("made-on-a-page", 3, 3, 6));
            return admin.examineTopicConfig(broker, "made-on-a-page").getWriteQueueNums();
        });
        say("topic send", () -> {
            DefaultMQProducer producer = new DefaultMQProducer("dashboard-producer");
            producer.setNamesrvAddr(args[0]);
            producer.setMqClientApiTimeout(30_000);
            producer.setVipChannelEnabled(true);
            producer.setInstanceName("dashboard-sender");
            producer.start();
            try {
                Message message = new Message("made-on-a-page", "tag", "key", "text".getBytes(StandardCharsets.UTF_8));
                return producer.send(message, 10_000).getSendStatus();
            } finally {
                producer.shutdown();
            }
        });
        say("topic send in a transaction", () -> {
            TransactionMQProducer producer = new TransactionMQProducer("dashboard-transactions");
            producer.setNamesrvAddr(args[0]);
            producer.setMqClientApiTimeout(30_000);
            producer.setVipChannelEnabled(true);
            producer.setInstanceName("dashboard-transactions");
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            producer.start();
            try {
                Message message = new Message("made-on-a-page", "tag", "text".getBytes(StandardCharsets.UTF_8));
                return producer.sendMessageInTransaction(message, null).getLocalTransactionState();
            } finally {
                producer.shutdown();
            }
        });
        say("topic delete", () -> {
            admin.deleteTopicInBroker(Set.of(broker), "made-on-a-page");
            admin.deleteTopicInNameServer(Set.of(args[0].split(";")), "made-on-a-page");
            return "done";
        });
        say("groups", () -> admin.getAllSubscriptionGroup(broker, 10_000).getSubscriptionGroupTable().containsKey(group));
        say("group progress", () -> {
            ConsumeStats stats = admin.examineConsumeStats(group);
            return stats.computeTotalDiff();
        });
        say("group progress in a topic", () -> admin.examineConsumeStats(group, topic).getOffsetTable().size() > 0);
        Set<String> clients = new LinkedHashSet<>();
        say("group clients", () -> {
            for (Connection each : admin.examineConsumerConnectionInfo(group).getConnectionSet()) {
                clients.add(each.getClientId());
            }
            return clients.size();
        });
        String client = clients.isEmpty() ? "nobody" : clients.iterator().next();
        say("group client", () -> {
            ConsumerRunningInfo info = admin.getConsumerRunningInfo(group, client, false);
            return info.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count();
        });
        say("group client's stacks", () -> admin.getConsumerRunningInfo(group, client, true).getJstack() != null);
        say("group create", () -> {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName("made-on-a-page");
            config.setRetryMaxTimes(7);
            admin.createAndUpdateSubscriptionGroupConfig(broker, config);
            return admin.examineSubscriptionGroupConfig(broker, "made-on-a-page").getRetryMaxTimes();
        });
        say("group reset with nobody there", () -> admin.resetOffsetByTimestampOld("made-on-a-page", topic, 1, true).size());
        say("group delete", () -> {
            admin.deleteSubscriptionGroup(broker, "made-on-a-page", true);
            return "done";
        });
        say("producers", () -> admin.examineProducerConnectionInfo(args[3], topic).getConnectionSet().size());
        MessageExt[] found = new MessageExt[1];
        say("message by key", () -> {
            List<MessageExt> list = admin.queryMessage(topic, args[4], 64, 0, Long.MAX_VALUE).getMessageList();
            found[0] = list.get(0);
            return list.size();
        });
        say("message by id", () -> new String(admin.viewMessage(topic, found[0].getMsgId()).getBody(), StandardCharsets.UTF_8));
        say("message tracks", () -> admin.messageTrackDetail(found[0]).get(0).getTrackType());
        say("message consumed once more", () -> {
            return admin.consumeMessageDirectly(group, client, topic, found[0].getMsgId()).getConsumeResult();
        });
        say("messages by time", () -> {
            MessageQueue queue = new MessageQueue(topic, name, found[0].getQueueId());
            return admin.searchOffset(queue, 1) + " " + (admin.maxOffset(queue) > admin.minOffset(queue));
        });
        say("messages of a topic", () -> {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("TOOLS_CONSUMER");
            consumer.setNamesrvAddr(args[0]);
            consumer.setMqClientApiTimeout(30_000);
            consumer.setVipChannelEnabled(true);
            consumer.setInstanceName("dashboard-reader");
            consumer.start();
            try {
                int count = 0;
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    count += consumer.pull(queue, "*", consumer.searchOffset(queue, 1), 32).getMsgFoundList().size();
                }
                return count;
            } finally {
                consumer.shutdown();
            }
        });
        say("group reset", () -> {
            Map<MessageQueue, Long> reset = admin.resetOffsetByTimestamp(topic, group, 1, true);
            return reset.values().stream().mapToLong(Long::longValue).sum();
        });
        System.out.println("{\"event\":\"done\"}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void say(String page, Question question) {
        String answer;
        try {
            answer = String.valueOf(question.ask());
        } catch (Throwable error) {
            answer = "FAILED: " + error;
        }
        StringBuilder out = new StringBuilder();
        for (char c : answer.toCharArray()) {
            out.append(c == '"' || c == '\\' || c < 0x20 || c > 0x7e ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        System.out.println("{\"event\":\"page\",\"page\":\"" + page + "\",\"answer\":\"" + out + "\"}");
        System.out.flush();
    }
}
