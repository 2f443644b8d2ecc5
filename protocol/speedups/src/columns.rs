//! Stored records as the buffers of Arrow's columns, for Spark's source.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::records::{crc, MAX_PROPERTIES};
use crate::{int_at, short_at, unwound};

const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
const ANY_V6: i32 = 0x030;
const COMPRESSED: i32 = 0x1;
const HEAD: usize = 88;
const MIN_RECORD: usize = 91;
/// More names in a row are compared with each other elsewhere.
const MANY: usize = 64;

type Buffers<'py> = Bound<'py, PyTuple>;

struct Row<'a> {
    head: &'a [u8],
    body: &'a [u8],
    topic: &'a [u8],
    properties: &'a [u8],
}

impl Row<'_> {
    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut found = [0; N];
        found.copy_from_slice(&self.head[at..at + N]);
        found
    }

    fn long(&self, at: usize) -> i64 {
        i64::from_be_bytes(self.number(at))
    }
}

/// The columns `names` of all records in `data`, each as its buffers (of a map those of offsets, names and values, of a
/// host its eight bytes as stored, of `brokerName` none), and how many records there are. None for what is rare, damaged
/// or to be left out: an offset outside of [`begin`, `end`), another magic, an IPv6 host, a compressed body where
/// `decompress` asks for its content, one that is not its CRC's with `verify_crc`, text that is not UTF-8, properties
/// that do not alternate or have an empty text or a name twice, a time beyond `most_millis`, no record at all.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn record_columns<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    names: Vec<String>,
    begin: i64,
    end: i64,
    verify_crc: bool,
    decompress: bool,
    most_millis: i64,
) -> PyResult<Option<(usize, Bound<'py, PyList>)>> {
    unwound(|| {
        let unfold = decompress && names.iter().any(|name| name == "body");
        let Some(rows) = cut(data.as_bytes(), begin, end, verify_crc, unfold) else { return Ok(None) };
        let asked = ["properties", "msgId", "keys", "tags"];
        let mut table = None;
        if names.iter().any(|name| asked.contains(&name.as_str())) {
            match Table::of(&rows) {
                None => return Ok(None),
                found => table = found,
            }
        }
        let columns = PyList::empty(py);
        for name in &names {
            match column(py, name, &rows, table.as_ref(), most_millis)? {
                None => return Ok(None),
                Some(found) => columns.append(found)?,
            }
        }
        Ok(Some((rows.len(), columns)))
    })
}

fn cut(mut data: &[u8], begin: i64, end: i64, verify_crc: bool, unfold: bool) -> Option<Vec<Row<'_>>> {
    let mut rows = Vec::with_capacity(data.len() / 256);
    while !data.is_empty() {
        let size = usize::try_from(int_at(data, 0)?).ok().filter(|size| *size >= MIN_RECORD)?;
        let (record, rest) = (data.get(..size)?, data.get(size..)?);
        let (head, behind) = record.split_at(HEAD);
        let body = usize::try_from(int_at(head, HEAD - 4)?).ok()?;
        let (body, behind) = (behind.get(..body)?, behind.get(body..)?);
        let (topic, behind) = behind.split_first()?;
        let (topic, behind) = (behind.get(..usize::from(*topic))?, behind.get(usize::from(*topic)..)?);
        let properties = behind.get(2..)?;
        let row = Row { head, body, topic, properties };
        let (flags, offset) = (int_at(head, 36)?, row.long(20));
        let plain = int_at(head, 4)? == MAGIC_V1
            && flags & ANY_V6 == 0
            && !(unfold && flags & COMPRESSED != 0)
            && (begin..end).contains(&offset)
            && short_at(behind, 0)? == properties.len()
            && properties.len() <= MAX_PROPERTIES
            && !(verify_crc && crc(body) != int_at(head, 8)?);
        if !plain {
            return None;
        }
        rows.push(row);
        data = rest;
    }
    (!rows.is_empty()).then_some(rows)
}

