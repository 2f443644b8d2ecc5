//! A client's request in one call: as `Connection.request` of aiorocket does it, in its fields.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::headers::{pack, pack_number};
use crate::plain_send::{add, number, push, BURST};
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
    py: Python<'py>,
    connection: &Bound<'py, PyAny>,
    code: &Bound<'py, PyAny>,
    version: &Bound<'py, PyAny>,
    fields: &Bound<'py, PyAny>,
    body: &Bound<'py, PyAny>,
    timeout: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let class = CONNECTION.import(py, "aiorocket.remoting.connection", "Connection")?;
    let (Some(data), Ok(fields)) = (bytes(body), fields.downcast_exact::<PyTuple>()) else { return Ok(None) };
    if !connection.get_type().is(class)
        || number(connection, intern!(py, "_send_type"))? != MSGPACK
        || connection.getattr(intern!(py, "closed"))?.is_truthy()?
    {
        return Ok(None);
    }
    let limit = number(&connection.getattr(intern!(py, "config"))?, intern!(py, "write_limit"))?;
    if number(connection, intern!(py, "_out_bytes"))? > limit {
        return Ok(None);
    }
    let opaque = (number(connection, intern!(py, "_opaque"))? + 1) & MAX_OPAQUE;
    let (Some(code_number), Some(version)) = (long(code), long(version)) else { return Ok(None) };
    let Some(head) = head(code_number, opaque, version, fields, data.len()) else { return Ok(None) };

    connection.setattr(intern!(py, "_opaque"), opaque)?;
    let running = connection.getattr(intern!(py, "_loop"))?;
    let future = running.call_method0(intern!(py, "create_future"))?;
    connection.getattr(intern!(py, "_requests"))?.downcast::<PyDict>()?.set_item(opaque, &future)?;
    let timeouts = connection.getattr(intern!(py, "_timeouts"))?;
    timeouts.call_method1(intern!(py, "add"), (timeout, opaque, code))?;
    let mut parts = push(connection, intern!(py, "_out"), PyBytes::new(py, &head).as_any())?;
    if parts == 1 {
        running.call_method1(intern!(py, "call_soon"), (connection.getattr(intern!(py, "_flush"))?,))?;
    }
    if !data.is_empty() {
        parts = push(connection, intern!(py, "_out"), body)?;
        if data.len() >= LARGE {
            connection.setattr(intern!(py, "_out_large"), true)?;
            add(connection, intern!(py, "_out_bytes"), data.len() as i64)?;
        }
    }
    if parts >= BURST || number(connection, intern!(py, "_out_bytes"))? >= BURST_BYTES {
        connection.call_method0(intern!(py, "_flush"))?;
    }
    Ok(Some(future))
}

/// None over MAX_FRAME, and for what does not pack.
fn head(code: i64, opaque: i64, version: i64, fields: &Bound<'_, PyTuple>, body: usize) -> Option<Vec<u8>> {
    let mut to = Vec::with_capacity(192);
    to.extend_from_slice(&[0; 8]);
    to.push(0x97);
    for number in [code, 0, opaque, version, PYTHON] {
        pack_number(&mut to, number);
    }
    to.push(0xC0);
    if fields.len() > 15 {
        return None;
    }
    to.push(0x90 | fields.len() as u8);
    for field in fields.iter_borrowed() {
        pack(&mut to, &field)?;
    }
    let header = to.len() - 8;
    let length = header.checked_add(4)?.checked_add(body)?;
    if length > MAX_FRAME - 4 || header > 0xFF_FFFF {
        return None;
    }
    to[..4].copy_from_slice(&(length as u32).to_be_bytes());
    to[4..8].copy_from_slice(&((MSGPACK as u32) << 24 | header as u32).to_be_bytes());
    Some(to)
}
