//! Stored records.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyType};

use crate::{bytes, int, int_at, long, short_at, Given, Pure};

pub static ENCODE_RECORD: Pure = Pure::new();
pub static SPLIT_RECORDS: Pure = Pure::new();

static VIEW: PyOnceLock<Py<PyType>> = PyOnceLock::new();

const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
const ANY_V6: i32 = 0x030;
const HEAD: usize = 88;
const MAX_TOPIC: usize = 127;
pub const MAX_PROPERTIES: usize = 32767;

pub fn crc(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7FFF_FFFF) as i32
}

/// What all records of a batch share.
pub struct Shared<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: [u8; 8],
    pub store_timestamp: i64,
    pub store_host: [u8; 8],
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
}

/// What is each record's own.
pub struct Own<'a> {
    pub size: i32,
    pub body: &'a [u8],
    pub properties: [&'a [u8]; 2],
    pub crc: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
}

pub fn size_of(topic: &[u8], body: &[u8], properties: usize) -> Option<i32> {
    if topic.len() > MAX_TOPIC || properties > MAX_PROPERTIES {
        return None;
    }
    i32::try_from(HEAD + body.len() + 1 + topic.len() + 2 + properties).ok()
}

/// Writes a record to the front of `to` and gives what is behind it.
pub fn write<'t>(mut to: &'t mut [u8], shared: &Shared<'_>, own: &Own<'_>) -> &'t mut [u8] {
    let mut head = [0u8; HEAD];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        head[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&own.size.to_be_bytes());
    put(&MAGIC_V1.to_be_bytes());
    put(&own.crc.to_be_bytes());
    put(&shared.queue_id.to_be_bytes());
    put(&own.flag.to_be_bytes());
    put(&own.queue_offset.to_be_bytes());
    put(&own.physical_offset.to_be_bytes());
    put(&(shared.sys_flag & !ANY_V6).to_be_bytes());
    put(&shared.born_timestamp.to_be_bytes());
    put(&shared.born_host);
    put(&shared.store_timestamp.to_be_bytes());
    put(&shared.store_host);
    put(&shared.reconsume_times.to_be_bytes());
    put(&shared.prepared_transaction_offset.to_be_bytes());
    put(&(own.body.len() as i32).to_be_bytes());
    let properties = own.properties[0].len() + own.properties[1].len();
    for part in [
        &head,
        own.body,
        &[shared.topic.len() as u8],
        shared.topic,
        &(properties as u16).to_be_bytes(),
        own.properties[0],
        own.properties[1],
    ] {
        let (here, rest) = to.split_at_mut(part.len());
        here.copy_from_slice(part);
        to = rest;
    }
    to
}

/// One record, see record_writer.py.
#[pyfunction]
#[pyo3(signature = (topic, body, properties, queue_id, queue_offset, physical_offset, flag, sys_flag, born_timestamp,
    born_host, store_timestamp, store_host, reconsume_times = Given(None),
    prepared_transaction_offset = Given(None), body_crc = Given(None)))]
#[allow(clippy::too_many_arguments)]
pub fn encode_record<'py>(
    py: Python<'py>,
    topic: Bound<'py, PyAny>,
    body: Bound<'py, PyAny>,
    properties: Bound<'py, PyAny>,
    queue_id: Bound<'py, PyAny>,
    queue_offset: Bound<'py, PyAny>,
    physical_offset: Bound<'py, PyAny>,
    flag: Bound<'py, PyAny>,
    sys_flag: Bound<'py, PyAny>,
    born_timestamp: Bound<'py, PyAny>,
    born_host: Bound<'py, PyAny>,
    store_timestamp: Bound<'py, PyAny>,
    store_host: Bound<'py, PyAny>,
    reconsume_times: Given<'py>,
    prepared_transaction_offset: Given<'py>,
    body_crc: Given<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let plain = || {
        let shared = Shared {
            topic: bytes(&topic)?,
            queue_id: int(&queue_id)?,
            sys_flag: int(&sys_flag)?,
            born_timestamp: long(&born_timestamp)?,
            born_host: bytes(&born_host)?.try_into().ok()?,
            store_timestamp: long(&store_timestamp)?,
            store_host: bytes(&store_host)?.try_into().ok()?,
            reconsume_times: reconsume_times.or(int, 0)?,
            prepared_transaction_offset: prepared_transaction_offset.or(long, 0)?,
        };
        let (body, properties) = (bytes(&body)?, bytes(&properties)?);
        let own = Own {
            size: size_of(shared.topic, body, properties.len())?,
            body,
            properties: [properties, b""],
            crc: match &body_crc.0 {
                Some(given) if !given.is_none() => int(given)?,
                _ => crc(body),
            },
            flag: int(&flag)?,
            queue_offset: long(&queue_offset)?,
            physical_offset: long(&physical_offset)?,
        };
        Some((shared, own))
    };
    if let Some((shared, own)) = plain() {
        let record = PyBytes::new_with(py, own.size as usize, |to| {
            write(to, &shared, &own);
            Ok(())
        })?;
        return Ok(record.into_any());
    }
    ENCODE_RECORD.call_with(
        py,
        &[
            &topic,
            &body,
            &properties,
            &queue_id,
            &queue_offset,
            &physical_offset,
            &flag,
            &sys_flag,
            &born_timestamp,
            &born_host,
            &store_timestamp,
            &store_host,
        ],
        &[
            ("reconsume_times", &reconsume_times),
            ("prepared_transaction_offset", &prepared_transaction_offset),
            ("body_crc", &body_crc),
        ],
    )
}

/// A view per record of a pull answer, see records.py.
#[pyfunction]
#[pyo3(signature = (buffer, view = Given(None)))]
pub fn split_records<'py>(
    py: Python<'py>,
    buffer: Bound<'py, PyAny>,
    view: Given<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(ends) = bytes(&buffer).and_then(record_ends) else {
        return SPLIT_RECORDS.call_with(py, &[&buffer], &[("view", &view)]);
    };
    let make = match view.0 {
        Some(given) => given,
        None => VIEW.import(py, "aiorocket_protocol.records", "RecordView")?.clone().into_any(),
    };
    let views = PyList::empty(py);
    let mut start = 0;
    for end in ends {
        views.append(make.call1((&buffer, start, end))?)?;
        start = end;
    }
    Ok(views.into_any())
}

/// Where each record ends; None unless all are of magic V1 with IPv4 hosts and fill `data`.
fn record_ends(data: &[u8]) -> Option<Vec<usize>> {
    let mut ends = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let size = usize::try_from(int_at(data, start)?).ok()?;
        let length = usize::try_from(int_at(data, start + 84)?).ok()?;
        if int_at(data, start + 4)? != MAGIC_V1 || int_at(data, start + 36)? & ANY_V6 != 0 {
            return None;
        }
        let at = start + HEAD + length;
        let at = at + usize::from(*data.get(at)?) + 1;
        let end = at + 2 + short_at(data, at)?;
        if end != start + size || end > data.len() {
            return None;
        }
        ends.push(end);
        start = end;
    }
    Some(ends)
}

