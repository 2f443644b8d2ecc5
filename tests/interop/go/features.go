// What Apache's Go client is used for beside what smoke.go does, each once and all at the same time: one JSON line per feature,
// {"event": "feature", "name": ..., "works": ..., "why": ...}. The topics, PREFIX and the name of the feature, are there.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// For each wait of a feature.
const patience = 120 * time.Second

const traceTopic = "RMQ_SYS_TRACE_TOPIC"

type servers struct {
	nameserver, broker, prefix string
}

type found struct {
	member, topic, body string
	queue, attempt      int
}

// What listeners got, in the order of their calls.
type seen struct {
	lock sync.Mutex
	all  []found
}

func (s *seen) add(one found) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.all = append(s.all, one)
}

func (s *seen) list() []found {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]found(nil), s.all...)
}

// The bodies that member got, sorted; of every member when it is "".
func (s *seen) bodies(member string) []string {
	bodies := []string{}
	for _, one := range s.list() {
		if member == "" || one.member == member {
			bodies = append(bodies, one.body)
		}
	}
	sort.Strings(bodies)
	return bodies
}

// Waits for these bodies, and then a little for too many.
func (s *seen) await(member string, bodies ...string) {
	sort.Strings(bodies)
	until(func() bool { return len(s.bodies(member)) >= len(bodies) }, func() string {
		return fmt.Sprintf("%d wanted, got %v", len(bodies), s.list())
	})
	time.Sleep(300 * time.Millisecond)
	check(strings.Join(s.bodies(member), " ") == strings.Join(bodies, " "), "%v wanted, got %v", bodies, s.list())
}

func until(done func() bool, what func() string) {
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		check(time.Now().Before(end), "%s", what())
	}
}

// A feature that does not work panics; it is a line of its own and no end of the others.
func check(good bool, format string, values ...any) {
	if !good {
		panic(fmt.Sprintf(format, values...))
	}
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func features(nameserver, broker, prefix string) {
	at := servers{nameserver, broker, prefix}
	all := map[string]func() string{
		"orderly": at.orderly, "broadcasting": at.broadcasting, "delay": at.delay, "transaction": at.transaction,
		"request-reply": at.requestReply, "sql92": at.sql92, "pull": at.pull, "namespace": at.namespace, "trace": at.trace,
		"one-way": at.oneWay, "async": at.async, "restart": at.restart, "members": at.members, "topics": at.topics,
	}
	begin := time.Now()
	var running sync.WaitGroup
	for name, feature := range all {
		running.Add(1)
		go func(name string, feature func() string) {
			defer running.Done()
			why, works := "", false
			defer func() {
				if problem := recover(); problem != nil {
					why = fmt.Sprint(problem)
				}
				show(map[string]any{"event": "feature", "name": name, "works": works, "why": why})
				fmt.Fprintln(os.Stderr, name, time.Since(begin))
			}()
			why, works = feature(), true
		}(name, feature)
	}
	running.Wait()
}

func (at servers) producer(name string, more ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(at.producing(name, more...)...)
	must(err)
	must(made.Start())
	return made
}

func (at servers) producing(name string, more ...producer.Option) []producer.Option {
	return append([]producer.Option{
		producer.WithNameServer([]string{at.nameserver}), producer.WithGroupName("go-producer-" + name),
		producer.WithInstanceName("p-" + name), producer.WithRetry(5),
	}, more...)
}

func (at servers) consuming(group, instance string, more ...consumer.Option) []consumer.Option {
	return append([]consumer.Option{
		consumer.WithNameServer([]string{at.nameserver}), consumer.WithGroupName("go-group-" + group),
		consumer.WithInstance(instance), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
}

var everything = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

// A member that listens until its end; what it gets is in into.
func (at servers) member(into *seen, group, name, topic string, selector consumer.MessageSelector,
	more ...consumer.Option) rocketmq.PushConsumer {
	made, err := rocketmq.NewPushConsumer(at.consuming(group, name, more...)...)
	must(err)
	each := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			into.add(found{name, one.Topic, string(one.Body), one.Queue.QueueId, int(one.ReconsumeTimes)})
		}
		return consumer.ConsumeSuccess, nil
	}
	must(made.Subscribe(topic, selector, each))
	must(made.Start())
	return made
}

func message(topic, tag, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body)).WithTag(tag)
}

