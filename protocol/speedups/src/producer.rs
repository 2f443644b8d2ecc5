//! A producer's plain sends: each begun in one call, and the answers to those that came behind each other in another.
//!
//! What it does is what `Producer.send`, `Connection.request` and `Connection._handle` of aiorocket do, in their fields.
//! Everything is looked at before anything is changed: whatever is not plain leaves no trace.

use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::headers::{command, envelope, pack_number, pack_text, take, Envelope, Value};
use crate::plain_send::number;
use crate::post::{begin_head, end_head, new_future, next_opaque, queue, Until};
use crate::properties::utf8;
use crate::{bytes, long};

const SEND_MESSAGE_V2: i64 = 310;
const MSGPACK: u32 = 0x4D;
const RESPONSE: i32 = 1;

/// One send under way. To its connection it is the future of the answer; `future` gets the receipt of a plain one, else
/// the answer, or the error there was instead.
#[pyclass(frozen)]
pub struct Sent {
    #[pyo3(get)]
    future: Py<PyAny>,
    #[pyo3(get)]
    publish: Py<PyAny>,
    #[pyo3(get)]
    target: Py<PyAny>,
    #[pyo3(get)]
    msg_id: Py<PyAny>,
    #[pyo3(get)]
    born: i64,
    sends: Py<ProducerSends>,
}

#[pymethods]
impl Sent {
    fn done<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.future.bind(py).call_method0(intern!(py, "done"))
    }

    fn set_result(&self, py: Python<'_>, result: &Bound<'_, PyAny>) -> PyResult<()> {
        self.future.bind(py).call_method1(intern!(py, "set_result"), (result,)).map(drop)
    }

    /// Who awaits it looks at errors anyway, and one that nobody awaits is no news.
    fn set_exception(&self, py: Python<'_>, error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_result(py, error)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.future)
    }
}

impl Sent {
    /// None when the answer is no plain success.
    fn receipt<'py>(&self, py: Python<'py>, answer: &Envelope<'_>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if answer.numbers[0] != 0 {
            return Ok(None);
        }
        let Some((offset_msg_id, offset)) = answer.fields.and_then(stored) else { return Ok(None) };
        let (sends, queue) = (self.sends.get(), self.target.bind(py).getattr(intern!(py, "queue"))?);
        let fields = (&self.msg_id, queue, offset, offset_msg_id, &sends.ok, py.None());
        sends.receipt.bind(py).call1((fields,)).map(Some)
    }
}

/// The broker's id of the message and its offset, of the fields of a SendMessageResponseHeader.
fn stored(fields: &[u8]) -> Option<(&str, i64)> {
    let (&kind, mut rest) = fields.split_first()?;
    if kind != 0x98 {
        return None;
    }
    let rest = &mut rest;
    let Value::Text(msg_id) = take(rest)? else { return None };
    i32::try_from(take(rest)?.number()?).ok()?;
    let offset = take(rest)?.number()?;
    for _ in 0..5 {
        match take(rest)? {
            Value::Nil => {}
            Value::Text(text) => drop(std::str::from_utf8(text).ok()?),
            _ => return None,
        }
    }
    Some((std::str::from_utf8(msg_id).ok()?, offset))
}

/// The compiled way of one producer. Called with a topic, a body, a timeout and its end it begins a send, if that is plain.
#[pyclass(frozen)]
pub struct ProducerSends {
    /// Publish by topic.
    opened: Py<PyDict>,
    /// Connection by address.
    live: Py<PyDict>,
    /// It has `ids`.
    sender: Py<PyAny>,
    /// None for the machine's clock.
    wall_ms: Option<Py<PyAny>>,
    /// Of its fields in a tuple makes a SendReceipt.
    receipt: Py<PyAny>,
    ok: Py<PyAny>,
    code: Py<PyAny>,
    compress_over: usize,
    version: i64,
    /// The fields before and behind the topic, packed.
    group: Vec<u8>,
    default_topic: Vec<u8>,
}

