//! A read's bytes to frames.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};

use crate::{long, Pure};

pub static CUT_FRAMES: Pure = Pure::new();

const MAX_FRAME: usize = 16 * 1024 * 1024;
/// See `copied`.
const LARGE: usize = 4096;
const MAX_HEADER: usize = 512 * 1024;

/// The frames that are whole in `view[:end]`, where they end, and the size of the one that has begun there: 0 when not
/// known, -1 when it is none.
#[pyfunction]
pub fn cut_frames<'py>(py: Python<'py>, view: Bound<'py, PyAny>, end: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match plain(py, &view, &end)? {
        Some(found) => Ok(found),
        None => CUT_FRAMES.call(py, &[&view, &end]),
    }
}

fn plain<'py>(py: Python<'py>, view: &Bound<'py, PyAny>, end: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(end) = long(end).and_then(|end| usize::try_from(end).ok()) else { return Ok(None) };
    let Ok(buffer) = PyBuffer::<u8>::get(view) else { return Ok(None) };
    let Some(data) = buffer.as_slice(py).and_then(|data| data.get(..end)) else { return Ok(None) };
    let frames = PyList::empty(py);
    let (mut start, mut size) = (0, 0i64);
    while let (Some(length), Some(word)) = (word_at(data, start), word_at(data, start + 4)) {
        let header_length = word & 0xFF_FFFF;
        if length > MAX_FRAME - 4 || header_length + 4 > length || header_length > MAX_HEADER {
            size = -1;
            break;
        }
        let stop = start + 4 + length;
        let body = start + 8 + header_length;
        if stop > end {
            size = (stop - start) as i64;
            break;
        }
        let header = copied(py, view, data, start + 8, body)?;
        frames.append((word >> 24, header, copied(py, view, data, body, stop)?))?;
        start = stop;
    }
    Ok(Some((frames, start, size).into_pyobject(py)?.into_any()))
}

fn word_at(data: &[ReadOnlyCell<u8>], at: usize) -> Option<usize> {
    let word = data.get(at..at + 4)?;
    Some(word.iter().fold(0, |value, byte| value << 8 | usize::from(byte.get())))
}

/// The memory may be written by others, so it is copied cell by cell (which becomes wide moves); what is `large` by
/// Python, which does not fill new memory with zeros before.
fn copied<'py>(
    py: Python<'py>,
    view: &Bound<'py, PyAny>,
    data: &[ReadOnlyCell<u8>],
    from: usize,
    to: usize,
) -> PyResult<Bound<'py, PyAny>> {
    if to - from >= LARGE && view.is_exact_instance_of::<PyMemoryView>() {
        let part = view.get_item(PySlice::new(py, from as isize, to as isize, 1))?;
        return part.call_method0(intern!(py, "tobytes"));
    }
    let part = &data[from..to];
    let copy = PyBytes::new_with(py, part.len(), |to| {
        for (into, from) in to.iter_mut().zip(part) {
            *into = from.get();
        }
        Ok(())
    })?;
    Ok(copy.into_any())
}