func numbered(first, end int) []string {
	bodies := []string{}
	for n := first; n < end; n++ {
		bodies = append(bodies, fmt.Sprintf("m%d", n))
	}
	return bodies
}

func stored(to rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	result, err := to.SendSync(context.Background(), messages...)
	must(err)
	check(result.Status == primitive.SendOK, "%s", result)
	return result
}

func (at servers) orderly() string {
	topic, got := at.prefix+"-orderly", &seen{}
	sender := at.producer("orderly", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for n := 0; n < 60; n++ {
		stored(sender, message(topic, "t", fmt.Sprintf("%d:%d", n%5, n)).WithShardingKey(fmt.Sprint("key", n%5)))
	}
	made, err := rocketmq.NewPushConsumer(at.consuming("orderly", "orderly", consumer.WithConsumerOrder(true),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond))...)
	must(err)
	var failed atomic.Bool
	each := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			if strings.HasSuffix(string(one.Body), ":7") && failed.CompareAndSwap(false, true) {
				how, _ := primitive.GetOrderlyCtx(ctx)
				how.SuspendCurrentQueueTimeMillis = 100
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			got.add(found{"", topic, string(one.Body), one.Queue.QueueId, 0})
		}
		return consumer.ConsumeSuccess, nil
	}
	must(made.Subscribe(topic, everything, each))
	must(made.Start())
	until(func() bool { return len(got.list()) >= 60 }, func() string { return fmt.Sprint(len(got.list()), " of 60") })
	time.Sleep(300 * time.Millisecond)
	last, queues := map[int]int{}, map[int]int{}
	for _, one := range got.list() {
		var key, number int
		_, err := fmt.Sscanf(one.body, "%d:%d", &key, &number)
		must(err)
		before, known := last[key]
		check(!known || before < number, "%d after %d", number, before)
		check(!known || queues[key] == one.queue, "key %d in two queues", key)
		last[key], queues[key] = number, one.queue
	}
	check(failed.Load() && len(got.list()) == 60, "%d, failed once: %t", len(got.list()), failed.Load())
	must(made.Shutdown())
	return "60 of 5 keys in order through a failure"
}

