//! A broker's plainest sends in two calls: from their frames to the store's lists, and from the commit to their answers.
//!
//! What it does is what `Connection`, `ProcessorTable`, `SendHandlers` and `MessageStore.append` of aiorocket do, in
//! their fields. Everything is looked at before anything is changed: whatever is not plain leaves no trace. Without
//! memory nothing is stored: of a run all objects are made first, then the lists grow, which can be taken back, and
//! numbers are set last, which needs none.

use std::sync::OnceLock;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::IntoPyObjectExt;

use crate::headers::{envelope, pack_number, pack_text, take, Value};
use crate::properties::find;
use crate::records::{crc, size_of, write, Own, Shared, MAX_PROPERTIES};
use crate::{bytes, long, unwound};

const SEND_MESSAGE_V2: i32 = 310;
const PYTHON: i64 = 3;
const MSGPACK: u32 = 0x4D;
const TRANSACTION: i32 = 0x0C;
const BLOCK_MASK: i64 = 127;
/// Memory that a send keeps beside its record until it is acknowledged, see commit_group.py.
const KEPT_IN_RUN: i64 = 384;
/// Parts after which a turn's write goes out early, see connection.py.
pub const BURST: usize = 64;

/// A request as it is mostly sent.
struct Send<'a> {
    opaque: i32,
    topic: &'a str,
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    flag: i32,
    properties: &'a str,
    reconsume_times: i32,
}

/// None for everything but a SEND_MESSAGE_V2 that is to be answered, with all its fields in their own forms.
fn request(header: &[u8]) -> Option<Send<'_>> {
    let found = envelope(header)?;
    let [code, flag, opaque, _, _] = found.numbers;
    let (&kind, mut rest) = found.fields?.split_first()?;
    if code != SEND_MESSAGE_V2 || flag != 0 || kind != 0x9E {
        return None;
    }
    let rest = &mut rest;
    text(rest)?;
    let topic = text(rest)?;
    text(rest)?;
    int(rest)?;
    let (queue_id, sys_flag) = (int(rest)?, int(rest)?);
    let born_timestamp = take(rest)?.number()?;
    let flag = int(rest)?;
    let properties = match take(rest)? {
        Value::Nil => "",
        Value::Text(text) => std::str::from_utf8(text).ok()?,
        _ => return None,
    };
    let reconsume_times = int_or_nil(rest)?;
    if !matches!(take(rest)?, Value::Nil | Value::Truth(_)) {
        return None;
    }
    int_or_nil(rest)?;
    if !matches!(take(rest)?, Value::Nil | Value::Truth(false)) {
        return None;
    }
    match take(rest)? {
        Value::Nil => {}
        Value::Text(text) => drop(std::str::from_utf8(text).ok()?),
        _ => return None,
    }
    Some(Send { opaque, topic, queue_id, sys_flag, born_timestamp, flag, properties, reconsume_times })
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    match take(rest)? {
        Value::Text(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

fn int(rest: &mut &[u8]) -> Option<i32> {
    i32::try_from(take(rest)?.number()?).ok()
}

fn int_or_nil(rest: &mut &[u8]) -> Option<i32> {
    match take(rest)? {
        Value::Nil => Some(0),
        Value::Number(number) => i32::try_from(number).ok(),
        _ => None,
    }
}

/// What the properties say of where the message goes: its tag, and its id, which it must have.
struct Said<'a> {
    tag: Option<&'a str>,
    unique: &'a str,
}

/// None for delays, timers, transactions, pops, and without an id.
fn said(properties: &str) -> Option<Said<'_>> {
    let data = properties.as_bytes();
    let (mut tagged, mut named) = (false, false);
    for at in data.iter().enumerate().filter(|(_, byte)| **byte == 1).map(|(at, _)| at) {
        let head = &data[..at];
        if head.ends_with(b"DELAY") || head.ends_with(b"TRAN_MSG") || head.ends_with(b"POP_CK") {
            return None;
        }
        tagged |= head.ends_with(b"TAGS");
        named |= head.ends_with(b"UNIQ_KEY");
    }
    if !named || properties.contains("TIMER_") {
        return None;
    }
    Some(Said { tag: if tagged { find(properties, "TAGS") } else { None }, unique: find(properties, "UNIQ_KEY")? })
}

