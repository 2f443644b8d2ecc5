//! Property strings.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::Pure;

pub static PROPERTY_VALUE: Pure = Pure::new();

/// The value of `name` in a property string, None when it is absent.
#[pyfunction]
pub fn property_value<'py>(
    py: Python<'py>,
    properties: Bound<'py, PyAny>,
    name: Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let (Some(text), Some(wanted)) = (utf8(&properties), utf8(&name)) {
        if !wanted.contains(['\x01', '\x02']) {
            return Ok(find(text, wanted).map(|value| PyString::new(py, value).into_any()));
        }
    }
    let found = PROPERTY_VALUE.call(py, &[&properties, &name])?;
    Ok((!found.is_none()).then_some(found))
}

/// None for what is no `str` or cannot be UTF-8 (lone surrogates).
pub fn utf8<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    value.downcast_exact::<PyString>().ok()?.to_str().ok()
}

pub fn find<'a>(properties: &'a str, name: &str) -> Option<&'a str> {
    // Of several with this name the last one that is not empty counts: from the back, pair by pair. A value may hold
    // 0x01.
    let mut rest = properties;
    loop {
        let begin = rest.rfind('\x02').map_or(0, |at| at + 1);
        let found = rest[begin..].strip_prefix(name).and_then(|found| found.strip_prefix('\x01'));
        if let Some(value) = found.filter(|value| !value.is_empty()) {
            return Some(value);
        }
        rest = &rest[..begin.checked_sub(1)?];
    }
}
