"""A small FastAPI service: POST /orders takes an order, a listener bakes it, GET /orders/{id} says how far it is.

``python bakery.py NAMESERVER [START [DRAIN]]`` serves it on a free port, which it prints.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

import aiorocket
from aiorocket.web.fastapi import MQ, readiness, rocketmq_lifespan

#: Patience with servers that are not there, at the start, and with listeners, at the end.
START = DRAIN = 30.0
#: A broker that was away is looked at a moment later.
SOON = aiorocket.ConsumerConfig(pull_error_delay=0.2)

router = aiorocket.Router()


class Order(BaseModel):
    id: str
    seconds: float = 0.0


@router.listener("orders", start_from="first")
async def bake(message: aiorocket.Message, state: Any) -> None:
    order = Order.model_validate_json(message.body)
    state.orders[order.id] = "in the oven"
    await asyncio.sleep(order.seconds)
    await state.mq.send("baked", message.body, keys=[order.id])
    state.orders[order.id] = "baked"


def create(nameserver: str, start: float = START, drain: float = DRAIN) -> FastAPI:
    lifespan = rocketmq_lifespan(
        group="bakery",
        routers=[router],
        drain_timeout=drain,
        config=aiorocket.ClientConfig(nameservers=(nameserver,), start_timeout=start, consumer=SOON),
    )
    app = FastAPI(lifespan=lifespan)
    app.state.orders = {}
    app.include_router(readiness("/readyz"))

    @app.post("/orders", status_code=202)
    async def take(order: Order, mq: MQ) -> dict[str, str]:
        receipt = await mq.send("orders", json.dumps(order.model_dump()).encode(), keys=[order.id])
        return {"msg_id": receipt.msg_id}

    @app.get("/orders/{number}")
    async def show(number: str, request: Request) -> dict[str, str]:
        if number not in request.app.state.orders:
            raise HTTPException(404)
        return {"status": request.app.state.orders[number]}

    return app


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(create(sys.argv[1], *map(float, sys.argv[2:])), ws="none"))
        server.run(sockets=[listening])
        sys.exit(0 if server.started else 3)
