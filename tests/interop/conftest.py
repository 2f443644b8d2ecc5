"""Interop needs a JDK, Maven artifacts and minutes: skipped unless ``-m interop`` or AIOROCKET_INTEROP=1 asks for it.

With AIOROCKET_REQUIRE_INTEROP=1 (``.ci/run``) it always runs and a missing program is a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.interop import works
from tests.interop.peers import (
    OLDER,
    Admin,
    Command,
    JavaClient,
    Server,
    apache_server,
    fetch_jars,
    missing_programs,
    our_server,
    wait_for_statistics,
)

_AUTH = "org.apache.rocketmq.auth"
#: Of an Apache broker that manages users and rights and asks nobody for them.
USERS = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("interop") and (reason := missing_programs()):
        absent(reason)


#: Ids of the tests that passed, without the folder.
_passed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid.removeprefix("tests/interop/"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """AIOROCKET_WORKS names the file for the table of peers and features; a worker knows of its own tests only."""
    path = os.environ.get("AIOROCKET_WORKS")
    if path and not hasattr(session.config, "workerinput"):
        Path(path).write_text(works.table(_passed))


def absent(reason: str) -> NoReturn:
    """What a test needs is not on this machine: it is skipped, or fails where interop is required."""
    if os.environ.get("AIOROCKET_REQUIRE_INTEROP") == "1":
        pytest.fail(f"interop is required here: {reason}", pytrace=False)
    pytest.skip(f"interop: {reason}")


@pytest.fixture(scope="session")
def jars() -> Path:
    return fetch_jars()


@pytest.fixture(scope="session")
def apache(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with apache_server(jars, tmp_path_factory.mktemp("apache"), more=USERS) as server:
        wait_for_statistics(server)
        yield server


@pytest.fixture(scope="session")
def apache_older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With access control, from which this machine is exempt."""
    place = tmp_path_factory.mktemp("apache-older")
    (place / "conf").mkdir()
    (place / "conf" / "plain_acl.yml").write_text("globalWhiteRemoteAddresses:\n- 127.0.0.*\naccounts: []\n")
    with apache_server(fetch_jars(OLDER), place, more={"aclEnable": "true"}) as server:
        wait_for_statistics(server)
        yield server


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with our_server(tmp_path_factory.mktemp("ours")) as server:
        yield server


@pytest.fixture(params=["apache", "ours"])
def server(request: pytest.FixtureRequest) -> Server:
    """Both, unless a module has another."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def java(tmp_path: Path) -> AsyncIterator[JavaClient]:
    client = JavaClient(tmp_path)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def java_older(tmp_path: Path) -> AsyncIterator[JavaClient]:
    client = JavaClient(tmp_path, OLDER)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def mqadmin(server: Server, tmp_path: Path) -> Iterator[Command]:
    """Apache's mqadmin at a module's ``server``: one process for a test, in a thread, for it may ask the test's own
    client."""
    with Admin(tmp_path / "mqadmin", server.nameserver) as admin:
        yield partial(asyncio.to_thread, admin)
