//! The msgpack header, both ways.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple, PyType};

use crate::properties::utf8;
use crate::{bytes, long, Given, Pure};

pub static ENCODE_HEAD: Pure = Pure::new();
pub static DECODE: Pure = Pure::new();

const MSGPACK: i64 = 0x4D;
const MAX_FRAME: usize = 16 * 1024 * 1024;

static COMMAND: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PACKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Length words and header of a command, see codec.py.
#[pyfunction]
#[pyo3(signature = (command, serialize_type, more = Given(None)))]
pub fn encode_head<'py>(
    py: Python<'py>,
    command: Bound<'py, PyAny>,
    serialize_type: Bound<'py, PyAny>,
    more: Given<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(head) = head(py, &command, &serialize_type, &more) {
        return Ok(PyBytes::new(py, &head).into_any());
    }
    ENCODE_HEAD.call_with(py, &[&command, &serialize_type], &[("more", &more)])
}

fn head<'py>(
    py: Python<'py>,
    command: &Bound<'py, PyAny>,
    serialize_type: &Bound<'py, PyAny>,
    more: &Given<'py>,
) -> Option<Vec<u8>> {
    if long(serialize_type)? != MSGPACK {
        return None;
    }
    let ext = command.getattr(intern!(py, "ext")).ok()?;
    let header = command.getattr(intern!(py, "header")).ok()?;
    if !ext.is_none() || (header.is_none() && !command.getattr(intern!(py, "fields")).ok()?.is_none()) {
        return None;
    }
    let body = command.getattr(intern!(py, "body")).ok()?;
    let rest = bytes(&body)?.len() + usize::try_from(more.or(long, 0)?).ok()?;
    let mut to = Vec::with_capacity(160);
    to.extend_from_slice(&[0; 8]);
    to.push(0x97);
    for name in [
        intern!(py, "code"),
        intern!(py, "flag"),
        intern!(py, "opaque"),
        intern!(py, "version"),
        intern!(py, "language"),
        intern!(py, "remark"),
    ] {
        pack(&mut to, &command.getattr(name).ok()?)?;
    }
    if header.is_none() {
        to.push(0xC0);
    } else {
        let fields = header.downcast::<PyTuple>().ok()?;
        match fields.len() {
            count @ 0..=15 => to.push(0x90 | count as u8),
            count @ 16..=0xFFFF => {
                to.push(0xDC);
                to.extend_from_slice(&(count as u16).to_be_bytes());
            }
            _ => return None,
        }
        for field in fields.iter_borrowed() {
            pack(&mut to, &field)?;
        }
    }
    let header_length = to.len() - 8;
    let length = 4usize.checked_add(header_length)?.checked_add(rest)?;
    if length > MAX_FRAME - 4 || header_length > 0xFF_FFFF {
        return None;
    }
    to[..4].copy_from_slice(&(length as u32).to_be_bytes());
    to[4..8].copy_from_slice(&(((MSGPACK as u32) << 24) | header_length as u32).to_be_bytes());
    Some(to)
}