/// The properties of all rows; those of row `n` are `pairs[firsts[n]..firsts[n + 1]]`.
struct Table<'a> {
    firsts: Vec<usize>,
    pairs: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Table<'a> {
    fn of(rows: &[Row<'a>]) -> Option<Self> {
        let mut table = Table { firsts: Vec::with_capacity(rows.len() + 1), pairs: Vec::with_capacity(rows.len() * 6) };
        table.firsts.push(0);
        for row in rows {
            let (text, mut at, first) = (row.properties, 0, table.pairs.len());
            if !is_text(text) {
                return None;
            }
            while at < text.len() {
                let middle = separator(text, at).filter(|place| text[*place] == 1 && *place > at)?;
                let stop = separator(text, middle + 1).filter(|place| text[*place] == 2 && *place > middle + 1)?;
                let name = &text[at..middle];
                let own = &table.pairs[first..];
                if own.len() >= MANY || own.iter().any(|(known, _)| *known == name) {
                    return None;
                }
                table.pairs.push((name, &text[middle + 1..stop]));
                at = stop + 1;
            }
            table.firsts.push(table.pairs.len());
        }
        Some(table)
    }

    /// The property `name` of each row.
    fn values(&self, name: &[u8]) -> Vec<Option<&'a [u8]>> {
        // Rows mostly have their properties in one order: where it was in the row before is looked at first.
        let mut usual = 0;
        let value = |bounds: &[usize]| {
            let own = &self.pairs[bounds[0]..bounds[1]];
            if !own.get(usual).is_some_and(|pair| pair.0 == name) {
                usual = own.iter().position(|pair| pair.0 == name)?;
            }
            Some(own[usual].1)
        };
        self.firsts.windows(2).map(value).collect()
    }
}

fn is_text(text: &[u8]) -> bool {
    text.is_ascii() || std::str::from_utf8(text).is_ok()
}

/// Where the next 1 or 2 is from `at` on, eight bytes at a time.
fn separator(text: &[u8], mut at: usize) -> Option<usize> {
    while let Some(eight) = text.get(at..at + 8) {
        let word = u64::from_le_bytes(eight.try_into().ok()?);
        // The highest bit of the first byte below 3, and perhaps of some behind it.
        let small = word.wrapping_sub(0x0303_0303_0303_0303) & !word & 0x8080_8080_8080_8080;
        if small == 0 {
            at += 8;
            continue;
        }
        at += small.trailing_zeros() as usize / 8;
        if text[at] != 0 {
            return Some(at);
        }
        at += 1;
    }
    (at..text.len()).find(|place| matches!(text[*place], 1 | 2))
}

fn column<'py>(
    py: Python<'py>,
    name: &str,
    rows: &[Row<'_>],
    table: Option<&Table<'_>>,
    most_millis: i64,
) -> PyResult<Option<Buffers<'py>>> {
    match (name, table) {
        ("brokerName", _) => Ok(Some(PyTuple::empty(py))),
        ("queueId", _) => ints(py, rows, 12),
        ("flag", _) => ints(py, rows, 16),
        ("bodyCrc", _) => ints(py, rows, 8),
        ("sysFlag", _) => ints(py, rows, 36),
        ("reconsumeTimes", _) => ints(py, rows, 72),
        ("queueOffset", _) => longs(py, rows, 20),
        ("physicalOffset", _) => longs(py, rows, 28),
        ("preparedTransactionOffset", _) => longs(py, rows, 76),
        ("bornTimestamp", _) => times(py, rows, 40, most_millis),
        ("storeTimestamp", _) => times(py, rows, 56, most_millis),
        ("bornHost", _) => fixed(py, rows, |row| row.number::<8>(48)),
        ("storeHost", _) => fixed(py, rows, |row| row.number::<8>(64)),
        ("body", _) => texts(py, &rows.iter().map(|row| Some(row.body)).collect::<Vec<_>>()),
        ("topic", _) if rows.iter().all(|row| is_text(row.topic)) => {
            texts(py, &rows.iter().map(|row| Some(row.topic)).collect::<Vec<_>>())
        }
        ("offsetMsgId", _) => {
            let ids = ids(rows);
            texts(py, &ids.iter().map(|id| Some(id.as_slice())).collect::<Vec<_>>())
        }
        ("keys", Some(table)) => texts(py, &table.values(b"KEYS")),
        ("tags", Some(table)) => texts(py, &table.values(b"TAGS")),
        ("msgId", Some(table)) => {
            let mut found = table.values(b"UNIQ_KEY");
            let ids = if found.contains(&None) { ids(rows) } else { Vec::new() };
            for (value, id) in found.iter_mut().zip(&ids) {
                value.get_or_insert(id);
            }
            texts(py, &found)
        }
        ("properties", Some(table)) => {
            let Some(firsts) = places(py, table.firsts.iter().copied())? else { return Ok(None) };
            let names: Vec<_> = table.pairs.iter().map(|pair| Some(pair.0)).collect();
            let values: Vec<_> = table.pairs.iter().map(|pair| Some(pair.1)).collect();
            let (Some(names), Some(values)) = (texts(py, &names)?, texts(py, &values)?) else { return Ok(None) };
            Ok(Some(PyTuple::new(py, [firsts.as_any(), names.as_any(), values.as_any()])?))
        }
        _ => Ok(None),
    }
}