/// The compiled way of sends through one broker. Called with a connection and its frames, the next of which stands
/// last, it takes those off that are plain sends, and says whether there were any.
#[pyclass(frozen)]
pub struct PlainSends {
    running_loop: Py<PyAny>,
    /// Who serves a request code, and who does where nothing stands around it (limits that may change at any time).
    served_by: Py<PyAny>,
    handler: Py<PyAny>,
    /// Topic by name, or None.
    topic: Py<PyAny>,
    store: Py<PyAny>,
    log: Py<PyAny>,
    tail: Py<PyAny>,
    queues: Py<PyDict>,
    wall_ms: Py<PyAny>,
    /// Takes back what a run left in log, tail cache and queues before it found no memory.
    take_back: Py<PyAny>,
    /// Of (status, physical offset, queue offset, store timestamp, ()) makes a PutResult.
    result: Py<PyAny>,
    ok: Py<PyAny>,
    /// Answers (connection, opaque, result) where the result is not OK.
    refused: Py<PyAny>,
    max_pending: i64,
    max_body: usize,
    max_properties: usize,
    store_host: [u8; 8],
    added: Vec<u8>,
    /// The answer's last fields, packed, and its version.
    region: Vec<u8>,
    version: i64,
}

#[pymethods]
impl PlainSends {
    #[new]
    #[pyo3(signature = (*, running_loop, served_by, handler, topic, store, log, tail, queues, wall_ms, take_back, result, ok, refused, max_pending,
        max_body, max_properties, store_host, added, region, trace, version))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        running_loop: Py<PyAny>,
        served_by: Py<PyAny>,
        handler: Py<PyAny>,
        topic: Py<PyAny>,
        store: Py<PyAny>,
        log: Py<PyAny>,
        tail: Py<PyAny>,
        queues: Py<PyDict>,
        wall_ms: Py<PyAny>,
        take_back: Py<PyAny>,
        result: Py<PyAny>,
        ok: Py<PyAny>,
        refused: Py<PyAny>,
        max_pending: i64,
        max_body: usize,
        max_properties: usize,
        store_host: &[u8],
        added: &[u8],
        region: &str,
        trace: &str,
        version: i64,
    ) -> PyResult<Self> {
        let Ok(store_host) = store_host.try_into() else {
            return Err(PyTypeError::new_err("an IPv4 host of 8 bytes is needed"));
        };
        let mut packed = Vec::new();
        for text in [region, trace] {
            pack_text(&mut packed, text).ok_or_else(|| PyTypeError::new_err("text that is too long"))?;
        }
        Ok(Self {
            running_loop,
            served_by,
            handler,
            topic,
            store,
            log,
            tail,
            queues,
            wall_ms,
            take_back,
            result,
            ok,
            refused,
            max_pending,
            max_body,
            max_properties,
            store_host,
            added: added.to_vec(),
            region: packed,
            version,
        })
    }

    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, PyAny>,
        frames: &Bound<'py, PyList>,
    ) -> PyResult<bool> {
        let mut run = None;
        let filled = unwound(|| PlainSends::fill(slf, &mut run, connection, frames));
        let Some(run) = run else { return filled.map(|()| false) };
        let (taken, count) = (run.answers.len(), frames.len());
        // What is complete is stored whatever came behind it.
        frames.del_slice(count - taken, count)?;
        run.end(slf, connection)?;
        filled.map(|()| taken > 0)
    }
}

