//! The checksums of a segment: what was written, by page, and whether it still is.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use pyo3::IntoPyObjectExt;

use crate::{bytes, unwound};

const PAGE: usize = 32 * 1024;

fn go_on(crc: u32, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(data);
    hasher.finalize()
}

type Covered = (Vec<usize>, Vec<u32>, usize, u32);

/// Size and CRC of each entry that `buffers` make (flat), the CRCs of the pages they fill, and how far the last page is
/// filled with which CRC, which is where they began at `inside`. None unless all of them are `bytes`.
#[pyfunction]
pub fn cover<'py>(buffers: &Bound<'py, PyList>, inside: usize, crc: u32) -> PyResult<Bound<'py, PyAny>> {
    unwound(|| covered(buffers, inside, crc).into_bound_py_any(buffers.py()))
}

fn covered(buffers: &Bound<'_, PyList>, mut inside: usize, mut crc: u32) -> Option<Covered> {
    if inside >= PAGE {
        return None;
    }
    let (mut rows, mut pages) = (Vec::with_capacity(2 * buffers.len()), Vec::new());
    for buffer in buffers.iter() {
        let mut rest = bytes(&buffer)?;
        loop {
            let (part, more) = rest.split_at(rest.len().min(PAGE - inside));
            crc = go_on(crc, part);
            inside += part.len();
            rows.extend([part.len(), crc as usize]);
            if inside == PAGE {
                pages.push(crc);
                (inside, crc) = (0, 0);
            }
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
    }
    Some((rows, pages, inside, crc))
}

/// The positions of the pages in `data`, which was read from the page at `position` on, that are not what was written:
/// `end` bytes, full pages with these CRCs, and what is behind the last of them with `crc`. None where nothing
/// is covered by a full page yet.
#[pyfunction]
pub fn wrong_pages(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    position: usize,
    end: usize,
    crc: u32,
    pages: &Bound<'_, PyAny>,
) -> Option<Vec<usize>> {
    // (An empty array is at no address that fits.)
    let pages = PyBuffer::<u32>::get(pages).ok()?;
    let pages = pages.as_slice(py)?;
    let data = data.as_bytes();
    let mut wrong = Vec::new();
    for at in (position..end.min(position.checked_add(data.len())?)).step_by(PAGE) {
        let rest = &data[at - position..];
        let (expected, size) =
            if at / PAGE < end / PAGE { (pages.get(at / PAGE)?.get(), PAGE) } else { (crc, end - at) };
        if go_on(0, &rest[..size.min(rest.len())]) != expected {
            wrong.push(at);
        }
    }
    Some(wrong)
}
