"""A service with the newest FastAPI, gRPC, protobuf and OpenTelemetry in one environment: an order over HTTP, its
message to a listener, the spans of both over gRPC to a collector. ``.ci/run beside`` installs them and runs it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as spans_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as spans_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from aiorocket import Router
from aiorocket.telemetry.otel import OpenTelemetry
from aiorocket.testing import broker_thread
from aiorocket.web.fastapi import MQ, readiness, rocketmq_lifespan


@dataclass
class Order:
    id: str
    amount: int


class Collector(spans_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.names: list[str] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.names += [each.name for by in request.resource_spans for part in by.scope_spans for each in part.spans]
        return spans_pb2.ExportTraceServiceResponse()


def service(nameservers: str, provider: TracerProvider, billed: threading.Event) -> FastAPI:
    router = Router("billing")

    @router.listener("orders", start_from="first")
    async def bill(order: Order) -> None:
        assert order == Order("o-1", 42)
        billed.set()

    app = FastAPI(
        lifespan=rocketmq_lifespan(
            nameservers=nameservers, group="shop", routers=[router], middleware=[OpenTelemetry(provider)]
        )
    )
    app.include_router(readiness())

    @app.post("/orders", status_code=202)
    async def take(order: Order, mq: MQ) -> str:
        return (await mq.send("orders", order, keys=[order.id])).msg_id

    return app


def main() -> None:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    spans_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"127.0.0.1:{port}", insecure=True)))
    billed = threading.Event()
    with broker_thread() as mq, TestClient(service(mq.nameserver_address, provider, billed)) as shop:
        assert shop.post("/orders", json={"id": "o-1", "amount": 42}).status_code == 202
        assert billed.wait(30)
        assert shop.get("/readyz").status_code == 200
        mq.settled()
    provider.shutdown()
    server.stop(None).wait()
    assert sorted(collector.names) == ["process orders", "send orders"], collector.names
    beside = "fastapi", "pydantic", "grpcio", "protobuf", "opentelemetry-sdk", "aiohttp", "sqlalchemy"
    print("works beside " + ", ".join(f"{name} {version(name)}" for name in beside))


if __name__ == "__main__":
    main()