impl PlainSends {
    fn fill<'py>(
        slf: &Bound<'py, Self>,
        run: &mut Option<Run<'py>>,
        connection: &Bound<'py, PyAny>,
        frames: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let (py, sends) = (slf.py(), slf.get());
        if number(connection, intern!(py, "_peer_type"))? != i64::from(MSGPACK) {
            return Ok(());
        }
        for frame in frames.iter().rev() {
            let (kind, header, body): (u32, Bound<'py, PyAny>, Bound<'py, PyAny>) = frame.extract()?;
            let (MSGPACK, Some(header), Some(body)) = (kind, bytes(&header), bytes(&body)) else { break };
            let Some(send) = request(header) else { break };
            if run.is_none() {
                *run = sends.begin(connection, &send)?;
            }
            let Some(run) = run else { break };
            let Some(place) = run.place(sends, &send, body)? else { break };
            if run.done.is_none() {
                let result = (&sends.ok, run.end, run.queues[place.queue].next, run.now, PyTuple::empty(py));
                let answers = Answers { sends: slf.clone().unbind(), connection: connection.clone().unbind(), stored: OnceLock::new() };
                run.done = Some((Bound::new(py, answers)?, sends.result.bind(py).call1((result,))?));
            }
            run.append(sends, &send, body, place)?;
            if run.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// None when no send to this topic is plain at present. Nothing is changed.
    fn begin<'py>(&self, connection: &Bound<'py, PyAny>, send: &Send<'_>) -> PyResult<Option<Run<'py>>> {
        let py = connection.py();
        if !self.served_by.bind(py).call1((SEND_MESSAGE_V2,))?.eq(&self.handler)? {
            return Ok(None);
        }
        let topic = self.topic.bind(py).call1((send.topic,))?;
        if topic.is_none() || !topic.getattr(intern!(py, "plain"))?.is_truthy()? {
            return Ok(None);
        }
        let log = self.log.bind(py);
        let host = connection.getattr(intern!(py, "peer_host"))?;
        let Some(born_host) = bytes(&host).and_then(|host| host.try_into().ok()) else { return Ok(None) };
        if !log.getattr(intern!(py, "refusal"))?.is_none() {
            return Ok(None);
        }
        let group = log.getattr(intern!(py, "group"))?;
        let tail = self.tail.bind(py);
        let config = connection.getattr(intern!(py, "config"))?;
        // Where Connection looks after each request whether the next one may be begun.
        let full = connection.getattr(intern!(py, "_paused_writing"))?.is_truthy()?
            || number(connection, intern!(py, "_out_bytes"))? > number(&config, intern!(py, "write_high_water"))?;
        let free = number(&config, intern!(py, "max_in_flight"))? - number(connection, intern!(py, "_in_flight"))?;
        let last = number(self.store.bind(py), intern!(py, "_timestamp"))?;
        Ok(Some(Run {
            said: send.topic.into(),
            name: topic.getattr(intern!(py, "name"))?,
            max_queues: number(&topic, intern!(py, "max_queues"))?,
            tag_codes: topic.getattr(intern!(py, "tag_codes"))?.downcast_into()?,
            born_host,
            now: self.wall_ms.bind(py).call0()?.extract::<i64>()?.max(last),
            end: number(log, intern!(py, "end"))?,
            limit: number(log, intern!(py, "limit"))?,
            pending: number(log, intern!(py, "pending"))?,
            buffers: list(log, intern!(py, "buffers"))?,
            most: if full { 1 } else { free },
            room: number(log, intern!(py, "burst"))? - list(&group, intern!(py, "dones"))?.len() as i64,
            group,
            tail_size: number(tail, intern!(py, "size"))?,
            tail_budget: number(tail, intern!(py, "budget"))?,
            queues: Vec::new(),
            done: None,
            records: Vec::new(),
            answers: Vec::new(),
        }))
    }

    /// The frame of one answer behind `to`; its body is empty.
    fn answer(&self, to: &mut Vec<u8>, stored: &Stored) -> Option<()> {
        let start = to.len();
        to.extend_from_slice(&[0; 8]);
        to.push(0x97);
        for number in [0, 1, stored.opaque.into(), self.version, PYTHON] {
            pack_number(to, number);
        }
        to.extend_from_slice(&[0xC0, 0x98]);
        let mut id = String::with_capacity(32);
        for byte in self.store_host.iter().chain(&stored.physical.to_be_bytes()) {
            for digit in [byte >> 4, byte & 15] {
                id.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
        pack_text(to, &id)?;
        pack_number(to, stored.queue_id.into());
        pack_number(to, stored.offset);
        pack_text(to, &stored.unique)?;
        to.extend_from_slice(&[0xC0, 0xC0]);
        to.extend_from_slice(&self.region);
        let header = u32::try_from(to.len() - start - 8).ok()?;
        to[start..start + 4].copy_from_slice(&(header + 4).to_be_bytes());
        to[start + 4..start + 8].copy_from_slice(&(MSGPACK << 24 | header).to_be_bytes());
        Some(())
    }
}

/// Sends of one connection to one topic that came behind each other: read once, written once, at its end.
struct Run<'py> {
    said: Box<str>,
    name: Bound<'py, PyAny>,
    max_queues: i64,
    tag_codes: Bound<'py, PyDict>,
    born_host: [u8; 8],
    now: i64,
    end: i64,
    limit: i64,
    pending: i64,
    buffers: Bound<'py, PyList>,
    group: Bound<'py, PyAny>,
    /// How many the connection may begin.
    most: i64,
    /// Messages until the group is a burst.
    room: i64,
    tail_size: i64,
    tail_budget: i64,
    queues: Vec<Queue<'py>>,
    /// What the group will hold of it; made before the first is stored.
    done: Option<Done<'py>>,
    records: Vec<Record<'py>>,
    answers: Vec<Stored>,
}

/// One that is not in the store's lists yet.
struct Record<'py> {
    queue: usize,
    bytes: Bound<'py, PyBytes>,
    offset: i64,
    size: i64,
    code: i64,
}

/// A field and its new value, both made: to set it takes no memory.
type Change<'py> = (Bound<'py, PyAny>, Bound<'py, PyString>, Bound<'py, PyAny>);