#[pymethods]
impl ProducerSends {
    #[new]
    #[pyo3(signature = (*, opened, live, sender, wall_ms, receipt, ok, compress_over, version, group, default_topic, queues))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        opened: Py<PyDict>,
        live: Py<PyDict>,
        sender: Py<PyAny>,
        wall_ms: Option<Py<PyAny>>,
        receipt: Py<PyAny>,
        ok: Py<PyAny>,
        compress_over: usize,
        version: i64,
        group: &str,
        default_topic: &str,
        queues: i64,
    ) -> PyResult<Self> {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let _ = (pack_text(&mut before, group), pack_text(&mut behind, default_topic));
        pack_number(&mut behind, queues);
        Ok(Self {
            opened,
            live,
            sender,
            wall_ms,
            receipt,
            ok,
            code: SEND_MESSAGE_V2.into_pyobject(py)?.into_any().unbind(),
            compress_over,
            version,
            group: before,
            default_topic: behind,
        })
    }

    /// None, and nothing done, where `Producer.send` has something to say.
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        topic: &Bound<'py, PyAny>,
        body: &Bound<'py, PyAny>,
        timeout: &Bound<'py, PyAny>,
        deadline: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Sent>>> {
        let (py, sends) = (slf.py(), slf.get());
        let Some(size) = bytes(body).map(<[u8]>::len) else { return Ok(None) };
        if size == 0 || size >= sends.compress_over {
            return Ok(None);
        }
        let Some(publish) = sends.opened.bind(py).get_item(topic)? else { return Ok(None) };
        if publish.getattr(intern!(py, "slow"))?.is_truthy()? {
            return Ok(None);
        }
        // As QueueChoice.next does.
        let choice = publish.getattr(intern!(py, "choice"))?;
        let targets = choice.getattr(intern!(py, "queues"))?.downcast_into::<PyTuple>()?;
        let cursor: usize = choice.getattr(intern!(py, "_cursor"))?.extract()?;
        let target = targets.get_item(cursor)?;
        let Some(connection) = sends.live.bind(py).get_item(target.getattr(intern!(py, "address"))?)? else {
            return Ok(None);
        };
        let Some(opaque) = next_opaque(&connection)? else { return Ok(None) };
        let (name, broker) = (publish.getattr(intern!(py, "name"))?, target.getattr(intern!(py, "broker_name"))?);
        let Some(queue_id) = long(&target.getattr(intern!(py, "queue_id"))?) else { return Ok(None) };
        let (Some(name), Some(broker)) = (utf8(&name), utf8(&broker)) else { return Ok(None) };

        let born = match &sends.wall_ms {
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64),
            Some(clock) => clock.bind(py).call0()?.extract()?,
        };
        let ids = sends.sender.bind(py).getattr(intern!(py, "ids"))?;
        let msg_id = match next_id(&ids, born)? {
            Some(plain) => plain,
            None => ids.call_method1(intern!(py, "next"), (born,))?,
        };
        let head = msg_id.downcast::<PyString>()?.to_str().ok().and_then(|id| {
            let mut to = begin_head(SEND_MESSAGE_V2, opaque, sends.version, 14)?;
            to.extend_from_slice(&sends.group);
            pack_text(&mut to, name)?;
            to.extend_from_slice(&sends.default_topic);
            for number in [queue_id, 0, born, 0] {
                pack_number(&mut to, number);
            }
            pack_text(&mut to, &["UNIQ_KEY\x01", id, "\x02"].concat())?;
            to.extend_from_slice(&[0, 0xC2, 0xC0, 0xC2]);
            pack_text(&mut to, broker)?;
            end_head(to, size)
        });
        let Some(head) = head else { return Ok(None) };
        choice.setattr(intern!(py, "_cursor"), if cursor + 1 < targets.len() { cursor + 1 } else { 0 })?;
        let future = new_future(&connection)?;
        let sent = Bound::new(
            py,
            Sent {
                future: future.unbind(),
                publish: publish.unbind(),
                target: target.unbind(),
                msg_id: msg_id.unbind(),
                born,
                sends: slf.clone().unbind(),
            },
        )?;
        let until = Until { timeout, deadline: Some(deadline) };
        queue(&connection, opaque, sends.code.bind(py), until, sent.as_any(), &head, body)?;
        Ok(Some(sent))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.opened)?;
        visit.call(&self.live)?;
        visit.call(&self.sender)
    }
}

/// As UniqueIds.next does; None where another millisecond begins.
fn next_id<'py>(ids: &Bound<'py, PyAny>, now: i64) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = ids.py();
    let count = number(ids, intern!(py, "_count"))?;
    if now > number(ids, intern!(py, "_last"))? || count >= number(ids, intern!(py, "_stop"))? {
        return Ok(None);
    }
    let head = ids.getattr(intern!(py, "_head"))?;
    let Some(head) = utf8(&head) else { return Ok(None) };
    let mut id = String::with_capacity(64);
    id.push_str(head);
    for shift in [12, 8, 4, 0] {
        id.push(char::from(b"0123456789ABCDEF"[((count + 1) >> shift & 15) as usize]));
    }
    ids.setattr(intern!(py, "_count"), count + 1)?;
    Ok(Some(PyString::new(py, &id).into_any()))
}

/// Takes off `frames`, the next of which stands last, the plain answers to a client's requests; whether there were any.
#[pyfunction]
pub fn take_answers<'py>(
    py: Python<'py>,
    connection: &Bound<'py, PyAny>,
    frames: &Bound<'py, PyList>,
) -> PyResult<bool> {
    if number(connection, intern!(py, "_peer_type"))? != i64::from(MSGPACK) {
        return Ok(false);
    }
    let requests = connection.getattr(intern!(py, "_requests"))?.downcast_into::<PyDict>()?;
    let mut taken = 0;
    let mut outcome = Ok(());
    for frame in frames.iter().rev() {
        let (kind, header, body): (u32, Bound<'py, PyAny>, Bound<'py, PyAny>) = frame.extract()?;
        let (MSGPACK, Some(header)) = (kind, bytes(&header)) else { break };
        let Some(answer) = envelope(header).filter(|answer| answer.numbers[1] & RESPONSE != 0) else { break };
        taken += 1;
        outcome = give(&requests, &answer, body);
        if outcome.is_err() {
            break;
        }
    }
    let count = frames.len();
    frames.del_slice(count - taken, count)?;
    outcome.map(|()| taken > 0)
}

/// An answer to who waits for it.
fn give<'py>(requests: &Bound<'py, PyDict>, answer: &Envelope<'_>, body: Bound<'py, PyAny>) -> PyResult<()> {
    let py = requests.py();
    let opaque = answer.numbers[2];
    let Some(waiting) = requests.get_item(opaque)? else { return Ok(()) };
    let sent = waiting.downcast_exact::<Sent>().ok().map(Bound::get);
    let receipt = sent.map_or(Ok(None), |sent| sent.receipt(py, answer))?;
    let result = match receipt {
        Some(receipt) => receipt,
        None => command(py, answer, body, MSGPACK.into_pyobject(py)?.into_any())?,
    };
    // Not before there is a result: the end of the connection is that of whatever waits in there, and of nothing else.
    requests.del_item(opaque)?;
    if let Some(sent) = sent {
        return if sent.done(py)?.is_truthy()? { Ok(()) } else { sent.set_result(py, &result) };
    }
    if waiting.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    waiting.call_method1(intern!(py, "set_result"), (result,)).map(drop)
}
