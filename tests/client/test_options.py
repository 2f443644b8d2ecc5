"""What people write is checked before it runs: no public call takes options that nothing knows."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, get_type_hints

import pytest

import aiorocket
from aiorocket import (
    Client,
    Consumer,
    Embedded,
    Message,
    OnewayOptions,
    Producer,
    PullConsumer,
    Router,
    SendOptions,
    TransactionProducer,
    UsageError,
)

#: What a factory knows itself.
_GIVEN = {"self", "group", "nameservers", "client"}


def public_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of this project among the public names, and the public methods of its public classes."""
    for name in aiorocket.__all__:
        value = getattr(aiorocket, name)
        calls = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else [("", value)]
        for method, call in calls:
            if getattr(call, "__module__", "").startswith("aiorocket") and (
                method == "__init__" or not method.startswith("_")
            ):
                yield f"{name}.{method}", call


def parameters(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Its parameters; ``**options: Unpack[SendOptions]`` are those that ``SendOptions`` spells out."""
    found = dict(inspect.signature(call).parameters)
    for name, each in list(found.items()):
        spelled = re.fullmatch(r"Unpack\[(\w+)\]", str(each.annotation))
        if each.kind is each.VAR_KEYWORD and spelled:
            del found[name]
            for option in get_type_hints(getattr(aiorocket, spelled[1])):
                found[option] = inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY)
    return found


def test_no_public_call_swallows_what_nobody_knows() -> None:
    """Else a misspelt option is no error for mypy, and no editor completes it."""
    calls = dict(public_calls())
    assert {"Client.consumer", "Embedded.producer", "Client.send", "Consumer.__init__"} <= calls.keys()
    swallowing = [
        name for name, call in calls.items() if any(each.kind is each.VAR_KEYWORD for each in parameters(call).values())
    ]
    assert swallowing == []


@pytest.mark.parametrize(
    ("factory", "made", "given"),
    [
        (Client.producer, Producer, {"env"}),
        (Client.transaction_producer, TransactionProducer, {"env"}),
        (Client.consumer, Consumer, {"env"}),
        (Client.pull_consumer, PullConsumer, {"env"}),
        (Embedded.client, Client, set()),
        (Embedded.producer, Producer, set()),
        (Embedded.transaction_producer, TransactionProducer, set()),
        (Embedded.consumer, Consumer, set()),
        (Embedded.pull_consumer, PullConsumer, set()),
    ],
)
def test_a_factory_takes_the_options_of_what_it_makes(factory: Callable[..., Any], made: type, given: set[str]) -> None:
    wanted = {name: each for name, each in parameters(made).items() if name not in _GIVEN | given}
    taken = {name: each for name, each in parameters(factory).items() if name not in _GIVEN}
    assert taken == wanted


@pytest.mark.parametrize("verb", ["send", "send_oneway"])
def test_a_client_sends_as_a_producer_does(verb: str) -> None:
    assert parameters(getattr(Client, verb)).keys() == parameters(getattr(Producer, verb)).keys()
    hints = get_type_hints(getattr(Producer, verb))
    for name, hint in get_type_hints(SendOptions if verb == "send" else OnewayOptions).items():
        assert hint == hints[name], name


def test_a_client_is_whole_before_its_start() -> None:
    client = Client(nameservers="127.0.0.1:1", group="g")
    assert client.session.routes.known("t") is None
    assert client.session.remoting.connections == []
    assert client.health().reasons == ("the client is not running",)
    with pytest.raises(UsageError, match="not started"):
        _ = client.session.loop


async def yields(message: Message) -> AsyncIterator[bytes]:
    yield message.body


class Yields:
    def __call__(self, message: Message) -> Iterator[bytes]:
        yield message.body


@pytest.mark.parametrize("listener", [yields, partial(yields), Yields()])
@pytest.mark.parametrize("register", [Router.listener, Router.batch, Router.orderly])
def test_a_listener_that_yields_is_refused(register: Callable[..., Any], listener: Callable[..., Any]) -> None:
    """To call it runs none of it, and so each of its messages would count as consumed."""
    with pytest.raises(UsageError, match="must not yield"):
        register(Router(), "orders")(listener)
    with pytest.raises(UsageError, match="must be a function"):
        register(Router(), "orders")(b"no function")


@pytest.mark.parametrize("register", [Router.listener, Router.batch, Router.orderly])
@pytest.mark.parametrize("options", [{"tags": ["a", "b"]}, {"tags": None, "sql": "a = 1"}])
def test_tags_are_text(register: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="between several"):
        register(Router(), "orders", **options)
