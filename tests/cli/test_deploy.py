"""What ``deploy/`` runs: the image's command and environment, the app, the board's queries, the alerts', the manifests'
ports and probes."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aiorocket.cli.broker import broker
from aiorocket.cli.nameserver import nameserver
from aiorocket.cli.standalone import standalone
from aiorocket.spark.steps.continuous import Plan
from aiorocket_protocol import BROKER_PORT, NAMESERVER_PORT

DEPLOY = Path(__file__).parents[2] / "deploy"
METRICS_PORT = 9106


def image() -> tuple[dict[str, str], dict[str, str]]:
    """Environment and other instructions of the image's last stage, the last of each."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text()).rpartition("\nFROM ")[2]
    said = dict(line.split(" ", 1) for line in text.splitlines()[1:] if line and not line.startswith("#"))
    return dict(each.split("=", 1) for each in shlex.split(said["ENV"])), said


def test_the_image_runs_for_nobody_in_particular_and_keeps_what_it_has_in_its_volume() -> None:
    env, said = image()
    assert said["USER"] == "10001:10001" and said["VOLUME"] == said["WORKDIR"] == env["AIOROCKET_BROKER_DATA"]
    assert (json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])) == (["aiorocket"], ["standalone"])
    assert said["EXPOSE"].split() == [str(port) for port in (NAMESERVER_PORT, BROKER_PORT, METRICS_PORT)]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    copied = {name for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("COPY pyproject")
              for name in line.split()[1:-1]} | {"aiorocket", "protocol"}  # fmt: skip
    assert ignored[0] == "*" and {each[1:] for each in ignored if each.startswith("!")} == copied


def test_what_the_image_runs_serves_its_health_its_app_and_its_board(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]]
) -> None:
    env, said = image()
    data = aiorocket.directory / "data"
    data.mkdir()
    mine = {name: value.replace("/data", str(data)) for name, value in env.items() if name.startswith("AIOROCKET_")}
    free = {"AIOROCKET_METRICS_PORT": "0", "AIOROCKET_METRICS_HOST": "127.0.0.1", "AIOROCKET_BROKER_PORT": "0"}
    mine |= {**free, "AIOROCKET_BROKER_ADVERTISE": "127.0.0.1"}
    process = aiorocket.start(*json.loads(said["CMD"]), "--port", "0", **mine)
    line = aiorocket.line(process)
    names, _, metrics = ports(line)
    health = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])[-1].replace(f":{METRICS_PORT}/", f":{metrics}/")
    aiorocket.python(health)
    asked = aiorocket.run("topic", "create", "orders", **mine)
    assert asked.code == 0, asked  # as by `docker compose exec mq aiorocket ...`
    app = {**mine, "AIOROCKET_NAMESERVER": f"127.0.0.1:{names}", "APP_MESSAGES": "2"}
    assert aiorocket.program(DEPLOY / "app.py", **app) == "consumed tick 0\nconsumed tick 1\n"

    with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=140) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    series = {sample.name: set(sample.labels) for family in families.values() for sample in family.samples}
    # Of what has not happened yet there is a family, with no sample.
    for family in families.values():
        if not family.samples:
            series[f"{family.name}_total" if family.type == "counter" else family.name] = {"group"}
    asked_for = list(queries())
    assert len(asked_for) > 20
    for query in asked_for:
        metric_names = re.findall(r"\b(?:aiorocket_broker|process)_\w+", query)
        assert metric_names and series.keys() >= set(metric_names), query
        wanted = {label for by in re.findall(r"by \(([^)]*)\)", query) for label in by.replace(" ", "").split(",")}
        assert wanted - {"instance"} <= set.union(*(series[name] for name in metric_names)), query
    ended = stop(process, signal.SIGTERM)
    assert ended.code == 0 and "others" not in ended.out


