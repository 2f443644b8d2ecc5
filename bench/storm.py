"""What a neighbour of a storm of connections waits, and what a connection costs the broker.

    python -m bench.storm

One client asks for the end of a queue every 2 ms, first alone, then while another process opens 5,000 connections and
keeps them, opens and closes 20,000, or leaves 2,000 with a frame half sent. Before each of these the same goes to a
server that accepts and does nothing else, while the client asks the broker: what the machine itself takes. Beside the
times, which a busy machine makes longer, stands the CPU time of the longest turn of the broker's loop, which it does
not. Exits with 1 when the client's p99 is above 5 times that of the quiet, unless the turns say that it was not the
broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

from aiorocket.broker import Broker
from aiorocket.cli.serving import spare_the_collector
from aiorocket.config import BrokerConfig, RemotingConfig
from aiorocket.remoting import RemotingClient
from aiorocket.runtime import memory_env, new_event_loop
from aiorocket_protocol import GetMaxOffsetRequestHeader, RemotingCommand, RequestCode
from bench.processes import Child

#: Kind of storm -> connections.
STORMS = {"open": 5_000, "short": 20_000, "half frames": 2_000}
HALF = (100_000).to_bytes(4, "big") + b"\0\0\0\x10abc"
#: The neighbour's p99, in p99 of the quiet.
FLOOR = 5.0
#: Seconds of CPU in one turn of the loop that nobody waits for in earnest.
SHORT = 0.005


async def serve() -> None:
    """A broker that answers each line of standard input with the CPU of its turns since the last one."""
    broker = Broker(memory_env(), BrokerConfig(port=0))
    await broker.start()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    turns: list[float] = []
    last = [time.thread_time()]

    def tick() -> None:
        now = time.thread_time()
        turns.append(now - last[0])
        last[0] = now
        loop.call_later(0.001, tick)

    def asked() -> None:
        if not os.read(0, 100):
            ended.set()
            return
        turns.sort()
        print(json.dumps({"p99": turns[int(len(turns) * 0.99)], "longest": turns[-1]}), flush=True)
        turns.clear()

    spare_the_collector()  # as `aiorocket broker` does
    tick()
    loop.add_reader(0, asked)
    print(json.dumps({"port": broker.port}), flush=True)
    await ended.wait()
    await broker.close()


def accept() -> None:
    """A server that does nothing, until it is terminated; it drops the oldest connections."""
    kept = deque[socket.socket](maxlen=max(STORMS["open"], STORMS["half frames"]))
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        while True:
            kept.append(server.accept()[0])


def storm(port: int, kind: str) -> None:
    os.nice(19)  # it comes from elsewhere: what it takes of these cores is not the neighbour's
    links = []
    for _ in range(STORMS[kind]):
        link = socket.create_connection(("127.0.0.1", port), 60)
        if kind == "short":
            link.close()
            continue
        if kind == "half frames":
            link.sendall(HALF)
        links.append(link)


async def neighbour(port: int, goes_on: Callable[[], bool]) -> list[float]:
    """Milliseconds from each request to its answer, ascending."""
    client, took = RemotingClient(memory_env(), RemotingConfig()), list[float]()
    link = await client.connect(f"127.0.0.1:{port}")
    while goes_on() or len(took) < 100:
        begun = time.perf_counter()
        header = GetMaxOffsetRequestHeader("TBW102", 0)
        await link.request(RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header), 60)
        took.append((time.perf_counter() - begun) * 1e3)
        await asyncio.sleep(0.002)
    await client.close()
    return sorted(took)


async def beside(port: int, stormed: int, kind: str) -> list[float]:
    """The neighbour's, while a storm goes to a port."""
    with subprocess.Popen([sys.executable, "-m", "bench.storm", "--storm", str(stormed), kind]) as child:
        return await neighbour(port, lambda: child.poll() is None)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    late = False
    with (
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        Child("broker", "-m", "bench.storm", "--serve") as broker,
        Child("control", "-m", "bench.storm", "--accept") as control,
    ):
        port, nothing = broker.answer()["port"], control.answer()["port"]
        end = time.monotonic() + 5
        quiet = runner.run(neighbour(port, lambda: time.monotonic() < end))
        calm = broker.ask()
        print(f"{'quiet':12} {_times(quiet)}, longest turn {calm['longest'] * 1e3:.1f} ms of CPU")
        for kind, count in STORMS.items():
            alone = runner.run(beside(port, nothing, kind))
            broker.ask()
            before = broker.cpu()
            took = runner.run(beside(port, port, kind))
            spent, turns = broker.cpu() - before, broker.ask()
            ratio = _p99(took) / _p99(quiet)
            print(f"{kind:12} {_times(alone)}, {_p99(alone) / _p99(quiet):.1f} times quiet: the control")
            late = late or (ratio > FLOOR and turns["p99"] > SHORT)
            print(
                f"{'':12} {_times(took)}, {ratio:.1f} times quiet, {_p99(took) / _p99(alone):.1f} the control; turns "
                f"p99 {turns['p99'] * 1e3:.1f} ms, longest {turns['longest'] * 1e3:.1f} ms of CPU, "
                f"{spent / count * 1e6:.0f} us of CPU a connection"
            )
    sys.exit(late)


def _p99(took: list[float]) -> float:
    return took[int(len(took) * 0.99)]


def _times(took: list[float]) -> str:
    return f"{len(took):6,} requests: p50 {took[len(took) // 2]:.2f}, p99 {_p99(took):.2f}, longest {took[-1]:.1f} ms"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        new_event_loop().run_until_complete(serve())
    elif sys.argv[1:2] == ["--accept"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        accept()
    elif sys.argv[1:2] == ["--storm"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        storm(int(sys.argv[2]), sys.argv[3])
    else:
        main()