/// `value` of each row end to end.
fn fixed<'py, const N: usize>(
    py: Python<'py>,
    rows: &[Row<'_>],
    value: impl Fn(&Row<'_>) -> [u8; N],
) -> PyResult<Option<Buffers<'py>>> {
    let filled = PyBytes::new_with(py, rows.len() * N, |to: &mut [u8]| {
        for (place, row) in to.chunks_exact_mut(N).zip(rows) {
            place.copy_from_slice(&value(row));
        }
        Ok(())
    })?;
    Ok(Some(PyTuple::new(py, [py.None().bind(py), filled.as_any()])?))
}

fn ints<'py>(py: Python<'py>, rows: &[Row<'_>], at: usize) -> PyResult<Option<Buffers<'py>>> {
    fixed(py, rows, |row| i32::from_be_bytes(row.number(at)).to_ne_bytes())
}

fn longs<'py>(py: Python<'py>, rows: &[Row<'_>], at: usize) -> PyResult<Option<Buffers<'py>>> {
    fixed(py, rows, |row| row.long(at).to_ne_bytes())
}

/// Milliseconds as microseconds.
fn times<'py>(py: Python<'py>, rows: &[Row<'_>], at: usize, most: i64) -> PyResult<Option<Buffers<'py>>> {
    if !rows.iter().all(|row| (-most..=most).contains(&row.long(at))) {
        return Ok(None);
    }
    fixed(py, rows, |row| (row.long(at) * 1000).to_ne_bytes())
}

/// Offsets as Arrow has them; None when one does not fit.
fn places<'py>(
    py: Python<'py>,
    values: impl ExactSizeIterator<Item = usize> + Clone,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    if values.clone().last().is_some_and(|last| i32::try_from(last).is_err()) {
        return Ok(None);
    }
    let filled = PyBytes::new_with(py, values.len() * 4, |to: &mut [u8]| {
        for (place, value) in to.chunks_exact_mut(4).zip(values) {
            place.copy_from_slice(&(value as i32).to_ne_bytes());
        }
        Ok(())
    })?;
    Ok(Some(filled))
}

/// Which rows have one (None when all do), where each ends, and all of them end to end.
fn texts<'py>(py: Python<'py>, pieces: &[Option<&[u8]>]) -> PyResult<Option<Buffers<'py>>> {
    let (mut ends, mut total, mut missing) = (Vec::with_capacity(pieces.len() + 1), 0, false);
    ends.push(0);
    for piece in pieces {
        total += piece.map_or(0, <[u8]>::len);
        missing |= piece.is_none();
        ends.push(total);
    }
    let Some(ends) = places(py, ends.into_iter())? else { return Ok(None) };
    let content = PyBytes::new_with(py, total, |mut to: &mut [u8]| {
        for piece in pieces.iter().flatten() {
            let (here, rest) = to.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            to = rest;
        }
        Ok(())
    })?;
    let there = if missing {
        let mut bits = vec![0u8; pieces.len().div_ceil(8)];
        for (number, _) in pieces.iter().enumerate().filter(|(_, piece)| piece.is_some()) {
            bits[number / 8] |= 1 << (number % 8);
        }
        PyBytes::new(py, &bits).into_any()
    } else {
        py.None().into_bound(py)
    };
    Ok(Some(PyTuple::new(py, [&there, ends.as_any(), content.as_any()])?))
}

/// Store host and log offset of each row in hexadecimal digits.
fn ids(rows: &[Row<'_>]) -> Vec<[u8; 32]> {
    let id = |row: &Row<'_>| {
        let mut digits = [0; 32];
        let bytes = row.head[64..72].iter().chain(&row.head[28..36]);
        for (two, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            two[0] = b"0123456789ABCDEF"[usize::from(byte >> 4)];
            two[1] = b"0123456789ABCDEF"[usize::from(byte & 15)];
        }
        digits
    };
    rows.iter().map(id).collect()
}