/// Who answers, and with what.
type Done<'py> = (Bound<'py, Answers>, Bound<'py, PyAny>);

/// One of its queues.
struct Queue<'py> {
    id: i32,
    object: Bound<'py, PyAny>,
    topic: Bound<'py, PyBytes>,
    next: i64,
    was_marked: bool,
    /// None of messages with different ones; not known before the first.
    code: Option<Option<i64>>,
    units: Vec<u8>,
    block: Option<Block<'py>>,
}

struct Block<'py> {
    object: Bound<'py, PyAny>,
    records: Bound<'py, PyList>,
    sizes: Bound<'py, PyList>,
    codes: Bound<'py, PyList>,
    more: i64,
}

/// Where a message that passed every check goes.
struct Place {
    queue: usize,
    properties: Vec<u8>,
    unique: Box<str>,
    code: i64,
    size: i32,
}

/// What the answer says.
struct Stored {
    opaque: i32,
    queue_id: i32,
    physical: i64,
    offset: i64,
    unique: Box<str>,
}

impl<'py> Run<'py> {
    /// The connection has begun all it may, a burst is complete, or the tail cache over its budget: others go on from there.
    fn is_full(&self) -> bool {
        self.answers.len() as i64 >= self.most.min(self.room) || self.tail_size > self.tail_budget
    }

    /// Every check, and nothing else.
    fn place(&mut self, sends: &PlainSends, send: &Send<'_>, body: &[u8]) -> PyResult<Option<Place>> {
        if *send.topic != *self.said
            || body.len() > sends.max_body
            || send.properties.chars().count() > sends.max_properties
            || !(0..self.max_queues).contains(&i64::from(send.queue_id))
            || self.pending > sends.max_pending
        {
            return Ok(None);
        }
        let Some(said) = said(send.properties) else { return Ok(None) };
        let mut code = 0;
        if let Some(tag) = said.tag {
            match self.tag_codes.get_item(tag)?.as_ref().and_then(long) {
                None | Some(0) => return Ok(None),
                Some(known) => code = known,
            }
        }
        let Some(queue) = self.queue(sends, send.queue_id)? else { return Ok(None) };
        let mut properties = Vec::with_capacity(send.properties.len() + 1 + sends.added.len());
        properties.extend_from_slice(send.properties.as_bytes());
        if !send.properties.ends_with('\x02') {
            properties.push(2);
        }
        properties.extend_from_slice(&sends.added);
        let Some(size) = size_of(self.queues[queue].topic.as_bytes(), body, properties.len()) else { return Ok(None) };
        if properties.len() > MAX_PROPERTIES || self.end + i64::from(size) > self.limit {
            return Ok(None);
        }
        Ok(Some(Place { queue, properties, unique: said.unique.into(), code, size }))
    }

