//! A client's request in one call: as `Connection.request` of aiorocket does it, in its fields.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyTuple, PyType};

use crate::headers::{pack, pack_number};
use crate::plain_send::{add, list, number, BURST};
use crate::{bytes, long};

const MSGPACK: i64 = 0x4D;
const PYTHON: i64 = 3;
const MAX_FRAME: usize = 16 * 1024 * 1024;
const MAX_OPAQUE: i64 = 0x7FFF_FFFF;
/// See connection.py.
const LARGE: usize = 4096;
const BURST_BYTES: i64 = 96 << 10;

static CONNECTION: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The future of the answer to a request with these fields and this body; None, and nothing done, where the pure way has
/// something to say: another serialisation, a subclass, a connection that is closed or full, fields that do not pack.
#[pyfunction]
pub fn post<'py>(
    connection: &Bound<'py, PyAny>,
    code: &Bound<'py, PyAny>,
    version: &Bound<'py, PyAny>,
    fields: &Bound<'py, PyAny>,
    body: &Bound<'py, PyAny>,
    timeout: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (Some(data), Ok(fields)) = (bytes(body), fields.downcast_exact::<PyTuple>()) else { return Ok(None) };
    let (Some(code_number), Some(version)) = (long(code), long(version)) else { return Ok(None) };
    let Some(opaque) = next_opaque(connection)? else { return Ok(None) };
    let Some(mut head) = begin_head(code_number, opaque, version, fields.len()) else { return Ok(None) };
    for field in fields.iter_borrowed() {
        if pack(&mut head, &field).is_none() {
            return Ok(None);
        }
    }
    let Some(head) = end_head(head, data.len()) else { return Ok(None) };
    let future = new_future(connection)?;
    queue(connection, opaque, code, Until { timeout, deadline: None }, &future, &head, body)?;
    Ok(Some(future))
}

/// The opaque of the connection's next request; None where the pure way has something to say. Nothing is changed.
pub fn next_opaque(connection: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let py = connection.py();
    let class = CONNECTION.import(py, "aiorocket.remoting.connection", "Connection")?;
    if !connection.get_type().is(class)
        || number(connection, intern!(py, "_send_type"))? != MSGPACK
        || connection.getattr(intern!(py, "closed"))?.is_truthy()?
    {
        return Ok(None);
    }
    let waiting = number(connection, intern!(py, "_out_bytes"))?;
    if waiting > 0 && waiting > number(&connection.getattr(intern!(py, "config"))?, intern!(py, "write_limit"))? {
        return Ok(None);
    }
    Ok(Some((number(connection, intern!(py, "_opaque"))? + 1) & MAX_OPAQUE))
}

pub fn new_future<'py>(connection: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = connection.py();
    connection.getattr(intern!(py, "_loop"))?.call_method0(intern!(py, "create_future"))
}

/// How long an answer is waited for; and until when, in loop time, where that is known.
pub struct Until<'a, 'py> {
    pub timeout: &'a Bound<'py, PyAny>,
    pub deadline: Option<&'a Bound<'py, PyAny>>,
}

impl<'py> Until<'_, 'py> {
    /// As TimeoutQueue.add does where it only has to append; False, and nothing done, elsewhere.
    fn add(
        &self,
        timeouts: &Bound<'py, PyAny>,
        opaque: &Bound<'py, PyInt>,
        code: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let py = timeouts.py();
        let Some(deadline) = self.deadline else { return Ok(false) };
        let fifos = timeouts.getattr(intern!(py, "_fifos"))?;
        let Some(fifo) = fifos.downcast::<PyDict>()?.get_item(self.timeout)? else { return Ok(false) };
        if deadline.lt(timeouts.getattr(intern!(py, "_armed"))?)?
            || fifo.len()? as i64 >= number(timeouts, intern!(py, "_prune_at"))?
        {
            return Ok(false);
        }
        fifo.call_method1(intern!(py, "append"), ((deadline, opaque, code),))?;
        Ok(true)
    }
}

/// Put a request behind the others of this turn; `waiting` gets its answer.
pub fn queue<'py>(
    connection: &Bound<'py, PyAny>,
    opaque: i64,
    code: &Bound<'py, PyAny>,
    until: Until<'_, 'py>,
    waiting: &Bound<'py, PyAny>,
    head: &[u8],
    body: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = connection.py();
    let opaque = opaque.into_pyobject(py)?;
    connection.setattr(intern!(py, "_opaque"), &opaque)?;
    connection.getattr(intern!(py, "_requests"))?.downcast::<PyDict>()?.set_item(&opaque, waiting)?;
    let timeouts = connection.getattr(intern!(py, "_timeouts"))?;
    if !until.add(&timeouts, &opaque, code)? {
        timeouts.call_method1(intern!(py, "add"), (until.timeout, opaque, code))?;
    }
    let out = list(connection, intern!(py, "_out"))?;
    if out.is_empty() {
        let flush = connection.getattr(intern!(py, "_flush"))?;
        connection.getattr(intern!(py, "_loop"))?.call_method1(intern!(py, "call_soon"), (flush,))?;
    }
    out.append(PyBytes::new(py, head))?;
    let size = body.len()?;
    if size > 0 {
        out.append(body)?;
        if size >= LARGE {
            connection.setattr(intern!(py, "_out_large"), true)?;
            add(connection, intern!(py, "_out_bytes"), size as i64)?;
        }
    }
    if out.len() >= BURST || number(connection, intern!(py, "_out_bytes"))? >= BURST_BYTES {
        connection.call_method0(intern!(py, "_flush"))?;
    }
    Ok(())
}

/// A request's header up to its fields, of which there are `count`.
pub fn begin_head(code: i64, opaque: i64, version: i64, count: usize) -> Option<Vec<u8>> {
    if count > 15 {
        return None;
    }
    let mut to = Vec::with_capacity(256);
    to.extend_from_slice(&[0; 8]);
    to.push(0x97);
    for number in [code, 0, opaque, version, PYTHON] {
        pack_number(&mut to, number);
    }
    to.extend_from_slice(&[0xC0, 0x90 | count as u8]);
    Some(to)
}

/// With its length words; None over MAX_FRAME.
pub fn end_head(mut to: Vec<u8>, body: usize) -> Option<Vec<u8>> {
    let header = to.len() - 8;
    let length = header.checked_add(4)?.checked_add(body)?;
    if length > MAX_FRAME - 4 || header > 0xFF_FFFF {
        return None;
    }
    to[..4].copy_from_slice(&(length as u32).to_be_bytes());
    to[4..8].copy_from_slice(&((MSGPACK as u32) << 24 | header as u32).to_be_bytes());
    Some(to)
}
