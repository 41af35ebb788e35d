// A client in pure JavaScript: produce, consume, acknowledge. It cannot seek.
const { Producer, Consumer, logLevel } = require('pulsar-flex');

// node client.js ADDRESS TOPIC first, then second, which must find what the first one has left.
const [address, topic, half] = process.argv.slice(2);
const COUNT = 20;
const quiet = { discoveryServers: [address], logLevel: logLevel.ERROR };

const expect = (is, what) => {
  if (!is) throw new Error(`not as expected: ${what}`);
};

const newConsumer = () =>
  new Consumer({
    ...quiet,
    topic,
    subscription: 's',
    subType: Consumer.SUB_TYPES.EXCLUSIVE,
    consumerName: 'flex',
    initialPosition: Consumer.INITIAL_POSITION.EARLIEST,
    receiveQueueSize: 10,
  });

// Receives `count` messages, acknowledging those for which `acks` says so.
const receive = async (consumer, count, acks) => {
  const found = [];
  await new Promise((resolve, reject) => {
    consumer
      .run({
        autoAck: false,
        onMessage: async ({ message, ack }) => {
          const text = Buffer.from(message).toString();
          if (acks(text)) await ack();
          found.push(text);
          if (found.length === count) resolve();
        },
      })
      .catch(reject);
  });
  return found;
};

const story = async () => {
  const producer = new Producer({
    ...quiet,
    topic,
    producerAccessMode: Producer.ACCESS_MODES.SHARED,
  });
  await producer.create();
  const consumer = newConsumer();
  await consumer.subscribe();
  let expected = [];
  if (half === 'first') {
    for (let number = 0; number < COUNT; number++) {
      expected.push(`message-${number}`);
      await producer.sendMessage({ payload: `message-${number}`, properties: {} });
    }
  } else {
    expected = ['message-7', 'message-17', 'batch-0', 'batch-1'];
    await producer.sendBatch({
      messages: [
        { payload: 'batch-0', properties: {} },
        { payload: 'batch-1', properties: {} },
      ],
    });
  }
  const acks = (text) => half !== 'first' || !text.endsWith('7');
  const found = await receive(consumer, expected.length, acks);
  expect(JSON.stringify(found) === JSON.stringify(expected), found);
};

setTimeout(() => {
  console.error('it hangs');
  process.exit(1);
}, 60000);
story().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  }
);
