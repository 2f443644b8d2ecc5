//! Batches in whole: a producer's from its bodies to the request, a broker's from there to what it stores and answers.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString, PyTuple};

use crate::properties::utf8;
use crate::records::{batch_places, Place, MAX_PROPERTIES};
use crate::{bytes, int, long, Pure};

pub static ENCODE_BODIES: Pure = Pure::new();
pub static NUMBERED_IDS: Pure = Pure::new();
pub static OFFSET_MSG_IDS: Pure = Pure::new();
pub static UNITS_OF: Pure = Pure::new();

const ITEM_OVERHEAD: usize = 22;
const UNIT: usize = 20;
const UNIQ_KEY: &[u8] = b"UNIQ_KEY\x01";

/// The messages of a batch body, where they stand. To Python it is an iterable of (body, flag, properties).
#[pyclass(frozen)]
pub struct Batch {
    data: Py<PyBytes>,
    places: Vec<Place>,
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let items = PyList::empty(py);
        for (body, flag, properties) in self.items(py) {
            items.append((PyBytes::new(py, body), flag, PyBytes::new(py, properties)))?;
        }
        items.try_iter()
    }
}

impl Batch {
    pub fn items<'a>(&'a self, py: Python<'a>) -> impl Iterator<Item = (&'a [u8], i32, &'a [u8])> {
        let data = self.data.as_bytes(py);
        self.places.iter().map(|&((start, at), end, flag)| (&data[start..at], flag, &data[at + 2..end]))
    }
}

/// What `decode_batch` gives, in one piece; None where it raises or gives nothing, and where a message has a tag, a delay
/// or a timer.
#[pyfunction]
pub fn plain_batch(data: &Bound<'_, PyAny>, most: &Bound<'_, PyAny>) -> Option<Batch> {
    let data = data.downcast_exact::<PyBytes>().ok()?;
    let whole = data.as_bytes();
    let places = batch_places(whole, long(most)?)?;
    let plain = |&(body, end, _): &Place| is_plain(&whole[body.1 + 2..end]);
    (!places.is_empty() && places.iter().all(plain)).then(|| Batch { data: data.clone().unbind(), places })
}

fn is_plain(properties: &[u8]) -> bool {
    properties.iter().enumerate().all(|(at, byte)| match byte {
        1 => !properties[..at].ends_with(b"DELAY") && !properties[..at].ends_with(b"TAGS"),
        b'_' => !properties[..at].ends_with(b"TIMER"),
        _ => true,
    })
}

/// See batch.py.
#[pyfunction]
pub fn encode_bodies<'py>(
    py: Python<'py>,
    bodies: Bound<'py, PyAny>,
    ids: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let all = |of: &Bound<'py, PyAny>| of.downcast_exact::<PyList>().ok().map(|list| list.iter().collect::<Vec<_>>());
    let found = all(&bodies).zip(all(&ids)).filter(|(bodies, ids)| bodies.len() == ids.len());
    let parts = found.as_ref().and_then(|(bodies, ids)| {
        bodies.iter().zip(ids).map(|(body, id)| Some((bytes(body)?, utf8(id)?.as_bytes()))).collect::<Option<Vec<_>>>()
    });
    let sizes = parts.and_then(|parts| {
        let mut total = 0usize;
        for (body, id) in &parts {
            let properties = UNIQ_KEY.len() + id.len() + 1;
            let size = ITEM_OVERHEAD + body.len() + properties;
            if properties > MAX_PROPERTIES || i32::try_from(size).is_err() {
                return None;
            }
            total = total.checked_add(size)?;
        }
        Some((parts, total))
    });
    let Some((parts, total)) = sizes else { return ENCODE_BODIES.call(py, &[&bodies, &ids]) };
    let made = PyBytes::new_with(py, total, |mut to| {
        for (body, id) in parts {
            let properties = UNIQ_KEY.len() + id.len() + 1;
            let size = ITEM_OVERHEAD + body.len() + properties;
            let numbers = [size as u32, 0, 0, 0, body.len() as u32].map(u32::to_be_bytes);
            let length = (properties as u16).to_be_bytes();
            for part in [numbers.as_flattened(), body, &length, UNIQ_KEY, id, b"\x02"] {
                let (here, rest) = to.split_at_mut(part.len());
                here.copy_from_slice(part);
                to = rest;
            }
        }
        Ok(())
    })?;
    Ok(made.into_any())
}

/// See ids.py.
#[pyfunction]
pub fn numbered_ids<'py>(
    py: Python<'py>,
    prefix: Bound<'py, PyAny>,
    first: Bound<'py, PyAny>,
    count: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (Some(text), Some(from), Some(number)) = (utf8(&prefix), long(&first), int(&count)) else {
        return NUMBERED_IDS.call(py, &[&prefix, &first, &count]);
    };
    let ids = PyList::empty(py);
    let mut id = String::with_capacity(text.len() + 4);
    for step in 0..i64::from(number) {
        id.clear();
        id.push_str(text);
        push_hex(&mut id, &(from.wrapping_add(step) as u16).to_be_bytes());
        ids.append(PyString::new(py, &id))?;
    }
    Ok(ids.into_any())
}

pub fn push_hex(to: &mut String, data: &[u8]) {
    for byte in data {
        for digit in [byte >> 4, byte & 15] {
            to.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
        }
    }
}

fn longs<'py>(of: &Bound<'py, PyTuple>) -> Option<Vec<i64>> {
    of.iter_borrowed().map(|each| long(&each)).collect()
}

/// See ids.py.
#[pyfunction]
pub fn offset_msg_ids<'py>(
    py: Python<'py>,
    host: Bound<'py, PyAny>,
    places: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let found = places.downcast_exact::<PyTuple>().ok().and_then(longs);
    let (Some(packed), Some(found)) = (bytes(&host), found) else {
        return OFFSET_MSG_IDS.call(py, &[&host, &places]);
    };
    let mut ids = String::with_capacity(found.len() * (2 * packed.len() + 17));
    for place in found {
        if !ids.is_empty() {
            ids.push(',');
        }
        push_hex(&mut ids, packed);
        push_hex(&mut ids, &place.to_be_bytes());
    }
    Ok(PyString::new(py, &ids).into_any())
}

/// See storage/consume_queue.py.
#[pyfunction]
pub fn units_of<'py>(
    py: Python<'py>,
    start: Bound<'py, PyAny>,
    sizes: Bound<'py, PyAny>,
    codes: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let plain = || {
        let (sizes, codes) = (sizes.downcast_exact::<PyList>().ok()?, codes.downcast_exact::<PyList>().ok()?);
        if sizes.is_empty() || sizes.len() != codes.len() {
            return None;
        }
        let mut place = long(&start)?;
        let (mut places, mut units) = (Vec::new(), Vec::with_capacity(UNIT * sizes.len()));
        for (size, code) in sizes.iter().zip(codes.iter()) {
            let size = int(&size)?;
            places.push(place);
            units.extend_from_slice(&place.to_be_bytes());
            units.extend_from_slice(&size.to_be_bytes());
            units.extend_from_slice(&long(&code)?.to_be_bytes());
            place = place.checked_add(size.into())?;
        }
        Some((places, units))
    };
    match plain() {
        Some((places, units)) => {
            let made = (PyTuple::new(py, places)?, PyBytes::new(py, &units));
            Ok(made.into_pyobject(py)?.into_any())
        }
        None => UNITS_OF.call(py, &[&start, &sizes, &codes]),
    }
}
