"""A shop (FastAPI). Orders come by HTTP, are paid by a listener, and each payment is announced once.

POST /orders            the order is in the database and in its topic, or in neither: a transactional message
the listener ``pay``    pays each order once, however often its message comes; what the bank refuses is tried again
the outbox              the announcement is a row of the transaction that pays
GET /orders/{id}        how far it is
GET /dead-letters       what could not be paid, as a page; POST /dead-letters/replay tries all of it again

``python order_service.py NAMESERVER DATABASE_URL`` serves it on a free port, which it prints.
"""

from __future__ import annotations

import asyncio
import html
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from aiorocket import (
    Admin,
    Client,
    DeadLetter,
    Message,
    ProducerConfig,
    Retry,
    RocketError,
    Router,
    TransactionProducer,
    TxState,
)
from aiorocket.sql import Outbox, Processed
from aiorocket.web.fastapi import MQ, readiness

metadata = sa.MetaData()
outbox, processed = Outbox(metadata), Processed(metadata)
orders = sa.Table(
    "orders", metadata,
    sa.Column("id", sa.String(64), primary_key=True), sa.Column("customer", sa.Text, nullable=False),
    sa.Column("amount", sa.Integer, nullable=False), sa.Column("status", sa.Text, nullable=False),
    sa.Column("message_id", sa.String(64), nullable=False, index=True),
)  # fmt: skip


class Order(BaseModel):
    id: str
    customer: str
    amount: int


@dataclass
class Payment:
    order: str
    amount: int


@dataclass
class Shop:
    """What listeners and requests share."""

    sessions: async_sessionmaker[AsyncSession]
    #: Customers whose bank does not answer.
    closed: set[str] = field(default_factory=set)


router = Router("payments")


@router.listener("orders", start_from="first", max_attempts=3)
async def pay(order: Order, message: Message, state: Shop) -> None:
    if order.amount <= 0:
        raise DeadLetter(f"order {order.id} of {order.amount} cannot be paid")
    if order.customer in state.closed:
        raise Retry(after=1)
    async with state.sessions.begin() as session:
        if not await processed.first(session, message):
            return
        await session.execute(orders.update().where(orders.c.id == order.id).values(status="paid"))
        await outbox.put(session, "payments-made", Payment(order.id, order.amount), sharding_key=order.customer)


class State(TypedDict):
    mq: Client
    producer: TransactionProducer
    shop: Shop


def create(nameserver: str, database: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        engine = create_async_engine(database)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        shop = Shop(async_sessionmaker(engine))

        async def was_placed(message: Message) -> TxState:
            async with shop.sessions() as session:
                found = await session.execute(sa.select(orders.c.id).where(orders.c.message_id == message.msg_id))
                # Not there yet is no answer: its transaction may be about to commit.
                return TxState.COMMIT if found.first() else TxState.UNKNOWN

        async with Client(nameservers=nameserver, ensure_topics=["orders", "payments-made"]) as mq:
            mq.include(router, state=shop)
            placing = mq.transaction_producer("shop", checker=was_placed)
            announcing = mq.producer("shop-outbox", config=ProducerConfig(idempotent=True))
            async with placing, announcing, mq.running(drain_timeout=10):
                relay = asyncio.create_task(outbox.relay(engine, announcing, interval=0.1))
                yield {"mq": mq, "producer": placing, "shop": shop}
                relay.cancel()
                await asyncio.gather(relay, return_exceptions=True)
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.include_router(readiness("/readyz"))

    @app.post("/orders", status_code=202)
    async def place(order: Order, request: Request) -> dict[str, str]:
        producer: TransactionProducer = request.state.producer
        shop: Shop = request.state.shop
        try:
            async with producer.transaction("orders", order, keys=[order.id]) as tx, shop.sessions.begin() as session:
                row = {**order.model_dump(), "status": "placed", "message_id": tx.id}
                await session.execute(orders.insert().values(row))
        except IntegrityError:
            raise HTTPException(409, f"there is an order {order.id}") from None
        except RocketError as error:
            raise HTTPException(503, str(error)) from None
        return {"message": tx.id}

    @app.get("/orders/{number}")
    async def show(number: str, request: Request) -> dict[str, str]:
        shop: Shop = request.state.shop
        async with shop.sessions() as session:
            found = await session.execute(sa.select(orders.c.status).where(orders.c.id == number))
            status = found.scalar_one_or_none()
        if status is None:
            raise HTTPException(404)
        return {"status": status}

    @app.put("/banks/{customer}", status_code=204)
    async def bank(customer: str, is_open: bool, request: Request) -> None:
        shop: Shop = request.state.shop
        (shop.closed.discard if is_open else shop.closed.add)(customer)

    @app.get("/dead-letters", response_class=HTMLResponse)
    async def dead_letters(mq: MQ) -> str:
        rows = []
        async with Admin(client=mq) as admin:
            async for dead in admin.dlq("payments").messages(limit=100):
                cells = (*dead.keys, dead.error, dead.reason, "replayed" if dead.replayed else "")
                rows.append("".join(f"<td>{html.escape(each)}</td>" for each in cells))
        return f"<table>{''.join(f'<tr>{each}</tr>' for each in rows)}</table>"

    @app.post("/dead-letters/replay")
    async def replay(mq: MQ) -> dict[str, int]:
        async with Admin(client=mq) as admin:
            report = await admin.dlq("payments").replay(rate=100, confirm=True)
        return {"sent": report.sent, "failed": report.failed, "skipped": report.skipped}

    return app


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(create(*sys.argv[1:]), ws="none", access_log=False)).run(sockets=[listening])