    /// Which of ``queues``; None when the store does not have it yet.
    fn queue(&mut self, sends: &PlainSends, id: i32) -> PyResult<Option<usize>> {
        if let Some(known) = self.queues.iter().position(|queue| queue.id == id) {
            return Ok(Some(known));
        }
        let py = self.name.py();
        let Some(object) = sends.queues.bind(py).get_item((&self.name, id))? else { return Ok(None) };
        let Ok(topic) = object.getattr(intern!(py, "topic_bytes"))?.downcast_into_exact() else { return Ok(None) };
        let was_marked = object.getattr(intern!(py, "marked"))?.is_truthy()?;
        let block = object.getattr(intern!(py, "block"))?;
        self.queues.push(Queue {
            id,
            topic,
            next: number(&object, intern!(py, "next_offset"))?,
            was_marked,
            code: if was_marked { Some(long(&object.getattr(intern!(py, "code"))?)) } else { None },
            units: Vec::new(),
            block: if block.is_none() { None } else { Some(Block::of(block)?) },
            object,
        });
        Ok(Some(self.queues.len() - 1))
    }

    /// The record as MessageStore.append makes it; the store has nothing of it before the run ends.
    fn append(&mut self, sends: &PlainSends, send: &Send<'_>, body: &[u8], place: Place) -> PyResult<()> {
        let py = self.name.py();
        let Place { queue: at, properties, unique, code, size } = place;
        let queue = &mut self.queues[at];
        let (physical, offset) = (self.end, queue.next);
        let shared = Shared {
            topic: queue.topic.as_bytes(),
            queue_id: send.queue_id,
            sys_flag: send.sys_flag & !TRANSACTION,
            born_timestamp: send.born_timestamp,
            born_host: self.born_host,
            store_timestamp: self.now,
            store_host: sends.store_host,
            reconsume_times: send.reconsume_times,
            prepared_transaction_offset: 0,
        };
        let own = Own {
            size,
            body,
            properties: [&properties, b""],
            crc: crc(body),
            flag: send.flag,
            queue_offset: offset,
            physical_offset: physical,
        };
        let bytes = PyBytes::new_with(py, size as usize, |to| {
            write(to, &shared, &own);
            Ok(())
        })?;
        queue.units.extend_from_slice(&physical.to_be_bytes());
        queue.units.extend_from_slice(&size.to_be_bytes());
        queue.units.extend_from_slice(&code.to_be_bytes());
        let size = i64::from(size);
        self.end += size;
        self.pending += size;
        self.tail_size += size;
        queue.next += 1;
        queue.code = Some(queue.code.map_or(Some(code), |others| others.filter(|other| *other == code)));
        self.records.push(Record { queue: at, bytes, offset, size, code });
        self.answers.push(Stored { opaque: send.opaque, queue_id: send.queue_id, physical, offset, unique });
        Ok(())
    }

    /// Everything to where `MessageStore.append` would have left it, or nothing.
    fn end(mut self, slf: &Bound<'py, PlainSends>, connection: &Bound<'py, PyAny>) -> PyResult<()> {
        let sends = slf.get();
        let (log, tail) = (sends.log.bind(slf.py()), sends.tail.bind(slf.py()));
        let (Some((answers, result)), false) = (self.done.take(), self.answers.is_empty()) else { return Ok(()) };
        let full = self.answers.len() as i64 >= self.room;
        let changes = match unwound(|| self.enter(sends, connection, &answers, &result)) {
            Ok(changes) => changes,
            Err(error) => {
                if unwound(|| self.leave(sends)).is_err() && unwound(|| broken(log, &error)).is_err() {
                    std::process::abort(); // not even an alarm: what starts again serves what is right
                }
                return Err(error);
            }
        };
        answers.get().stored.get_or_init(|| self.answers);
        for (object, name, value) in changes {
            if let Err(error) = object.setattr(name, value) {
                broken(log, &error)?;
                return Err(error);
            }
        }
        if self.tail_size > self.tail_budget {
            tail.call_method0(intern!(slf.py(), "evict"))?;
        }
        if full {
            log.call_method0(intern!(slf.py(), "flush"))?;
        }
        Ok(())
    }

