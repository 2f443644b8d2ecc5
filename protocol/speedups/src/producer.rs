//! A producer's plain sends: each begun in one call, and the answers to those that came behind each other in another.
//!
//! What it does is what `Producer.send`, `Connection.request` and `Connection._handle` of aiorocket do, in their fields.
//! Everything is looked at before anything is changed: whatever is not plain leaves no trace. A field of a Python object
//! costs more than all bytes of a request, so what stays the same is kept here: of a topic with its `Publish`, of a
//! connection as long as it is open, of the message ids for their millisecond.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::asyncio::InvalidStateError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};

use crate::headers::{command, envelope, pack_length, pack_number, pack_text, take, Envelope, Value};
use crate::plain_send::number;
use crate::post::{begin_head, end_envelope, end_head, next_opaque, put, MAX_OPAQUE};
use crate::properties::utf8;
use crate::{bytes, long};

const SEND_MESSAGE_V2: i64 = 310;
const MSGPACK: u32 = 0x4D;
const RESPONSE: i32 = 1;
const ID: &str = "UNIQ_KEY\x01";
/// As long as that a FIFO of a TimeoutQueue is never pruned.
const SHORT: usize = 1024;

/// What plain sends to one queue have in common: the header's bytes around opaque, time and id.
struct Route {
    target: Py<PyAny>,
    queue: Py<PyAny>,
    address: Py<PyAny>,
    before_time: Vec<u8>,
    end: Vec<u8>,
}

/// Those of a topic, which its Publish keeps.
#[pyclass(frozen)]
pub struct Routes {
    choice: Py<PyAny>,
    routes: Vec<Route>,
    receipt: Py<PyAny>,
    ok: Py<PyAny>,
}

impl Routes {
    /// None for what does not pack.
    fn new<'py>(sends: &ProducerSends, publish: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Self>>> {
        let py = publish.py();
        let choice = publish.getattr(intern!(py, "choice"))?;
        let name = publish.getattr(intern!(py, "name"))?;
        let mut routes = Vec::new();
        for target in choice.getattr(intern!(py, "queues"))?.downcast::<PyTuple>()?.iter() {
            let broker = target.getattr(intern!(py, "broker_name"))?;
            let Some(queue_id) = long(&target.getattr(intern!(py, "queue_id"))?) else { return Ok(None) };
            let (Some(name), Some(broker)) = (utf8(&name), utf8(&broker)) else { return Ok(None) };
            let (mut before_time, mut end) = (sends.fields.clone(), vec![2, 0, 0xC2, 0xC0, 0xC2]);
            if pack_text(&mut before_time, name).is_none() || pack_text(&mut end, broker).is_none() {
                return Ok(None);
            }
            before_time.extend_from_slice(&sends.default_topic);
            pack_number(&mut before_time, queue_id);
            before_time.push(0);
            routes.push(Route {
                queue: target.getattr(intern!(py, "queue"))?.unbind(),
                address: target.getattr(intern!(py, "address"))?.unbind(),
                target: target.unbind(),
                before_time,
                end,
            });
        }
        let (receipt, ok) = (sends.receipt.clone_ref(py), sends.ok.clone_ref(py));
        Bound::new(py, Self { choice: choice.unbind(), routes, receipt, ok }).map(Some)
    }
}

/// What of a connection stays the same while it is open: it has spoken msgpack, and goes on.
struct Wire {
    connection: Py<PyAny>,
    create_future: Py<PyAny>,
    requests: Py<PyDict>,
    /// Of its TimeoutQueue.
    fifos: Py<PyDict>,
}

impl Wire {
    /// None where a request has something else to do, see `next_opaque`.
    fn new(connection: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = connection.py();
        if next_opaque(connection)?.is_none() {
            return Ok(None);
        }
        let timeouts = connection.getattr(intern!(py, "_timeouts"))?;
        Ok(Some(Self {
            connection: connection.clone().unbind(),
            create_future: connection.getattr(intern!(py, "_loop"))?.getattr(intern!(py, "create_future"))?.unbind(),
            requests: connection.getattr(intern!(py, "_requests"))?.downcast_into::<PyDict>()?.unbind(),
            fifos: timeouts.getattr(intern!(py, "_fifos"))?.downcast_into::<PyDict>()?.unbind(),
        }))
    }
}

/// Message ids of one millisecond, as UniqueIds has them.
#[derive(Default)]
struct Ids {
    last: i64,
    stop: i64,
    text: String,
    /// Of the text what all have in common.
    head: usize,
}

