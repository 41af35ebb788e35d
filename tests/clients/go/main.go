// The official Go client: produce, consume, acknowledge, seek. Ends with 0 if all of it was right.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const count = 50

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(is bool, what string) {
	if !is {
		check(fmt.Errorf("not as expected: %s", what))
	}
}

func receive(ctx context.Context, consumer pulsar.Consumer, number int) pulsar.Message {
	message, err := consumer.Receive(ctx)
	check(err)
	want := fmt.Sprintf("message-%d", number)
	expect(string(message.Payload()) == want, string(message.Payload())+" instead of "+want)
	return message
}

func story(ctx context.Context, client pulsar.Client, topic string, isBatched bool) {
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Exclusive, ReceiverQueueSize: 10,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckWithResponse:             true, EnableBatchIndexAcknowledgment: true,
	}
	consumer, err := client.Subscribe(options)
	check(err)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: !isBatched, BatchingMaxMessages: 7,
	})
	check(err)
	for number := 0; number < count; number++ {
		producer.SendAsync(ctx, &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprintf("message-%d", number)),
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(producer.FlushWithCtx(ctx))
	var ids []pulsar.MessageID
	for number := 0; number < count; number++ {
		message := receive(ctx, consumer, number)
		ids = append(ids, message.ID())
		if number < 20 {
			check(consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer, err = client.Subscribe(options)
	check(err)
	for number := 20; number < count; number++ {
		check(consumer.Ack(receive(ctx, consumer, number)))
	}
	check(consumer.Seek(ids[30]))
	for number := 31; number < count; number++ {
		receive(ctx, consumer, number)
	}
	// This client drops what lies before the last id that it was told to seek to, whatever it is
	// told later: a consumer of its own for the other seek.
	consumer.Close()
	consumer, err = client.Subscribe(options)
	check(err)
	check(consumer.SeekByTime(time.UnixMilli(0)))
	for number := 0; number < count; number++ {
		check(consumer.AckCumulative(receive(ctx, consumer, number)))
	}
	check(consumer.Unsubscribe())
	reader, err := client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(),
	})
	check(err)
	for number := 0; number < count; number++ {
		message, err := reader.Next(ctx)
		check(err)
		expect(string(message.Payload()) == fmt.Sprintf("message-%d", number), "read in order")
	}
	expect(!reader.HasNext(), "nothing left")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	quiet := logrus.New()
	quiet.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Logger: log.NewLoggerWithLogrus(quiet),
	})
	check(err)
	defer client.Close()
	story(ctx, client, os.Args[2]+"-plain", false)
	story(ctx, client, os.Args[2]+"-batched", true)
}
