// The Node client (npm ali-ons) as a program: every fact it learns is one JSON line on standard output, the test judges them.
//
//   smoke.js send    NAMESERVER TOPIC PREFIX COUNT
//   smoke.js consume NAMESERVER TOPIC GROUP  TAG COUNT LIMIT_SECONDS
//   smoke.js steady  NAMESERVER TOPIC LIMIT_SECONDS
//   smoke.js features NAMESERVER BROKER PREFIX
//
// "send" makes bodies PREFIX-0, PREFIX-1 ..., the even ones with the tag "even" and the odd ones with "odd". "consume" reads
// TAG from the first offset until COUNT different bodies were consumed; the first of them fails once. "steady" sends
// until standard input ends, whatever fails, while a consumer listens, and then waits until all that was acknowledged came.
// "features" is in features.js.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const quiet = { info() {}, debug() {}, warn() {}, error: console.error };
const show = fact => process.stdout.write(JSON.stringify(fact) + '\n');
const options = nameSrv => ({
  nameSrv, accessKeyId: process.env.SMOKE_ACCESS_KEY || 'none', accessKeySecret: process.env.SMOKE_SECRET_KEY || 'none',
  logger: quiet, httpclient: {},
});

async function send(nameserver, topic, prefix, count) {
  const sender = new Producer({ ...options(nameserver), producerGroup: 'node-sender' });
  await sender.ready();
  for (let index = 0; index < count; index++) {
    const body = `${prefix}-${index}`;
    const message = new Message(topic, ['even', 'odd'][index % 2], body);
    message.keys = [`key-${body}`, 'all'];
    message.properties.from = 'node grün';
    const result = await sender.send(message);
    show({
      event: 'sent', body, status: result.sendStatus, msgId: result.msgId,
      queueId: result.messageQueue.queueId, queueOffset: result.queueOffset,
    });
  }
  await sender.close();
}

async function consume(nameserver, topic, group, tag, count, limit) {
  const receiver = new Consumer({
    ...options(nameserver), consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  const consumed = new Set();
  let failed = false;
  const complete = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${consumed.size} of ${count} after ${limit} s`)), limit * 1000);
    receiver.subscribe(topic, tag, async message => {
      const body = message.body.toString();
      const fail = !failed;
      failed = true;
      show({
        event: 'message', body, failed: fail, tags: message.tags, keys: message.keys, msgId: message.msgId,
        reconsumeTimes: message.reconsumeTimes, properties: message.properties,
      });
      if (fail) throw new Error('this delivery fails on purpose');
      consumed.add(body);
      if (consumed.size === count) resolve();
    });
  });
  await receiver.ready();
  await complete;
  await receiver.close();
}

async function steady(nameserver, topic, limit) {
  const receiver = new Consumer({
    ...options(nameserver), consumerGroup: 'node-steady', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  const consumed = new Set();
  const acknowledged = new Map(); // body to where it is stored
  receiver.on('error', () => {});
  receiver.subscribe(topic, '*', async message => { consumed.add(message.body.toString()); });
  await receiver.ready();
  const sender = new Producer({ ...options(nameserver), producerGroup: 'node-steady-sender' });
  sender.on('error', () => {});
  await sender.ready();
  show({ event: 'started' });
  const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
  let ended = false;
  process.stdin.resume().on('end', () => { ended = true; });
  await Promise.all([ 0, 1, 2, 3 ].map(async id => {
    for (let n = 0; !ended; n++) {
      const body = `t${id}-${n}`;
      try {
        const result = await sender.send(new Message(topic, 'steady', body));
        if (result.sendStatus === 'SEND_OK') acknowledged.set(body, [ result.messageQueue.queueId, Number(result.queueOffset) ]);
      } catch (error) {
        // whatever fails
      }
      await pause(5);
    }
  }));
  const late = Date.now() + 1000 * limit;
  const missing = () => [ ...acknowledged ].filter(([ body ]) => !consumed.has(body));
  while (missing().length > 0 && Date.now() < late) await pause(50);
  show({ event: 'steady', acknowledged: acknowledged.size, missing: missing().length, stored: missing().slice(0, 10) });
}

const [ what, nameserver, topic, name, ...rest ] = process.argv.slice(2);
const run = what === 'send' ? send(nameserver, topic, name, Number(rest[0]))
  : what === 'features' ? require('./features')(options(nameserver), name, show)
  : what === 'steady' ? steady(nameserver, topic, Number(name))
  : consume(nameserver, topic, name, rest[0], Number(rest[1]), Number(rest[2]));
run.then(() => {
  show({ event: 'done' });
  process.exit(0);
}, error => {
  console.error(error);
  process.exit(1);
});