impl Ids {
    /// As UniqueIds.next does, into `text`.
    fn next(&mut self, ids: &Bound<'_, PyAny>, now: i64) -> PyResult<Option<()>> {
        let py = ids.py();
        let last = number(ids, intern!(py, "_last"))?;
        let count = number(ids, intern!(py, "_count"))?;
        if last != self.last || self.text.is_empty() {
            let head = ids.getattr(intern!(py, "_head"))?;
            let Some(head) = utf8(&head) else { return Ok(None) };
            let stop = number(ids, intern!(py, "_stop"))?;
            *self = Self { last, stop, text: head.to_owned(), head: head.len() };
        }
        self.text.truncate(self.head);
        if now > last || count >= self.stop {
            let id = ids.call_method1(intern!(py, "next"), (now,))?;
            self.text.clear();
            let Some(id) = utf8(&id) else { return Ok(None) };
            self.text.push_str(id);
            self.last = -1; // nobody's: it is read anew
            return Ok(Some(()));
        }
        for shift in [12, 8, 4, 0] {
            self.text.push(char::from(b"0123456789ABCDEF"[((count + 1) >> shift & 15) as usize]));
        }
        ids.setattr(intern!(py, "_count"), count + 1)?;
        Ok(Some(()))
    }
}

#[derive(Default)]
struct Kept {
    wires: Vec<Wire>,
    /// Who makes message ids, once they were asked for.
    maker: Option<Py<PyAny>>,
    ids: Ids,
    head: Vec<u8>,
}

/// One send under way. To its connection it is the future of the answer; `future` gets the receipt of a plain one, else
/// the answer, or the error there was instead.
#[pyclass(frozen)]
pub struct Sent {
    #[pyo3(get)]
    future: Py<PyAny>,
    #[pyo3(get)]
    publish: Py<PyAny>,
    #[pyo3(get)]
    msg_id: Py<PyString>,
    #[pyo3(get)]
    born: i64,
    routes: Py<Routes>,
    at: usize,
}

#[pymethods]
impl Sent {
    #[getter]
    fn target(&self) -> &Py<PyAny> {
        &self.routes.get().routes[self.at].target
    }

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
        let routes = self.routes.get();
        let queue = &routes.routes[self.at].queue;
        let fields = (&self.msg_id, queue, offset, offset_msg_id, &routes.ok, py.None());
        routes.receipt.bind(py).call1((fields,)).map(Some)
    }

    /// Gives it to whoever waits; who does not any more gets none.
    fn end<'py>(&self, result: &Bound<'py, PyAny>) -> PyResult<()> {
        static FUTURE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        static SET_RESULT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = result.py();
        let future = self.future.bind(py);
        let class = FUTURE.import(py, "asyncio", "Future")?;
        let ended = if future.get_type().is(class) {
            // A method that is bound for each call is a third of it.
            let set = SET_RESULT.get_or_try_init(py, || class.getattr("set_result").map(Bound::unbind))?;
            set.bind(py).call1((future, result))
        } else {
            future.call_method1(intern!(py, "set_result"), (result,))
        };
        match ended {
            Err(error) if error.is_instance_of::<InvalidStateError>(py) => Ok(()),
            ended => ended.map(drop),
        }
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
    code: Py<PyInt>,
    compress_over: usize,
    /// A header up to its opaque.
    begin: Vec<u8>,
    /// From its opaque to the topic, packed, and the fields behind that.
    fields: Vec<u8>,
    default_topic: Vec<u8>,
    kept: Mutex<Kept>,
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
        let (mut fields, mut behind) = (Vec::new(), Vec::new());
        end_envelope(&mut fields, version, 14);
        let _ = (pack_text(&mut fields, group), pack_text(&mut behind, default_topic));
        pack_number(&mut behind, queues);
        Ok(Self {
            opened,
            live,
            sender,
            wall_ms,
            receipt,
            ok,
            code: SEND_MESSAGE_V2.into_pyobject(py)?.unbind(),
            compress_over,
            begin: begin_head(SEND_MESSAGE_V2),
            fields,
            default_topic: behind,
            kept: Mutex::default(),
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
        let Some(routes) = sends.routes(&publish)? else { return Ok(None) };
        // As QueueChoice.next does.
        let choice = routes.get().choice.bind(py);
        let cursor: usize = choice.getattr(intern!(py, "_cursor"))?.extract()?;
        let Some(route) = routes.get().routes.get(cursor) else { return Ok(None) };
        let Some(connection) = sends.live.bind(py).get_item(&route.address)? else { return Ok(None) };
        // Nobody else is in here, unless a collection of garbage sends.
        let Ok(mut kept) = sends.kept.try_lock() else { return Ok(None) };
        let Kept { wires, maker, ids, head } = &mut *kept;
        let Some(at) = wire(wires, &connection)? else { return Ok(None) };
        if connection.getattr(intern!(py, "closed"))?.is_truthy()? {
            wires.swap_remove(at);
            return Ok(None);
        }
        let wire = &wires[at];
        let waiting = number(&connection, intern!(py, "_out_bytes"))?;
        if waiting > 0 && waiting > number(&connection.getattr(intern!(py, "config"))?, intern!(py, "write_limit"))? {
            return Ok(None);
        }
        let born = match &sends.wall_ms {
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64),
            Some(clock) => clock.bind(py).call0()?.extract()?,
        };
        if maker.is_none() {
            *maker = Some(sends.sender.bind(py).getattr(intern!(py, "ids"))?.unbind());
        }
        let Some(maker) = maker else { return Ok(None) };
        if ids.next(maker.bind(py), born)?.is_none() {
            return Ok(None);
        }
        let sent = Bound::new(
            py,
            Sent {
                future: wire.create_future.bind(py).call0()?.unbind(),
                publish: publish.unbind(),
                msg_id: PyString::new(py, &ids.text).unbind(),
                born,
                routes: routes.clone().unbind(),
                at: cursor,
            },
        )?;
        let opaque = (number(&connection, intern!(py, "_opaque"))? + 1) & MAX_OPAQUE;
        head.clear();
        head.extend_from_slice(&sends.begin);
        pack_number(head, opaque);
        head.extend_from_slice(&route.before_time);
        pack_number(head, born);
        head.push(0);
        if pack_length(head, ID.len() + ids.text.len() + 1).is_none() {
            return Ok(None);
        }
        head.extend_from_slice(ID.as_bytes());
        head.extend_from_slice(ids.text.as_bytes());
        head.extend_from_slice(&route.end);
        if end_head(head, size).is_none() {
            return Ok(None);
        }
        let next = if cursor + 1 < routes.get().routes.len() { cursor + 1 } else { 0 };
        choice.setattr(intern!(py, "_cursor"), next)?;
        let opaque = opaque.into_pyobject(py)?;
        connection.setattr(intern!(py, "_opaque"), &opaque)?;
        wire.requests.bind(py).set_item(&opaque, &sent)?;
        if !wait(wire.fifos.bind(py), timeout, deadline, &opaque, &sends.code)? {
            let timeouts = connection.getattr(intern!(py, "_timeouts"))?;
            timeouts.call_method1(intern!(py, "add"), (timeout, &opaque, &sends.code))?;
        }
        let head = PyBytes::new(py, head);
        drop(kept); // a write may end the connection, and that whatever waits
        put(&connection, head, body, size, waiting)?;
        Ok(Some(sent))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.opened)?;
        visit.call(&self.live)?;
        visit.call(&self.sender)?;
        let Ok(kept) = self.kept.try_lock() else { return Ok(()) };
        for wire in &kept.wires {
            visit.call(&wire.connection)?;
            visit.call(&wire.create_future)?;
            visit.call(&wire.requests)?;
            visit.call(&wire.fifos)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Ok(mut kept) = self.kept.try_lock() {
            kept.wires.clear();
        }
    }
}

