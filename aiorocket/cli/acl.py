"""``aiorocket acl``"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from aiorocket.cli.asked import asks, changes, confirmed, told

if TYPE_CHECKING:
    from aiorocket import Admin

__all__ = ("acl",)

Work = Callable[["Admin"], Awaitable[int]]


@click.group()
def acl() -> None:
    """Users of brokers with access control, and what they may."""


@acl.command()
@asks
def users() -> Work:
    """Every user on every broker."""

    async def work(admin: Admin) -> int:
        rows = await admin.users.all()
        return told("user", "Users", rows, rows.missing)

    return work


@acl.command()
@click.argument("user", default="")
@asks
def rights(user: str) -> Work:
    """What USER, or everybody, may."""

    async def work(admin: Admin) -> int:
        rows = await admin.users.rights(user)
        return told("right", "Rights", rows, rows.missing)

    return work


@acl.command("create-user")
@click.argument("user")
@click.password_option(envvar="AIOROCKET_PASSWORD", show_envvar=True)
@click.option("--admin", "is_admin", is_flag=True, help="May do everything.")
@changes
def create_user(user: str, password: str, is_admin: bool) -> Work:
    """Make USER; the password is asked for, or taken from the environment."""

    async def work(admin: Admin) -> int:
        done = await admin.users.create(user, password, admin=is_admin)
        return told("changed", f"User {user}", [{"broker": each} for each in done], done.missing)

    return work


@acl.command("update-user")
@click.argument("user")
@click.option("--password", "new_password", is_flag=True, help="Asked for, or AIOROCKET_PASSWORD of the environment.")
@click.option("--admin/--no-admin", "is_admin", default=None, help="May USER do everything?")
@click.option("--enabled/--disabled", default=None, help="May USER sign in?")
@changes
def update_user(user: str, new_password: bool, is_admin: bool | None, enabled: bool | None) -> Work:
    """Change what is given of USER, and nothing else."""
    password = None
    if new_password:
        password = os.environ.get("AIOROCKET_PASSWORD") or click.prompt(
            "Password", hide_input=True, confirmation_prompt=True
        )

    async def work(admin: Admin) -> int:
        done = await admin.users.update(user, password=password, admin=is_admin, enabled=enabled)
        return told("changed", f"User {user}", [{"broker": each} for each in done], done.missing)

    return work


@acl.command("delete-user")
@click.argument("user")
@confirmed
@changes
def delete_user(user: str) -> Work:
    """Delete USER."""

    async def work(admin: Admin) -> int:
        done = await admin.users.delete(user)
        return told("changed", f"User {user}", [{"broker": each} for each in done], done.missing)

    return work


@acl.command()
@click.argument("user")
@click.argument("resource")
@click.argument("actions")
@click.option("--deny", is_flag=True)
@changes
def grant(user: str, resource: str, actions: str, deny: bool) -> Work:
    """Let USER do ACTIONS (Pub,Sub) on RESOURCE (Topic:orders)."""

    async def work(admin: Admin) -> int:
        decision = "Deny" if deny else "Allow"
        done = await admin.users.grant(user, resource, actions.split(","), decision=decision)
        return told("changed", f"User {user}", [{"broker": each} for each in done], done.missing)

    return work


@acl.command()
@click.argument("user")
@click.argument("resource", required=False)
@changes
def revoke(user: str, resource: str | None) -> Work:
    """Drop what was said of USER and RESOURCE, or all of it."""

    async def work(admin: Admin) -> int:
        done = await admin.users.revoke(user, resource)
        return told("changed", f"User {user}", [{"broker": each} for each in done], done.missing)

    return work