    /// Fill the lists; what is to be set then.
    fn enter(
        &mut self,
        sends: &PlainSends,
        connection: &Bound<'py, PyAny>,
        answers: &Bound<'py, Answers>,
        result: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Change<'py>>> {
        let py = self.name.py();
        let (store, log, tail) = (sends.store.bind(py), sends.log.bind(py), sends.tail.bind(py));
        if !log.getattr(intern!(py, "scheduled"))?.is_truthy()? {
            let flush = log.getattr(intern!(py, "flush"))?;
            sends.running_loop.bind(py).call_method1(intern!(py, "call_soon"), (flush,))?;
            log.setattr(intern!(py, "scheduled"), true)?;
        }
        let begun = number(connection, intern!(py, "_in_flight"))? + self.answers.len() as i64;
        let mut changes = vec![
            change(connection, intern!(py, "_in_flight"), begun)?,
            change(store, intern!(py, "_timestamp"), self.now)?,
            change(log, intern!(py, "end"), self.end)?,
            change(log, intern!(py, "pending"), self.pending + KEPT_IN_RUN * self.answers.len() as i64)?,
            change(tail, intern!(py, "size"), self.tail_size)?,
        ];
        for Record { queue, bytes, offset, size, code } in &self.records {
            let queue = &mut self.queues[*queue];
            if queue.block.is_none() || offset & BLOCK_MASK == 0 {
                if let Some(block) = queue.block.take() {
                    changes.push(block.end()?);
                }
                let started = tail.call_method1(intern!(py, "start"), (&queue.object, offset))?;
                queue.block = Some(Block::of(started)?);
            }
            if let Some(block) = &mut queue.block {
                block.records.append(bytes)?;
                block.sizes.append(size)?;
                block.codes.append(code)?;
                block.more += size;
            }
            self.buffers.append(bytes)?;
        }
        for queue in &mut self.queues {
            queue.enter(&self.group, &mut changes)?;
        }
        push(&self.group, intern!(py, "dones"), answers.as_any())?;
        push(&self.group, intern!(py, "results"), result)?;
        Ok(changes)
    }

    /// Empty them of what `enter` has put there.
    fn leave(&self, sends: &PlainSends) -> PyResult<()> {
        let py = self.name.py();
        let queues = PyList::new(py, self.queues.iter().map(|queue| &queue.object))?;
        let first = self.records.first().map(|record| &record.bytes);
        sends.take_back.bind(py).call1((&sends.log, &sends.tail, queues, first)).map(drop)
    }
}

impl<'py> Queue<'py> {
    fn enter(&mut self, group: &Bound<'py, PyAny>, changes: &mut Vec<Change<'py>>) -> PyResult<()> {
        let py = group.py();
        if self.units.is_empty() {
            return Ok(());
        }
        if !self.was_marked {
            push(group, intern!(py, "touched"), &self.object)?;
            changes.push(change(&self.object, intern!(py, "marked"), true)?);
        }
        changes.push(change(&self.object, intern!(py, "code"), self.code.flatten())?);
        changes.push(change(&self.object, intern!(py, "next_offset"), self.next)?);
        let units = PyBytes::new(py, &self.units);
        self.object.getattr(intern!(py, "tail"))?.call_method1(intern!(py, "extend"), (units,))?;
        if let Some(block) = self.block.take() {
            changes.push(block.end()?);
        }
        Ok(())
    }
}

