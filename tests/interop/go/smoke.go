// Apache's Go client as a program: every fact it learns is one JSON line on standard output, the test judges them.
//
//	smoke send    NAMESERVER TOPIC PREFIX COUNT
//	smoke consume NAMESERVER TOPIC GROUP  TAG COUNT LIMIT_SECONDS
//	smoke steady  NAMESERVER TOPIC LIMIT_SECONDS
//	smoke load    NAMESERVER TOPIC WARM COUNT IN_FLIGHT SIZE
//	smoke features NAMESERVER BROKER PREFIX
//
// "send" makes bodies PREFIX-0, PREFIX-1 ..., the even ones with the tag "even" and the odd ones with "odd", then one batch
// of two. "consume" reads TAG from the first offset until COUNT different bodies were consumed; the first of them fails once.
// "steady" sends until standard input ends, whatever fails, while a consumer listens, and then waits until all that was
// acknowledged came.
// "load" sends WARM and then COUNT messages of SIZE bytes, IN_FLIGHT at a time. "features" is in features.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetOutputPath(os.Args[1] + ".log")
	rlog.SetLogLevel("warn")
	switch os.Args[1] {
	case "send":
		send(os.Args[2], os.Args[3], os.Args[4], number(os.Args[5]))
	case "consume":
		consume(os.Args[2], os.Args[3], os.Args[4], os.Args[5], number(os.Args[6]), number(os.Args[7]))
	case "steady":
		steady(os.Args[2], os.Args[3], number(os.Args[4]))
	case "load":
		load(os.Args[2], os.Args[3], number(os.Args[4]), number(os.Args[5]), number(os.Args[6]), number(os.Args[7]))
	case "features":
		features(os.Args[2], os.Args[3], os.Args[4])
	default:
		fail(fmt.Errorf("send, consume, steady, load or features, not %s", os.Args[1]))
	}
	show(map[string]any{"event": "done"})
}

// Nobody, unless the environment says who.
func keys() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("SMOKE_ACCESS_KEY"), SecretKey: os.Getenv("SMOKE_SECRET_KEY")}
}

func send(nameserver, topic, prefix string, count int) {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameserver}), producer.WithGroupName("go-sender"), producer.WithRetry(2),
		producer.WithCredentials(keys()))
	fail(err)
	fail(sender.Start())
	message := func(body string, index int) *primitive.Message {
		made := primitive.NewMessage(topic, []byte(body))
		made.WithTag([]string{"even", "odd"}[index%2])
		made.WithKeys([]string{"key-" + body, "all"})
		made.WithProperty("from", "go grün")
		return made
	}
	post := func(body string, messages ...*primitive.Message) {
		result, err := sender.SendSync(context.Background(), messages...)
		fail(err)
		show(map[string]any{
			"event": "sent", "body": body, "status": int(result.Status), "msgId": result.MsgID,
			"offsetMsgId": result.OffsetMsgID, "queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset,
		})
	}
	for index := 0; index < count; index++ {
		body := fmt.Sprintf("%s-%d", prefix, index)
		post(body, message(body, index))
	}
	post(prefix+"-batch", message(prefix+"-batch-0", 0), message(prefix+"-batch-1", 1))
	fail(sender.Shutdown())
}

func consume(nameserver, topic, group, tag string, count, limit int) {
	receiver, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameserver}), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithCredentials(keys()))
	fail(err)
	var lock sync.Mutex
	consumed := map[string]bool{}
	failed := false
	complete := make(chan bool)
	each := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			body := string(message.Body)
			if !failed {
				failed, result = true, consumer.ConsumeRetryLater
			}
			show(map[string]any{
				"event": "message", "body": body, "failed": result != consumer.ConsumeSuccess, "tags": message.GetTags(),
				"keys": message.GetKeys(), "msgId": message.MsgId, "offsetMsgId": message.OffsetMsgId,
				"reconsumeTimes": message.ReconsumeTimes, "properties": message.GetProperties(),
			})
			if result == consumer.ConsumeSuccess && !consumed[body] {
				consumed[body] = true
				if len(consumed) == count {
					close(complete)
				}
			}
		}
		return result, nil
	}
	fail(receiver.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tag}, each))
	fail(receiver.Start())
	select {
	case <-complete:
	case <-time.After(time.Duration(limit) * time.Second):
		fail(fmt.Errorf("only %d of %d after %d s", len(consumed), count, limit))
	}
	fail(receiver.Shutdown())
}

func steady(nameserver, topic string, limit int) {
	receiver, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameserver}), consumer.WithGroupName("go-steady"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	fail(err)
	var consumed, acknowledged sync.Map
	each := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			consumed.Store(string(message.Body), true)
		}
		return consumer.ConsumeSuccess, nil
	}
	fail(receiver.Subscribe(topic, consumer.MessageSelector{}, each))
	fail(receiver.Start())
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameserver}), producer.WithGroupName("go-steady-sender"),
		producer.WithSendMsgTimeout(2*time.Second))
	fail(err)
	fail(sender.Start())
	show(map[string]any{"event": "started"})
	var ended atomic.Bool
	var senders sync.WaitGroup
	for id := 0; id < 4; id++ {
		senders.Add(1)
		go func(id int) {
			defer senders.Done()
			for n := 0; !ended.Load(); n++ {
				body := fmt.Sprintf("t%d-%d", id, n)
				result, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
				if err == nil && result.Status == primitive.SendOK {
					acknowledged.Store(body, true)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}(id)
	}
	io.Copy(io.Discard, os.Stdin)
	ended.Store(true)
	senders.Wait()
	late := time.Now().Add(time.Duration(limit) * time.Second)
	for {
		count, missing := 0, 0
		acknowledged.Range(func(body, _ any) bool {
			count++
			if _, ok := consumed.Load(body); !ok {
				missing++
			}
			return true
		})
		if missing == 0 || time.Now().After(late) {
			show(map[string]any{"event": "steady", "acknowledged": count, "missing": missing})
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func load(nameserver, topic string, warm, count, inFlight, size int) {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameserver}), producer.WithGroupName("go-load"), producer.WithRetry(0),
		producer.WithSendMsgTimeout(time.Minute))
	fail(err)
	fail(sender.Start())
	body := make([]byte, size)
	post := func(count int) int64 {
		var acknowledged atomic.Int64
		var senders sync.WaitGroup
		var begun atomic.Int64
		for id := 0; id < inFlight; id++ {
			senders.Add(1)
			go func() {
				defer senders.Done()
				for begun.Add(1) <= int64(count) {
					result, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, body))
					if err == nil && result.Status == primitive.SendOK {
						acknowledged.Add(1)
					}
				}
			}()
		}
		senders.Wait()
		return acknowledged.Load()
	}
	post(warm)
	before, begin := used(), time.Now()
	acknowledged := post(count)
	show(map[string]any{
		"event": "loaded", "acknowledged": acknowledged, "started": 0, "ended": time.Since(begin).Seconds(),
		"cpu": used() - before,
	})
	fail(sender.Shutdown())
}

// CPU seconds of this process so far.
func used() float64 {
	var found syscall.Rusage
	fail(syscall.Getrusage(syscall.RUSAGE_SELF, &found))
	seconds := func(time syscall.Timeval) float64 { return float64(time.Sec) + float64(time.Usec)/1e6 }
	return seconds(found.Utime) + seconds(found.Stime)
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	fail(err)
	return value
}

func show(fact map[string]any) {
	line, err := json.Marshal(fact)
	fail(err)
	fmt.Println(string(line))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
