//! A broker's plainest send in two calls: from its frame to the store's lists, and from the commit to its answer.
//!
//! What it does is what `Connection`, `ProcessorTable`, `SendHandlers` and `MessageStore.append` of aiorocket do, in
//! their fields. Everything is looked at before anything is changed: whatever is not plain leaves no trace.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};

use crate::headers::{envelope, pack_number, pack_text, take, Value};
use crate::properties::find;
use crate::records::{crc, size_of, write, Own, Shared, MAX_PROPERTIES};
use crate::{bytes, long};

const SEND_MESSAGE_V2: i32 = 310;
const PYTHON: i64 = 3;
const MSGPACK: u32 = 0x4D;
const TRANSACTION: i32 = 0x0C;
const BLOCK_MASK: i64 = 127;
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

/// The compiled way of sends through one broker. Called with a connection and the header and body of one of its msgpack
/// frames it says whether it took the request.
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
    #[pyo3(signature = (*, running_loop, served_by, handler, topic, store, log, tail, queues, wall_ms, result, ok, refused, max_pending,
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
        header: &Bound<'py, PyAny>,
        body: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let (Some(header), Some(body)) = (bytes(header), bytes(body)) else { return Ok(false) };
        let Some(send) = request(header) else { return Ok(false) };
        match slf.get().place(slf.py(), connection, &send, body)? {
            None => Ok(false),
            Some(place) => {
                slf.get().append(slf, connection, &send, body, place)?;
                Ok(true)
            }
        }
    }
}

/// Where a message that passed every check goes.
struct Place<'py> {
    queue: Bound<'py, PyAny>,
    properties: Vec<u8>,
    unique: Box<str>,
    code: i64,
    born_host: [u8; 8],
    topic: Bound<'py, PyAny>,
    size: i32,
    now: i64,
    offset: i64,
    physical: i64,
}