impl<'py> Block<'py> {
    fn of(object: Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        Ok(Self {
            records: list(&object, intern!(py, "records"))?,
            sizes: list(&object, intern!(py, "sizes"))?,
            codes: list(&object, intern!(py, "codes"))?,
            more: 0,
            object,
        })
    }

    fn end(self) -> PyResult<Change<'py>> {
        let name = intern!(self.object.py(), "size");
        change(&self.object, name, number(&self.object, name)? + self.more)
    }
}

fn change<'py>(
    of: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    value: impl IntoPyObject<'py>,
) -> PyResult<Change<'py>> {
    Ok((of.clone(), name.clone(), value.into_bound_py_any(of.py())?))
}

/// The store takes no more appends and says so.
fn broken(log: &Bound<'_, PyAny>, error: &PyErr) -> PyResult<()> {
    log.call_method1(intern!(log.py(), "broken"), (error.value(log.py()),)).map(drop)
}

/// What the store calls when the messages of a run are as durable as was asked for.
#[pyclass(frozen)]
struct Answers {
    sends: Py<PlainSends>,
    connection: Py<PyAny>,
    stored: OnceLock<Vec<Stored>>,
}

#[pymethods]
impl Answers {
    fn __call__<'py>(&self, py: Python<'py>, result: &Bound<'py, PyAny>) -> PyResult<()> {
        unwound(|| self.answer(py, result))
    }
}

impl Answers {
    fn answer<'py>(&self, py: Python<'py>, result: &Bound<'py, PyAny>) -> PyResult<()> {
        let sends = self.sends.get();
        let connection = self.connection.bind(py);
        let all = self.stored.get().map_or(&[][..], |stored| stored);
        if !result.downcast::<PyTuple>()?.get_item(0)?.is(&sends.ok) {
            let mut outcome = Ok(());
            for stored in all {
                // Each is answered, whatever becomes of another's answer.
                if let Err(error) = sends.refused.bind(py).call1((connection, stored.opaque, result)) {
                    outcome = Err(error);
                }
            }
            return outcome;
        }
        if connection.getattr(intern!(py, "closed"))?.is_truthy()? {
            return Ok(());
        }
        let mut frames = Vec::with_capacity(160 * all.len());
        for stored in all {
            if sends.answer(&mut frames, stored).is_none() {
                return Err(PyTypeError::new_err("an answer over the limit"));
            }
        }
        // As Connection.reply does.
        add(connection, intern!(py, "_in_flight"), -(all.len() as i64))?;
        let parts = push(connection, intern!(py, "_out"), PyBytes::new(py, &frames).as_any())?;
        if parts == 1 {
            let flush = connection.getattr(intern!(py, "_flush"))?;
            sends.running_loop.bind(py).call_method1(intern!(py, "call_soon"), (flush,))?;
        }
        let burst = parts - 1 + all.len() >= BURST;
        if burst || number(connection, intern!(py, "_out_bytes"))? > write_limit(connection)? {
            connection.call_method0(intern!(py, "_flush"))?;
        }
        if connection.getattr(intern!(py, "_blocked"))?.is_truthy()? {
            connection.call_method0(intern!(py, "_release"))?;
        }
        Ok(())
    }
}

fn write_limit(connection: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = connection.py();
    number(&connection.getattr(intern!(py, "config"))?, intern!(py, "write_limit"))
}

pub fn number<'py>(of: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<i64> {
    of.getattr(name)?.extract()
}

/// `of.name += more`, and the sum.
pub fn add<'py>(of: &Bound<'py, PyAny>, name: &Bound<'py, PyString>, more: i64) -> PyResult<i64> {
    let sum = number(of, name)? + more;
    of.setattr(name, sum)?;
    Ok(sum)
}

/// `of.name.append(value)`, and how long the list is then.
pub fn push<'py>(
    of: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    value: &Bound<'py, PyAny>,
) -> PyResult<usize> {
    let list = of.getattr(name)?;
    let list = list.downcast::<PyList>()?;
    list.append(value)?;
    Ok(list.len())
}

pub fn list<'py>(of: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyList>> {
    Ok(of.getattr(name)?.downcast_into()?)
}
