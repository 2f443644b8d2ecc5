//! Batches in whole: a producer's from its bodies to the request, a broker's from there to what it stores and answers.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString, PyTuple};

use crate::properties::utf8;
use crate::records::{crc, size_of, write, Own, Shared, MAX_PROPERTIES};
use crate::{bytes, int, int_at, long, short_at, Given, Pure};

pub static DECODE_BATCH: Pure = Pure::new();
pub static ENCODE_BODIES: Pure = Pure::new();
pub static ENCODE_RECORDS: Pure = Pure::new();
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

/// The messages of a batch body, see batch.py.
#[pyfunction]
#[pyo3(signature = (data, most = Given(None)))]
pub fn decode_batch<'py>(
    py: Python<'py>,
    data: Bound<'py, PyAny>,
    most: Given<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let limit = match &most.0 {
        Some(given) if !given.is_none() => long(given),
        _ => Some(i64::MAX),
    };
    let places = limit.and_then(|limit| batch_places(bytes(&data)?, limit));
    let (Some(places), Some(whole)) = (places, bytes(&data)) else {
        return DECODE_BATCH.call_with(py, &[&data], &[("most", &most)]);
    };
    let items = PyList::empty(py);
    for (body, end, flag) in places {
        let (start, at) = body;
        items.append((PyBytes::new(py, &whole[start..at]), flag, PyBytes::new(py, &whole[at + 2..end])))?;
    }
    Ok(items.into_any())
}

type Place = ((usize, usize), usize, i32);

/// Of each item where its body begins and ends and where it ends itself, and its flag; None unless they fill `data`.
fn batch_places(data: &[u8], limit: i64) -> Option<Vec<Place>> {
    let mut places = Vec::new();
    let mut start = 0;
    while start < data.len() {
        if !places.is_empty() && places.len() as i64 == limit {
            return None;
        }
        let size = usize::try_from(int_at(data, start)?).ok()?;
        let flag = int_at(data, start + 12)?;
        let length = usize::try_from(int_at(data, start + 16)?).ok()?;
        let end = start + size;
        let (body, at) = (start + 20, start + 20 + length);
        if size < ITEM_OVERHEAD || end > data.len() || length > size - ITEM_OVERHEAD {
            return None;
        }
        let properties = short_at(data, at)?;
        if at + 2 + properties != end || properties > MAX_PROPERTIES {
            return None;
        }
        places.push(((body, at), end, flag));
        start = end;
    }
    Some(places)
}

/// The records of a batch and their sizes, see record_writer.py.
#[pyfunction]
#[pyo3(signature = (items, extra_properties, topic, queue_id, queue_offset, physical_offset, sys_flag, born_timestamp,
    born_host, store_timestamp, store_host, reconsume_times = Given(None)))]
#[allow(clippy::too_many_arguments)]
pub fn encode_records<'py>(
    py: Python<'py>,
    items: Bound<'py, PyAny>,
    extra_properties: Bound<'py, PyAny>,
    topic: Bound<'py, PyAny>,
    queue_id: Bound<'py, PyAny>,
    queue_offset: Bound<'py, PyAny>,
    physical_offset: Bound<'py, PyAny>,
    sys_flag: Bound<'py, PyAny>,
    born_timestamp: Bound<'py, PyAny>,
    born_host: Bound<'py, PyAny>,
    store_timestamp: Bound<'py, PyAny>,
    store_host: Bound<'py, PyAny>,
    reconsume_times: Given<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    // The tuples stay alive in `found` whatever happens to the list.
    let found: Option<Vec<Bound<'py, PyTuple>>> = items.downcast_exact::<PyList>().ok().and_then(|list| {
        list.iter().map(|item| item.downcast_into_exact::<PyTuple>().ok()).collect()
    });
    let parts: Option<Vec<[Bound<'py, PyAny>; 3]>> = found.and_then(|found| {
        found
            .iter()
            .map(|item| {
                let [body, flag, own] = [item.get_item(0).ok()?, item.get_item(1).ok()?, item.get_item(2).ok()?];
                (item.len() == 3).then_some([body, flag, own])
            })
            .collect()
    });
    let batch = items.downcast_exact::<Batch>().ok().map(Bound::get);
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
            prepared_transaction_offset: 0,
        };
        let extra = bytes(&extra_properties)?;
        let mut queue_offset = long(&queue_offset)?;
        let mut physical_offset = long(&physical_offset)?;
        let mut found: Vec<(&[u8], i32, &[u8])> = batch.map_or(Vec::new(), |batch| batch.items(py).collect());
        if batch.is_none() {
            for [body, flag, own] in parts.as_ref()? {
                found.push((bytes(body)?, int(flag)?, bytes(own)?));
            }
        }
        let mut owns = Vec::with_capacity(found.len());
        for (body, flag, properties) in found {
            let size = size_of(shared.topic, body, properties.len() + extra.len())?;
            let properties = [properties, extra];
            owns.push(Own { size, body, properties, crc: crc(body), flag, queue_offset, physical_offset });
            queue_offset = queue_offset.checked_add(1)?;
            physical_offset = physical_offset.checked_add(size.into())?;
        }
        Some((shared, owns))
    };
    if let Some((shared, owns)) = plain() {
        let total = owns.iter().map(|own| own.size as usize).sum();
        let records = PyBytes::new_with(py, total, |mut to| {
            for own in &owns {
                to = write(to, &shared, own);
            }
            Ok(())
        })?;
        let sizes = PyList::new(py, owns.iter().map(|own| own.size))?;
        return Ok((records, sizes).into_pyobject(py)?.into_any());
    }
    ENCODE_RECORDS.call_with(
        py,
        &[
            &items,
            &extra_properties,
            &topic,
            &queue_id,
            &queue_offset,
            &physical_offset,
            &sys_flag,
            &born_timestamp,
            &born_host,
            &store_timestamp,
            &store_host,
        ],
        &[("reconsume_times", &reconsume_times)],
    )
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
