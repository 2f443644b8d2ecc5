//! Compiled twins of the hottest functions of `aiorocket_protocol`.
//!
//! A twin does what is plain: exact types, IPv4 hosts, lengths that add up. Whatever else comes (another type, a number
//! that does not fit, bytes of a stranger that are damaged) it hands to the pure function it was bound to, arguments and
//! all, so that there is one place where the rare is decided and where errors are made: Python.
#![forbid(unsafe_code)]

mod batch;
mod checksums;
mod cold_reads;
mod columns;
mod frames;
mod headers;
mod plain_send;
mod post;
mod producer;
mod properties;
mod records;

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyTuple};

/// Raised by one with every change of what a twin takes, answers or calls.
const INTERFACE: u32 = 9;
/// What nobody knows. The switch is read here because `aiorocket_protocol` reads no environment.
const OFF: u32 = 0;

/// What `work` gives; without memory for an object PyO3 panics, which is MemoryError here.
pub fn unwound<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(PyMemoryError::new_err(())))
}

/// The pure function behind a twin.
pub struct Pure(PyOnceLock<Py<PyAny>>);

impl Pure {
    pub const fn new() -> Self {
        Self(PyOnceLock::new())
    }

    fn bind(&self, py: Python<'_>, function: Bound<'_, PyAny>) {
        // The first one stays: a module that is loaded twice defines the same function again.
        let _ = self.0.set(py, function.unbind());
    }

    /// What the pure function answers or raises.
    pub fn call<'py>(&self, py: Python<'py>, arguments: &[&Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
        self.call_with(py, arguments, &[])
    }

    /// The same; of the last arguments those that were given.
    pub fn call_with<'py>(
        &self,
        py: Python<'py>,
        arguments: &[&Bound<'py, PyAny>],
        more: &[(&str, &Given<'py>)],
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.0.get(py) {
            Some(function) => {
                let named = PyDict::new(py);
                for (name, given) in more {
                    if let Some(value) = &given.0 {
                        named.set_item(name, value)?;
                    }
                }
                function.bind(py).call(PyTuple::new(py, arguments)?, Some(&named))
            }
            None => Err(PyRuntimeError::new_err("no pure function is bound")),
        }
    }
}

/// An argument that may be left out. (None is a value: the pure functions tell the two apart.)
pub struct Given<'py>(pub Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'py> for Given<'py> {
    fn extract_bound(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value.clone())))
    }
}

impl<'py> Given<'py> {
    /// As `read` has it, or `otherwise`; None when `read` has none.
    pub fn or<T>(&self, read: impl Fn(&Bound<'py, PyAny>) -> Option<T>, otherwise: T) -> Option<T> {
        self.0.as_ref().map_or(Some(otherwise), read)
    }
}

/// The bytes of exactly a `bytes`.
pub fn bytes<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a [u8]> {
    value.downcast_exact::<PyBytes>().ok().map(|found| found.as_bytes())
}

/// The value of exactly an `int` that fits.
pub fn long(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.downcast_exact::<PyInt>().ok()?.extract().ok()
}

pub fn int(value: &Bound<'_, PyAny>) -> Option<i32> {
    i32::try_from(long(value)?).ok()
}

pub fn int_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub fn short_at(data: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_be_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?).into())
}

#[pymodule]
mod aiorocketmq_speedups {
    use super::*;

    #[pymodule_export]
    use super::batch::{
        decode_batch, encode_bodies, encode_records, numbered_ids, offset_msg_ids, plain_batch, units_of,
    };
    #[pymodule_export]
    use super::checksums::{cover, wrong_pages};
    #[pymodule_export]
    use super::cold_reads::{are_records, cut_units};
    #[pymodule_export]
    use super::columns::record_columns;
    #[pymodule_export]
    use super::frames::cut_frames;
    #[pymodule_export]
    use super::headers::{decode, encode_head};
    #[pymodule_export]
    use super::plain_send::PlainSends;
    #[pymodule_export]
    use super::post::post;
    #[pymodule_export]
    use super::producer::{take_answers, ProducerSends};
    #[pymodule_export]
    use super::properties::property_value;
    #[pymodule_export]
    use super::records::{encode_record, split_records};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let off = std::env::var("AIOROCKET_SPEEDUPS").is_ok_and(|value| value == "0");
        module.add("INTERFACE", if off { OFF } else { INTERFACE })?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Give the twin of this name its pure function; False when there is no such twin.
    #[pyfunction]
    fn bind(py: Python<'_>, name: &str, function: Bound<'_, PyAny>) -> bool {
        let pure = match name {
            "cut_frames" => &frames::CUT_FRAMES,
            "decode" => &headers::DECODE,
            "encode_head" => &headers::ENCODE_HEAD,
            "encode_bodies" => &batch::ENCODE_BODIES,
            "numbered_ids" => &batch::NUMBERED_IDS,
            "offset_msg_ids" => &batch::OFFSET_MSG_IDS,
            "units_of" => &batch::UNITS_OF,
            "property_value" => &properties::PROPERTY_VALUE,
            "decode_batch" => &batch::DECODE_BATCH,
            "encode_record" => &records::ENCODE_RECORD,
            "encode_records" => &batch::ENCODE_RECORDS,
            "split_records" => &records::SPLIT_RECORDS,
            _ => return false,
        };
        pure.bind(py, function);
        true
    }
}