impl PlainSends {
    /// Every check, and nothing else.
    fn place<'py>(
        &self,
        py: Python<'py>,
        connection: &Bound<'py, PyAny>,
        send: &Send<'_>,
        body: &[u8],
    ) -> PyResult<Option<Place<'py>>> {
        if !self.served_by.bind(py).call1((SEND_MESSAGE_V2,))?.eq(&self.handler)? {
            return Ok(None);
        }
        let topic = self.topic.bind(py).call1((send.topic,))?;
        if topic.is_none()
            || !topic.getattr(intern!(py, "plain"))?.is_truthy()?
            || body.len() > self.max_body
            || send.properties.chars().count() > self.max_properties
        {
            return Ok(None);
        }
        let queues = topic.getattr(intern!(py, "max_queues"))?.extract::<i64>()?;
        if !(0..queues).contains(&i64::from(send.queue_id)) {
            return Ok(None);
        }
        let Some(said) = said(send.properties) else { return Ok(None) };
        let mut code = 0;
        if let Some(tag) = said.tag {
            let codes = topic.getattr(intern!(py, "tag_codes"))?;
            match codes.downcast::<PyDict>()?.get_item(tag)?.as_ref().and_then(long) {
                None | Some(0) => return Ok(None),
                Some(known) => code = known,
            }
        }
        let log = self.log.bind(py);
        if !log.getattr(intern!(py, "refusal"))?.is_none() || number(log, intern!(py, "pending"))? > self.max_pending {
            return Ok(None);
        }
        let name = topic.getattr(intern!(py, "name"))?;
        let Some(queue) = self.queues.bind(py).get_item((name, send.queue_id))? else { return Ok(None) };
        let mut properties = Vec::with_capacity(send.properties.len() + 1 + self.added.len());
        properties.extend_from_slice(send.properties.as_bytes());
        if !send.properties.ends_with('\x02') {
            properties.push(2);
        }
        properties.extend_from_slice(&self.added);
        let topic = queue.getattr(intern!(py, "topic_bytes"))?;
        let host = connection.getattr(intern!(py, "peer_host"))?;
        let (Some(born_host), Some(size)) = (
            bytes(&host).and_then(|host| host.try_into().ok()),
            bytes(&topic).and_then(|topic| size_of(topic, body, properties.len())),
        ) else {
            return Ok(None);
        };
        let physical = number(log, intern!(py, "end"))?;
        if properties.len() > MAX_PROPERTIES
            || physical + i64::from(size) > number(log, intern!(py, "limit"))?
        {
            return Ok(None);
        }
        let last = number(self.store.bind(py), intern!(py, "_timestamp"))?;
        let now = self.wall_ms.bind(py).call0()?.extract::<i64>()?.max(last);
        let offset = number(&queue, intern!(py, "next_offset"))?;
        let unique = said.unique.into();
        Ok(Some(Place { queue, properties, unique, code, born_host, topic, size, now, offset, physical }))
    }

    /// As MessageStore.append does.
    fn append<'py>(
        &self,
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, PyAny>,
        send: &Send<'_>,
        body: &[u8],
        place: Place<'py>,
    ) -> PyResult<()> {
        let py = slf.py();
        let Place { queue, properties, unique, code, born_host, topic, size, now, offset, physical } = place;
        let (store, log, tail) = (self.store.bind(py), self.log.bind(py), self.tail.bind(py));
        let shared = Shared {
            topic: bytes(&topic).unwrap_or_default(),
            queue_id: send.queue_id,
            sys_flag: send.sys_flag & !TRANSACTION,
            born_timestamp: send.born_timestamp,
            born_host,
            store_timestamp: now,
            store_host: self.store_host,
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
        let record = PyBytes::new_with(py, size as usize, |to| {
            write(to, &shared, &own);
            Ok(())
        })?;
        let size = i64::from(size);
        add(connection, intern!(py, "_in_flight"), 1)?;
        store.setattr(intern!(py, "_timestamp"), now)?;
        log.setattr(intern!(py, "end"), physical + size)?;
        add(log, intern!(py, "pending"), size)?;
        push(log, intern!(py, "buffers"), record.as_any())?;
        let group = log.getattr(intern!(py, "group"))?;
        let answer = Answer {
            sends: slf.clone().unbind(),
            connection: connection.clone().unbind(),
            opaque: send.opaque,
            queue_id: send.queue_id,
            unique,
        };
        let waiting = push(&group, intern!(py, "dones"), Bound::new(py, answer)?.as_any())?;
        let nothing = PyTuple::empty(py);
        let result = self.result.bind(py).call1(((&self.ok, physical, offset, now, nothing),))?;
        push(&group, intern!(py, "results"), &result)?;
        if !queue.getattr(intern!(py, "marked"))?.is_truthy()? {
            queue.setattr(intern!(py, "marked"), true)?;
            queue.setattr(intern!(py, "code"), code)?;
            push(&group, intern!(py, "touched"), &queue)?;
        } else if long(&queue.getattr(intern!(py, "code"))?) != Some(code) {
            queue.setattr(intern!(py, "code"), py.None())?;
        }
        queue.setattr(intern!(py, "next_offset"), offset + 1)?;
        let mut unit = [0; 20];
        unit[..8].copy_from_slice(&physical.to_be_bytes());
        unit[8..12].copy_from_slice(&(size as i32).to_be_bytes());
        unit[12..].copy_from_slice(&code.to_be_bytes());
        queue.getattr(intern!(py, "tail"))?.call_method1(intern!(py, "extend"), (PyBytes::new(py, &unit),))?;
        let mut block = queue.getattr(intern!(py, "block"))?;
        if block.is_none() || offset & BLOCK_MASK == 0 {
            block = tail.call_method1(intern!(py, "start"), (&queue, offset))?;
        }
        push(&block, intern!(py, "records"), record.as_any())?;
        push(&block, intern!(py, "sizes"), PyInt::new(py, size).as_any())?;
        push(&block, intern!(py, "codes"), PyInt::new(py, code).as_any())?;
        add(&block, intern!(py, "size"), size)?;
        if add(tail, intern!(py, "size"), size)? > number(tail, intern!(py, "budget"))? {
            tail.call_method0(intern!(py, "evict"))?;
        }
        if !log.getattr(intern!(py, "scheduled"))?.is_truthy()? {
            log.setattr(intern!(py, "scheduled"), true)?;
            let flush = log.getattr(intern!(py, "flush"))?;
            self.running_loop.bind(py).call_method1(intern!(py, "call_soon"), (flush,))?;
        } else if waiting as i64 >= number(log, intern!(py, "burst"))? {
            log.call_method0(intern!(py, "flush"))?;
        }
        Ok(())
    }

    /// The frame of the answer; its body is empty.
    fn answer(&self, opaque: i32, physical: i64, queue_id: i32, offset: i64, unique: &str) -> Option<Vec<u8>> {
        let mut to = Vec::with_capacity(160);
        to.extend_from_slice(&[0; 8]);
        to.push(0x97);
        for number in [0, 1, opaque.into(), self.version, PYTHON] {
            pack_number(&mut to, number);
        }
        to.extend_from_slice(&[0xC0, 0x98]);
        let mut id = String::with_capacity(32);
        for byte in self.store_host.iter().chain(&physical.to_be_bytes()) {
            for digit in [byte >> 4, byte & 15] {
                id.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
        pack_text(&mut to, &id)?;
        pack_number(&mut to, queue_id.into());
        pack_number(&mut to, offset);
        pack_text(&mut to, unique)?;
        to.extend_from_slice(&[0xC0, 0xC0]);
        to.extend_from_slice(&self.region);
        let header = u32::try_from(to.len() - 8).ok()?;
        to[..4].copy_from_slice(&(header + 4).to_be_bytes());
        to[4..8].copy_from_slice(&(MSGPACK << 24 | header).to_be_bytes());
        Some(to)
    }
}

/// What the store calls when the message is as durable as was asked for.
#[pyclass(frozen)]
struct Answer {
    sends: Py<PlainSends>,
    connection: Py<PyAny>,
    opaque: i32,
    queue_id: i32,
    unique: Box<str>,
}

#[pymethods]
impl Answer {
    fn __call__<'py>(&self, py: Python<'py>, result: &Bound<'py, PyAny>) -> PyResult<()> {
        let sends = self.sends.get();
        let connection = self.connection.bind(py);
        let fields = result.downcast::<PyTuple>()?;
        if !fields.get_item(0)?.is(&sends.ok) {
            sends.refused.bind(py).call1((connection, self.opaque, result))?;
            return Ok(());
        }
        if connection.getattr(intern!(py, "closed"))?.is_truthy()? {
            return Ok(());
        }
        let (physical, offset) = (fields.get_item(1)?.extract()?, fields.get_item(2)?.extract()?);
        let Some(head) = sends.answer(self.opaque, physical, self.queue_id, offset, &self.unique) else {
            return Err(PyTypeError::new_err("an answer over the limit"));
        };
        // As Connection.reply does.
        add(connection, intern!(py, "_in_flight"), -1)?;
        let parts = push(connection, intern!(py, "_out"), PyBytes::new(py, &head).as_any())?;
        if parts == 1 {
            let flush = connection.getattr(intern!(py, "_flush"))?;
            sends.running_loop.bind(py).call_method1(intern!(py, "call_soon"), (flush,))?;
        }
        if parts >= BURST || number(connection, intern!(py, "_out_bytes"))? > write_limit(connection)? {
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
