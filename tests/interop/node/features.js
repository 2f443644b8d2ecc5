// What the Node client is used for beside what smoke.js does, each once and all at the same time: one JSON line per feature,
// {"event": "feature", "name": ..., "works": ..., "why": ...}. The topics, PREFIX and the name of the feature, are there.
// It has no orderly listener, no transactions, no one-way sends, no pulls, no traces and no requests.
'use strict';

const assert = require('assert');
const { Consumer, Message, Producer } = require('ali-ons');

const PATIENCE = 120 * 1000; // of each wait of a feature, in milliseconds
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const numbered = (first, end) => Array.from({ length: end - first }, (_, n) => `m${first + n}`);

async function until(done, what) {
  for (const end = Date.now() + PATIENCE; !await done(); await pause(20)) assert(Date.now() < end, what());
}

// What listeners got, in the order of their calls: { member, topic, body }.
class Seen {
  constructor() { this.all = []; }

  bodies(member) {
    return this.all.filter(one => !member || one.member === member).map(one => one.body).sort();
  }

  // For these bodies, and then a little for too many.
  async wait(wanted, member) {
    await until(() => this.bodies(member).length >= wanted.length, () => `${wanted} wanted, got ${JSON.stringify(this.all)}`);
    await pause(300);
    assert.deepStrictEqual(this.bodies(member), [ ...wanted ].sort());
  }
}

class Features {
  constructor(options, prefix) {
    // For 30 s, 10 s and 3 s: a send that is given up is sent once more, and then there twice.
    this.options = { ...options, pollNameServerInteval: 1000, rebalanceInterval: 1000, sendMsgTimeout: 60 * 1000 };
    this.prefix = prefix;
  }

  async producer(name, more = {}) {
    const made = new Producer({ ...this.options, producerGroup: `node-producer-${name}`, instanceName: `p-${name}`, ...more });
    made.on('error', error => console.error(name, error));
    await made.ready();
    return made;
  }

  async member(seen, name, topic, { group = name, filter = '*', ...more } = {}) {
    const made = new Consumer({
      ...this.options, consumerGroup: `node-group-${group}`, instanceName: name,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...more,
    });
    made.on('error', error => console.error(name, error));
    made.subscribe(topic, filter, async message => {
      seen.all.push({ member: name, topic: message.topic, queue: message.queueId, body: message.body.toString() });
    });
    await made.ready();
    return made;
  }

  async broadcasting() {
    const topic = `${this.prefix}-broadcasting`;
    const seen = new Seen();
    for (const name of [ 'b0', 'b1' ]) await this.member(seen, name, topic, { group: 'broadcasting', isBroadcast: true });
    const sender = await this.producer('broadcasting');
    for (const body of numbered(0, 5)) await sender.send(new Message(topic, 't', body));
    await seen.wait(numbered(0, 5), 'b0');
    await seen.wait(numbered(0, 5), 'b1');
    return 'both of two members got all 5';
  }

  async delay() {
    const topic = `${this.prefix}-delay`;
    const seen = new Seen();
    await this.member(seen, 'delay', topic);
    const sender = await this.producer('delay');
    const late = new Message(topic, 't', 'm');
    late.delayTimeLevel = 2;
    const begin = Date.now();
    await sender.send(late);
    await seen.wait([ 'm' ]);
    assert(Date.now() - begin >= 5000, `after ${Date.now() - begin} ms`);
    return 'level 2 came after its 5 s';
  }

  async sql92() {
    const topic = `${this.prefix}-sql92`;
    const seen = new Seen();
    const sender = await this.producer('sql92');
    for (const [ n, body ] of numbered(0, 20).entries()) {
      const message = new Message(topic, 't', body);
      message.properties.n = String(n);
      await sender.send(message);
    }
    const filter = { expressionType: 'SQL92', subString: "n BETWEEN 5 AND 9 AND TAGS = 't'" };
    await this.member(seen, 'sql92', topic, { filter });
    await seen.wait(numbered(5, 10));
    return '5 of 20';
  }

  async namespace() {
    const topic = `${this.prefix}-namespace`;
    const seen = new Seen();
    await (await this.producer('space', { namespace: 'space' })).send(new Message(topic, 't', 'within'));
    await (await this.producer('no-space')).send(new Message(topic, 't', 'without'));
    await this.member(seen, 'space', topic, { namespace: 'space' });
    await seen.wait([ 'within' ]);
    return 'its own messages only';
  }

  async asynchronous() {
    const topic = `${this.prefix}-async`;
    const seen = new Seen();
    const sender = await this.producer('async');
    const results = await Promise.all(numbered(0, 100).map(body => sender.send(new Message(topic, 't', body))));
    assert(results.every(result => result.sendStatus === 'SEND_OK'), JSON.stringify(results));
    await this.member(seen, 'async', topic);
    await seen.wait(numbered(0, 100));
    return '100 at a time';
  }

  async restart() {
    const topic = `${this.prefix}-restart`;
    const sender = await this.producer('restart');
    for (let n = 0; n < 3; n++) {
      const seen = new Seen();
      const bodies = numbered(10 * n, 10 * n + 10);
      for (const body of bodies) await sender.send(new Message(topic, 't', body));
      const member = await this.member(seen, `restart-${n}`, topic, { group: 'restart' });
      await seen.wait(bodies);
      await member.close();
    }
    return 'each of three after the other got what the one before had not';
  }

  // A round of messages, one for every queue of four, until those of one went to the members as wanted.
  async members() {
    const topic = `${this.prefix}-members`;
    const seen = new Seen();
    const sender = await this.producer('members');
    let round = 0;
    const divided = wanted => until(async () => {
      round++;
      for (let queue = 0; queue < 4; queue++) await sender.send(new Message(topic, 't', `r${round}:${queue}`));
      const of = () => seen.all.filter(one => one.body.startsWith(`r${round}:`));
      await until(() => of().length >= 4, () => JSON.stringify([ wanted, seen.all.slice(-10) ]));
      return [ 'm0', 'm1' ].every(name => of().filter(one => one.member === name).length === (wanted[name] || 0));
    }, () => JSON.stringify([ wanted, seen.all.slice(-10) ]));
    await this.member(seen, 'm0', topic, { group: 'members' });
    await divided({ m0: 4 });
    const second = await this.member(seen, 'm1', topic, { group: 'members' });
    await divided({ m0: 2, m1: 2 });
    await second.close();
    await divided({ m0: 4 });
    return '2 and 2 of 4 queues, and all of them when the other has left';
  }
}

module.exports = async function features(options, prefix, show) {
  const at = new Features(options, prefix);
  const begin = Date.now();
  const all = {
    broadcasting: at.broadcasting, delay: at.delay, sql92: at.sql92, namespace: at.namespace, async: at.asynchronous,
    restart: at.restart, members: at.members,
  };
  await Promise.all(Object.entries(all).map(async ([ name, feature ]) => {
    let works = false;
    let why;
    try {
      why = await feature.call(at);
      works = true;
    } catch (error) {
      why = String(error);
    }
    show({ event: 'feature', name, works, why });
    console.error(name, Date.now() - begin);
  }));
};