func (at servers) broadcasting() string {
	topic, got := at.prefix+"-broadcasting", &seen{}
	for _, name := range []string{"b0", "b1"} {
		at.member(got, "broadcasting", name, topic, everything, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	sender := at.producer("broadcasting")
	for _, body := range numbered(0, 5) {
		stored(sender, message(topic, "t", body))
	}
	got.await("b0", numbered(0, 5)...)
	got.await("b1", numbered(0, 5)...)
	return "both of two members got all 5"
}

func (at servers) delay() string {
	topic, got := at.prefix+"-delay", &seen{}
	at.member(got, "delay", "delay", topic, everything)
	begin := time.Now()
	stored(at.producer("delay"), message(topic, "t", "m").WithDelayTimeLevel(2))
	got.await("", "m")
	check(time.Since(begin) >= 5*time.Second, "after %s", time.Since(begin))
	return "level 2 came after its 5 s"
}

// The listener of transactions: a message's body says what becomes of it.
type decisions struct {
	checks atomic.Int32
}

func (d *decisions) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	switch string(one.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

func (d *decisions) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	d.checks.Add(1)
	if string(one.Body) == "checked" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (at servers) transaction() string {
	topic, got, decides := at.prefix+"-transaction", &seen{}, &decisions{}
	sender, err := rocketmq.NewTransactionProducer(decides, at.producing("transaction")...)
	must(err)
	must(sender.Start())
	at.member(got, "transaction", "transaction", topic, everything)
	for _, body := range []string{"commit", "rollback", "checked", "dropped"} {
		one := message(topic, "t", body)
		one.WithProperty(primitive.PropertyCheckImmunityTimeInSeconds, "1")
		_, err := sender.SendMessageInTransaction(context.Background(), one)
		must(err)
	}
	until(func() bool { return decides.checks.Load() >= 2 }, func() string { return fmt.Sprint(decides.checks.Load(), " checks") })
	got.await("", "commit", "checked")
	return "commit, rollback, and both by check-back"
}

func (at servers) requestReply() string {
	topic := at.prefix + "-request-reply"
	made, err := rocketmq.NewPushConsumer(at.consuming("request", "request")...)
	must(err)
	replies := at.producer("replies")
	each := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			if reply, err := consumer.CreateReplyMessage(one, nil); err == nil && consumer.GetReplyToClient(one) != "" {
				reply.Body = append([]byte("re: "), one.Body...)
				_, _ = replies.SendSync(context.Background(), reply)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(made.Subscribe(topic, everything, each))
	must(made.Start())
	sender := at.producer("request")
	stored(sender, message(topic, "t", "lets it know the broker"))
	var answer *primitive.Message
	until(func() bool {
		time.Sleep(1500 * time.Millisecond) // a second after its start a producer tells the brokers it knows who it is
		answer, err = sender.Request(context.Background(), 5*time.Second, message(topic, "t", "ping"))
		return err == nil
	}, func() string { return err.Error() })
	check(string(answer.Body) == "re: ping", "%s", answer.Body)
	answered := make(chan string, 1)
	callback := func(_ context.Context, one *primitive.Message, err error) {
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- string(one.Body)
	}
	must(sender.RequestAsync(context.Background(), patience, callback, message(topic, "t", "pong")))
	select {
	case text := <-answered:
		check(text == "re: pong", "%s", text)
	case <-time.After(patience):
		check(false, "no answer to the asynchronous request")
	}
	return "ping and its reply, and once more with a callback"
}

func (at servers) sql92() string {
	topic, got := at.prefix+"-sql92", &seen{}
	sender := at.producer("sql92")
	for n, body := range numbered(0, 20) {
		one := message(topic, "t", body)
		one.WithProperty("n", fmt.Sprint(n))
		stored(sender, one)
	}
	expression := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n BETWEEN 5 AND 9 AND TAGS = 't'"}
	at.member(got, "sql92", "sql92", topic, expression)
	got.await("", numbered(5, 10)...)
	return "5 of 20"
}

func (at servers) pull() string {
	topic := at.prefix + "-pull"
	sender := at.producer("pull")
	poll := func(name string, first, end int) {
		made, err := rocketmq.NewPullConsumer(at.consuming("pull", name)...)
		must(err)
		must(made.Subscribe(topic, everything))
		for _, body := range numbered(first, end) {
			stored(sender, message(topic, "t", body))
		}
		must(made.Start())
		got := &seen{}
		for late := time.Now().Add(patience); len(got.list()) < end-first; {
			check(time.Now().Before(late), "%v", got.list())
			request, err := made.Poll(context.Background(), 500*time.Millisecond)
			if consumer.IsNoNewMsgError(err) {
				continue
			}
			must(err)
			for _, one := range request.GetMsgList() {
				got.add(found{"", one.Topic, string(one.Body), one.Queue.QueueId, 0})
			}
			made.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
		got.await("", numbered(first, end)...)
		must(made.PersistOffset(context.Background(), topic))
		must(made.Shutdown())
	}
	poll("pull-0", 0, 20)
	poll("pull-1", 20, 40)
	return "20 polled, and 20 more by the next of its group"
}

func (at servers) namespace() string {
	topic, got := at.prefix+"-namespace", &seen{}
	stored(at.producer("space", producer.WithNamespace("space")), message(topic, "t", "within"))
	stored(at.producer("no-space"), message(topic, "t", "without"))
	at.member(got, "space", "space", topic, everything, consumer.WithNamespace("space"))
	got.await("", "within")
	return "its own messages only"
}

func (at servers) trace() string {
	topic, got, traces := at.prefix+"-trace", &seen{}, &seen{}
	stored(at.producer("traces"), message(traceTopic, "t", "makes the topic, which Go's traces do not"))
	config := func() *primitive.TraceConfig {
		return &primitive.TraceConfig{Access: primitive.Local, Resolver: primitive.NewPassthroughResolver([]string{at.nameserver})}
	}
	sender := at.producer("trace", producer.WithTrace(config()))
	result := stored(sender, message(topic, "t", "m"))
	at.member(got, "trace", "trace", topic, everything, consumer.WithTrace(config()))
	got.await("", "m")
	at.member(traces, "traces", "traces", traceTopic, everything)
	kinds := func() map[string]bool {
		kinds := map[string]bool{}
		for _, one := range traces.list() {
			for _, line := range strings.Split(one.body, "\x02") {
				if strings.Contains(line, result.MsgID) {
					kinds[strings.Split(line, "\x01")[0]] = true
				}
			}
		}
		return kinds
	}
	until(func() bool { return len(kinds()) >= 3 }, func() string { return fmt.Sprint(kinds(), traces.list()) })
	return fmt.Sprint("its send and its consumption: ", kinds())
}

func (at servers) oneWay() string {
	topic, got := at.prefix+"-one-way", &seen{}
	sender := at.producer("one-way")
	for _, body := range numbered(0, 20) {
		must(sender.SendOneWay(context.Background(), message(topic, "t", body)))
	}
	at.member(got, "one-way", "one-way", topic, everything)
	got.await("", numbered(0, 20)...)
	return "20 without an answer"
}

func (at servers) async() string {
	topic, got := at.prefix+"-async", &seen{}
	sender := at.producer("async")
	var answers sync.WaitGroup
	var good atomic.Int32
	for _, body := range numbered(0, 100) {
		answers.Add(1)
		must(sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil && result.Status == primitive.SendOK {
				good.Add(1)
			}
			answers.Done()
		}, message(topic, "t", body)))
	}
	answers.Wait()
	check(good.Load() == 100, "%d of 100", good.Load())
	at.member(got, "async", "async", topic, everything)
	got.await("", numbered(0, 100)...)
	return "100 at a time"
}

func (at servers) restart() string {
	topic := at.prefix + "-restart"
	sender := at.producer("restart")
	for n := 0; n < 3; n++ {
		got, bodies := &seen{}, numbered(10*n, 10*n+10)
		for _, body := range bodies {
			stored(sender, message(topic, "t", body))
		}
		member := at.member(got, "restart", fmt.Sprint("restart-", n), topic, everything)
		got.await("", bodies...)
		must(member.Shutdown())
	}
	return "each of three after the other got what the one before had not"
}

// Messages for every queue of four, round by round, until those of one round went to the members as wanted.
func (at servers) members() string {
	topic, got := at.prefix+"-members", &seen{}
	sender := at.producer("members", producer.WithQueueSelector(producer.NewManualQueueSelector()))
	round, queues := 0, map[string][]int{}
	divided := func(wanted func() bool, what string) {
		until(func() bool {
			round++
			for queue := 0; queue < 4; queue++ {
				one := message(topic, "t", fmt.Sprintf("r%d:%d", round, queue))
				one.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: "broker-a", QueueId: queue}
				stored(sender, one)
			}
			mine := func() (of []found) {
				for _, one := range got.list() {
					if strings.HasPrefix(one.body, fmt.Sprintf("r%d:", round)) {
						of = append(of, one)
					}
				}
				return of
			}
			until(func() bool { return len(mine()) >= 4 }, func() string { return fmt.Sprint(what, mine()) })
			queues = map[string][]int{}
			for _, one := range mine() {
				queues[one.member] = append(queues[one.member], one.queue)
			}
			return wanted()
		}, func() string { return fmt.Sprint(what, queues) })
	}
	at.member(got, "members", "m0", topic, everything)
	divided(func() bool { return len(queues["m0"]) == 4 }, "alone")
	second := at.member(got, "members", "m1", topic, everything)
	divided(func() bool { return len(queues["m0"]) == 2 && len(queues["m1"]) == 2 }, "of two")
	must(second.Shutdown())
	divided(func() bool { return len(queues["m0"]) == 4 }, "alone again")
	return "2 and 2 of 4 queues, and all of them when the other has left"
}

func (at servers) topics() string {
	topic := at.prefix + "-made"
	tool, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{at.nameserver})))
	must(err)
	listed := func() bool {
		list, err := tool.FetchAllTopicList(context.Background())
		must(err)
		for _, one := range list.TopicList {
			if one == topic {
				return true
			}
		}
		return false
	}
	must(tool.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(at.broker)))
	until(listed, func() string { return "it is not listed" })
	until(func() bool { // a group is there when its first member has come
		groups, err := tool.GetAllSubscriptionGroup(context.Background(), at.broker, patience)
		must(err)
		return len(groups.SubscriptionGroupTable) > 0
	}, func() string { return "no groups" })
	must(tool.DeleteTopic(context.Background(), admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(at.broker),
		admin.WithNameSrvAddr([]string{at.nameserver})))
	until(func() bool { return !listed() }, func() string { return "it is still listed" })
	return "made, listed and removed"
}
