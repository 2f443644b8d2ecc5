//! A pull from files, between its index entries and its records: which pieces of the log, and are they what was meant.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::{bytes, int_at};

const UNIT: usize = 20;
const HEAD: usize = 88;
const MIN_RECORD: i64 = 91;
const ANY_V6: i32 = 0x030;

type Runs = (usize, i64, Vec<i64>, Vec<i64>);

fn long_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// How many of these units fit into `most` bytes, one at least, how many bytes they are, and where each run of records
/// that touch begins and how long it is. None unless all of them are messages of a log of `low` to `high`.
#[pyfunction]
pub fn cut_units(units: &Bound<'_, PyBytes>, most: i64, low: i64, high: i64) -> Option<Runs> {
    let (mut taken, mut total, mut end) = (0, 0i64, low);
    let (mut starts, mut lengths) = (Vec::new(), Vec::new());
    for unit in units.as_bytes().chunks_exact(UNIT) {
        let (place, size) = (long_at(unit, 0)?, i64::from(int_at(unit, 8)?));
        if size < MIN_RECORD || place < end {
            return None;
        }
        if taken > 0 && total + size > most {
            break;
        }
        match lengths.last_mut() {
            Some(length) if place == end => *length += size,
            _ => {
                starts.push(place);
                lengths.push(size);
            }
        }
        (taken, total, end) = (taken + 1, total + size, place.checked_add(size)?);
    }
    (taken > 0 && end <= high).then_some((taken, total, starts, lengths))
}

/// Whether `parts` are the records of the first `taken` units, which are those of this queue from `offset` on. False as
/// well for what is rare: a record in two parts, an IPv6 host.
#[pyfunction]
pub fn are_records(
    parts: &Bound<'_, PyList>,
    units: &Bound<'_, PyBytes>,
    taken: usize,
    offset: i64,
    queue_id: i32,
    topic: &Bound<'_, PyBytes>,
) -> bool {
    let mut left = units.as_bytes().chunks_exact(UNIT).take(taken);
    let mut expected = offset;
    for part in parts.iter() {
        let Some(mut rest) = bytes(&part) else { return false };
        while !rest.is_empty() {
            let size = left.next().and_then(|unit| is_record(rest, unit, expected, queue_id, topic.as_bytes()));
            let (Some(size), Some(following)) = (size, expected.checked_add(1)) else { return false };
            (rest, expected) = (&rest[size..], following);
        }
    }
    left.next().is_none()
}

/// The size of the record in front of `data`, if it is the one of this unit.
fn is_record(data: &[u8], unit: &[u8], offset: i64, queue_id: i32, topic: &[u8]) -> Option<usize> {
    let size = int_at(unit, 8)?;
    let record = data.get(..usize::try_from(size).ok()?)?;
    let body = usize::try_from(int_at(record, HEAD - 4)?).ok()?;
    let named = record.get(HEAD.checked_add(body)?..)?;
    let (length, named) = named.split_first()?;
    let same = int_at(record, 0)? == size
        && int_at(record, 12)? == queue_id
        && long_at(record, 20)? == offset
        && long_at(record, 28)? == long_at(unit, 0)?
        && int_at(record, 36)? & ANY_V6 == 0
        && usize::from(*length) == topic.len()
        && named.starts_with(topic);
    same.then_some(record.len())
}