/// Numbers, text, None and truth, in the shortest form.
pub fn pack(to: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> Option<()> {
    if value.is_exact_instance_of::<PyString>() {
        return pack_text(to, utf8(value)?);
    } else if value.is_none() {
        to.push(0xC0);
    } else if value.is_exact_instance_of::<PyInt>() {
        pack_number(to, value.extract().ok()?);
    } else {
        to.push(if value.downcast_exact::<PyBool>().ok()?.is_true() { 0xC3 } else { 0xC2 });
    }
    Some(())
}

pub fn pack_text(to: &mut Vec<u8>, text: &str) -> Option<()> {
    pack_length(to, text.len())?;
    to.extend_from_slice(text.as_bytes());
    Some(())
}

/// What stands before a text of so many bytes.
pub fn pack_length(to: &mut Vec<u8>, length: usize) -> Option<()> {
    match length {
        length @ 0..=31 => to.push(0xA0 | length as u8),
        length @ 32..=0xFF => to.extend_from_slice(&[0xD9, length as u8]),
        length @ 0x100..=0xFFFF => {
            to.push(0xDA);
            to.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            to.push(0xDB);
            to.extend_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
        }
    }
    Some(())
}

pub fn pack_number(to: &mut Vec<u8>, number: i64) {
    match number {
        -32..=127 => to.push(number as u8),
        128..=0xFF => to.extend_from_slice(&[0xCC, number as u8]),
        0x100..=0xFFFF => {
            to.push(0xCD);
            to.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            to.push(0xCE);
            to.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            to.push(0xCF);
            to.extend_from_slice(&(number as u64).to_be_bytes());
        }
        -0x80..=-33 => to.extend_from_slice(&[0xD0, number as u8]),
        -0x8000..=-0x81 => {
            to.push(0xD1);
            to.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            to.push(0xD2);
            to.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            to.push(0xD3);
            to.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// The command of a frame, see codec.py.
#[pyfunction]
pub fn decode<'py>(
    py: Python<'py>,
    serialize_type: Bound<'py, PyAny>,
    header: Bound<'py, PyAny>,
    body: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if long(&serialize_type) == Some(MSGPACK) {
        if let Some(found) = bytes(&header).and_then(envelope) {
            return command(py, &found, body, serialize_type);
        }
    }
    DECODE.call(py, &[&serialize_type, &header, &body])
}

/// As a RemotingCommand.
pub fn command<'py>(
    py: Python<'py>,
    found: &Envelope<'_>,
    body: Bound<'py, PyAny>,
    serialize_type: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let none = py.None().into_bound(py);
    let fields = match found.fields {
        None => none.clone(),
        Some(fields) => {
            let packed = PACKED.import(py, "aiorocket_protocol.compiled", "Packed")?;
            packed.call1((PyBytes::new(py, fields),))?
        }
    };
    let remark = match found.remark {
        None => none.clone(),
        Some(text) => PyString::new(py, text).into_any(),
    };
    let [code, flag, opaque, version, language] = found.numbers;
    COMMAND.import(py, "aiorocket_protocol.command", "RemotingCommand")?.call1((
        code,
        opaque,
        flag,
        language,
        version,
        remark,
        &none,
        &none,
        fields,
        body,
        serialize_type,
    ))
}

pub struct Envelope<'a> {
    /// code, flag, opaque, version, language
    pub numbers: [i32; 5],
    remark: Option<&'a str>,
    /// The positional fields as they came.
    pub fields: Option<&'a [u8]>,
}

/// None unless the header is as our own encoders write it, without undeclared fields.
pub fn envelope(data: &[u8]) -> Option<Envelope<'_>> {
    let (&first, mut rest) = data.split_first()?;
    if first != 0x97 {
        return None;
    }
    let mut numbers = [0; 5];
    for number in &mut numbers {
        let value = take(&mut rest)?;
        *number = i32::try_from(value.number()?).ok()?;
    }
    if numbers[3] < 0 || !(0..=255).contains(&numbers[4]) {
        return None;
    }
    let remark = match take(&mut rest)? {
        Value::Nil => None,
        Value::Text(text) => Some(std::str::from_utf8(text).ok()?),
        _ => return None,
    };
    let (&kind, mut inside) = rest.split_first()?;
    if kind == 0xC0 {
        return inside.is_empty().then_some(Envelope { numbers, remark, fields: None });
    }
    if kind & 0xF0 != 0x90 {
        return None;
    }
    for _ in 0..kind & 0x0F {
        take(&mut inside)?;
    }
    inside.is_empty().then_some(Envelope { numbers, remark, fields: Some(rest) })
}

pub enum Value<'a> {
    Nil,
    Truth(bool),
    Number(i64),
    Text(&'a [u8]),
}

impl Value<'_> {
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// The next scalar of `rest`.
pub fn take<'a>(rest: &mut &'a [u8]) -> Option<Value<'a>> {
    let kind = piece(rest, 1)?[0];
    Some(match kind {
        0x00..=0x7F => Value::Number(kind.into()),
        0xE0..=0xFF => Value::Number((kind as i8).into()),
        0xA0..=0xBF => Value::Text(piece(rest, (kind & 0x1F).into())?),
        0xC0 => Value::Nil,
        0xC2 | 0xC3 => Value::Truth(kind == 0xC3),
        0xCC => Value::Number(piece(rest, 1)?[0].into()),
        0xCD => Value::Number(u16::from_be_bytes(piece(rest, 2)?.try_into().ok()?).into()),
        0xCE => Value::Number(u32::from_be_bytes(piece(rest, 4)?.try_into().ok()?).into()),
        0xCF => Value::Number(i64::try_from(u64::from_be_bytes(piece(rest, 8)?.try_into().ok()?)).ok()?),
        0xD0 => Value::Number((piece(rest, 1)?[0] as i8).into()),
        0xD1 => Value::Number(i16::from_be_bytes(piece(rest, 2)?.try_into().ok()?).into()),
        0xD2 => Value::Number(i32::from_be_bytes(piece(rest, 4)?.try_into().ok()?).into()),
        0xD3 => Value::Number(i64::from_be_bytes(piece(rest, 8)?.try_into().ok()?)),
        0xD9 => {
            let length = piece(rest, 1)?[0];
            Value::Text(piece(rest, length.into())?)
        }
        0xDA => {
            let length = u16::from_be_bytes(piece(rest, 2)?.try_into().ok()?);
            Value::Text(piece(rest, length.into())?)
        }
        _ => return None,
    })
}

fn piece<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (found, more) = rest.split_at_checked(length)?;
    *rest = more;
    Some(found)
}