def queries() -> Iterator[str]:
    """Of the board and of the alerts."""
    for panel in json.loads((DEPLOY / "grafana/board.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(re.findall(r"\w+", target["expr"]))
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_compose_mounts_what_is_there_and_uses_the_image_as_it_is() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        for source, target, *_ in (each.split(":") for each in service.get("volumes", ())):
            assert source in compose["volumes"] if not source.startswith(".") else (DEPLOY / source).is_file(), target
        assert all(each.startswith("127.0.0.1:") for each in service.get("ports", ()))
    assert services["mq"]["read_only"] and services["mq"]["volumes"] == [f"mq-data:{image()[1]['VOLUME']}"]
    assert services["app"]["environment"]["AIOROCKET_NAMESERVER"] == f"mq:{NAMESERVER_PORT}"
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"mq:{METRICS_PORT}"]}]
    assert services["mq"]["environment"]["AIOROCKET_BROKER_ADVERTISE"] == "mq"


def test_the_pipelines_are_pipelines_and_their_services_ask_them_where_they_answer() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["lake"]
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / "systemd/aiorocket-lake.service")
    said = dict(each.split("=", 1) for each in unit["Service"]["Environment"].split())
    assert unit["Service"]["ExecStart"].split()[1:] == ["lake", "run", "/etc/aiorocket/pipeline.toml"]
    # A JVM that is told to end itself takes the batch with it.
    assert (unit["Service"]["KillMode"], unit["Service"]["Type"]) == ("mixed", "notify")
    assert int(unit["Service"]["TimeoutStopSec"]) == int(service["stop_grace_period"].removesuffix("s")) == 600
    port = service["environment"]["AIOROCKET_METRICS_PORT"]
    assert said["AIOROCKET_METRICS_PORT"] == port and f":{port}/healthz" in service["healthcheck"]["test"][-1]
    assert "ARG EXTRAS=metrics\n" in (DEPLOY / "Dockerfile").read_text() and service["command"][:2] == ["lake", "run"]
    written = [Plan.read(str(DEPLOY / name)) for name in ("pipeline.toml", "systemd/pipeline.toml")]
    state = f"/var/lib/{unit['Service']['StateDirectory']}/"
    assert written[0].path.startswith("/data/") and written[1].path.startswith(state)
    for plan in written:
        plan.check("127.0.0.1:9876")


def test_the_pods_run_what_there_is_and_are_asked_where_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    services = {each["metadata"]["name"]: each for each in documents if each["kind"] == "Service"}
    commands = {"nameserver": nameserver, "broker": broker, "standalone": standalone}
    for each in documents:
        if each["kind"] != "StatefulSet":
            continue
        pod = each["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        service = services[each["spec"]["serviceName"]]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["securityContext"]["runAsUser"] == int(image()[1]["USER"].partition(":")[0])
        assert container["securityContext"]["readOnlyRootFilesystem"] and not pod["spec"]["enableServiceLinks"]
        assert container["volumeMounts"] == [{"name": "data", "mountPath": image()[1]["VOLUME"]}]
        own = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == own
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(name, {})
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] == "metrics" and probe["httpGet"]["path"] in ("/healthz", "/readyz")
        said = {name: value for name, value in image()[0].items() if name.startswith("AIOROCKET_")}
        for variable in container.get("env", ()):
            said[variable["name"]] = variable.get("value", "").replace("$(POD)", "aiorocket-broker-0")
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        command, *arguments = container["args"]
        made = commands[command].make_context(command, arguments)
        if command == "broker":
            assert (made.params["name"], made.params["port"]) == ("aiorocket-broker-0", own["remoting"])
            assert made.params["advertise"] == "aiorocket-broker-0.aiorocket-broker"
            assert made.params["nameservers"] == (f"aiorocket-names:{NAMESERVER_PORT}",)
            assert (made.params["metrics_port"], made.params["bind"]) == (METRICS_PORT, "0.0.0.0")


def test_the_settings_of_the_unit_are_settings(aiorocket: Any) -> None:
    file = DEPLOY / "systemd/broker.toml"
    text = file.read_text().replace("/var/lib/", f"{aiorocket.directory}/")
    (aiorocket.directory / "b.toml").write_text(text)
    checked = aiorocket.run("config", "check", "b.toml")
    assert checked.code == 0 and "nothing is wrong" in checked.out, checked
    commented = re.sub(r"^# (\w+ = )", r"\1", file.read_text(), flags=re.MULTILINE)
    assert {"host", "advertise", "admin_bind"} <= tomllib.loads(commented)["broker"].keys()