impl ProducerSends {
    /// What `publish` keeps, made by its first plain send; None for one whose sends are not plain.
    fn routes<'py>(&self, publish: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Routes>>> {
        let py = publish.py();
        if let Ok(routes) = publish.getattr(intern!(py, "routes"))?.downcast_into_exact::<Routes>() {
            return Ok(Some(routes));
        }
        if publish.getattr(intern!(py, "slow"))?.is_truthy()? {
            return Ok(None);
        }
        let routes = Routes::new(self, publish)?;
        publish.setattr(intern!(py, "routes"), &routes)?;
        Ok(routes)
    }
}

/// Where that of `connection` is; None where its requests have something else to do.
fn wire(wires: &mut Vec<Wire>, connection: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let py = connection.py();
    if let Some(at) = wires.iter().position(|wire| wire.connection.is(connection)) {
        return Ok(Some(at));
    }
    let Some(new) = Wire::new(connection)? else { return Ok(None) };
    wires.retain(|wire| {
        wire.connection.bind(py).getattr(intern!(py, "closed")).is_ok_and(|closed| !closed.is(PyBool::new(py, true)))
    });
    wires.push(new);
    Ok(Some(wires.len() - 1))
}

/// As TimeoutQueue.add does where it only has to append; False, and nothing done, elsewhere.
fn wait<'py>(
    fifos: &Bound<'py, PyDict>,
    timeout: &Bound<'py, PyAny>,
    deadline: &Bound<'py, PyAny>,
    opaque: &Bound<'py, PyInt>,
    code: &Py<PyInt>,
) -> PyResult<bool> {
    static APPEND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = fifos.py();
    let Some(fifo) = fifos.get_item(timeout)? else { return Ok(false) };
    // Whatever is in it ends before this, and the timer is armed for that.
    if !(1..SHORT).contains(&fifo.len()?) {
        return Ok(false);
    }
    let append = APPEND.get_or_try_init(py, || {
        PyModule::import(py, "collections")?.getattr("deque")?.getattr("append").map(Bound::unbind)
    })?;
    append.bind(py).call1((fifo, (deadline, opaque, code)))?;
    Ok(true)
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
    let opaque = answer.numbers[2].into_pyobject(py)?;
    let Some(waiting) = requests.get_item(&opaque)? else { return Ok(()) };
    let sent = waiting.downcast_exact::<Sent>().ok().map(Bound::get);
    let receipt = sent.map_or(Ok(None), |sent| sent.receipt(py, answer))?;
    let result = match receipt {
        Some(receipt) => receipt,
        None => command(py, answer, body, MSGPACK.into_pyobject(py)?.into_any())?,
    };
    // Not before there is a result: the end of the connection is that of whatever waits in there, and of nothing else.
    requests.del_item(&opaque)?;
    if let Some(sent) = sent {
        return sent.end(&result);
    }
    if waiting.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    waiting.call_method1(intern!(py, "set_result"), (result,)).map(drop)
}
