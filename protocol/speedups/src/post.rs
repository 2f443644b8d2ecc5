//! A client's request in one call: as `Connection.request` of aiorocket does it, in its fields.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::headers::{pack, pack_number};
use crate::plain_send::{add, list, number, BURST};
use crate::{bytes, long};

const MSGPACK: i64 = 0x4D;
const PYTHON: i64 = 3;
const MAX_FRAME: usize = 16 * 1024 * 1024;
pub const MAX_OPAQUE: i64 = 0x7FFF_FFFF;
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
    let py = connection.py();
    let (Some(data), Ok(fields)) = (bytes(body), fields.downcast_exact::<PyTuple>()) else { return Ok(None) };
    let (Some(code_number), Some(version)) = (long(code), long(version)) else { return Ok(None) };
    let Some((opaque, waiting)) = next_opaque(connection)? else { return Ok(None) };
    if fields.len() > 15 {
        return Ok(None);
    }
    let mut head = begin_head(code_number);
    pack_number(&mut head, opaque);
    end_envelope(&mut head, version, fields.len());
    for field in fields.iter_borrowed() {
        if pack(&mut head, &field).is_none() {
            return Ok(None);
        }
    }
    if end_head(&mut head, data.len()).is_none() {
        return Ok(None);
    }
    let future = connection.getattr(intern!(py, "_loop"))?.call_method0(intern!(py, "create_future"))?;
    let opaque = opaque.into_pyobject(py)?;
    connection.setattr(intern!(py, "_opaque"), &opaque)?;
    connection.getattr(intern!(py, "_requests"))?.downcast::<PyDict>()?.set_item(&opaque, &future)?;
    connection.getattr(intern!(py, "_timeouts"))?.call_method1(intern!(py, "add"), (timeout, opaque, code))?;
    put(connection, PyBytes::new(py, &head), body, data.len(), waiting)?;
    Ok(Some(future))
}

/// The opaque of the connection's next request, and how many bytes of large bodies wait; None where the pure way has
/// something to say. Nothing is changed.
pub fn next_opaque(connection: &Bound<'_, PyAny>) -> PyResult<Option<(i64, i64)>> {
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
    Ok(Some(((number(connection, intern!(py, "_opaque"))? + 1) & MAX_OPAQUE, waiting)))
}

/// Put a request behind the others of this turn, of which so many bytes were large.
pub fn put<'py>(
    connection: &Bound<'py, PyAny>,
    head: Bound<'py, PyBytes>,
    body: &Bound<'py, PyAny>,
    size: usize,
    mut waiting: i64,
) -> PyResult<()> {
    let py = connection.py();
    let out = list(connection, intern!(py, "_out"))?;
    if out.is_empty() {
        let flush = connection.getattr(intern!(py, "_flush"))?;
        connection.getattr(intern!(py, "_loop"))?.call_method1(intern!(py, "call_soon"), (flush,))?;
    }
    out.append(head)?;
    if size > 0 {
        out.append(body)?;
    }
    if size >= LARGE {
        connection.setattr(intern!(py, "_out_large"), true)?;
        waiting = add(connection, intern!(py, "_out_bytes"), size as i64)?;
    }
    if out.len() >= BURST || waiting >= BURST_BYTES {
        connection.call_method0(intern!(py, "_flush"))?;
    }
    Ok(())
}

/// A request's length words, which are not known yet, and its header up to its opaque.
pub fn begin_head(code: i64) -> Vec<u8> {
    let mut to = Vec::with_capacity(256);
    to.extend_from_slice(&[0; 8]);
    to.push(0x97);
    pack_number(&mut to, code);
    to.push(0);
    to
}

/// The header from behind its opaque up to its fields, of which there are `count`: at most 15.
pub fn end_envelope(to: &mut Vec<u8>, version: i64, count: usize) {
    pack_number(to, version);
    pack_number(to, PYTHON);
    to.extend_from_slice(&[0xC0, 0x90 | count as u8]);
}

/// Sets the length words; None over MAX_FRAME.
pub fn end_head(to: &mut [u8], body: usize) -> Option<()> {
    let header = to.len() - 8;
    let length = header.checked_add(4)?.checked_add(body)?;
    if length > MAX_FRAME - 4 || header > 0xFF_FFFF {
        return None;
    }
    to[..4].copy_from_slice(&(length as u32).to_be_bytes());
    to[4..8].copy_from_slice(&((MSGPACK as u32) << 24 | header as u32).to_be_bytes());
    Some(())
}
