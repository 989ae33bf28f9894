"""The files of deploy/ are well formed, and their numbers, names, flags and commands are the server's own."""

import configparser
import plistlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from inferd_client import cli
from inferd_server import app
from inferd_server.__main__ import commands
from inferd_server.config import Config, load_config
from inferd_server.config.schema import ServerSection
from inferd_server.config.settings import SETTINGS
from inferd_server.rpc.health import LIVENESS, READINESS
from inferd_server.service_files import END_SECONDS, ServiceSettings, launch_agent, stop_seconds
from support.certificates import Authority

DEPLOY = Path(__file__).parents[2] / "deploy"
DEFAULTS = ServerSection()
LEAST_END_SECONDS = app.JOIN_SECONDS + 5
"""After the drain: the engines' end, and that of the connections."""


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd/inferd.service")
    return parser["Service"]


MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes/inferd.yaml").read_text())}
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()


@pytest.fixture
def served_by_kubernetes(tmp_path: Path, tiny_model: Path) -> Config:
    """The configuration of the manifests, with this machine's files."""
    pair = Authority().server_files(tmp_path)
    text = MANIFESTS["ConfigMap"]["data"]["inferd.yaml"]
    for stated, here in (
        ("/tls/tls.crt", pair.certificate),
        ("/tls/tls.key", pair.key),
        ("/models/example", str(tiny_model)),
    ):
        assert stated in text
        text = text.replace(stated, here)
    file = tmp_path / "inferd.yaml"
    file.write_text(text)
    return load_config(file, {}, {})


# --- times --------------------------------------------------------------------------------------------------------


def test_whoever_stops_the_server_waits_for_its_end(served_by_kubernetes: Config) -> None:
    assert END_SECONDS >= LEAST_END_SECONDS
    drain = DEFAULTS.drain_delay_s + DEFAULTS.drain_timeout_s
    assert int(unit()["TimeoutStopSec"]) >= drain + LEAST_END_SECONDS
    agent = plistlib.loads((DEPLOY / "launchd/local.inferd.server.plist").read_bytes())
    assert agent["ExitTimeOut"] >= drain + LEAST_END_SECONDS
    server = served_by_kubernetes.server
    pod_drain = server.drain_delay_s + server.drain_timeout_s
    assert POD["terminationGracePeriodSeconds"] >= pod_drain + LEAST_END_SECONDS


def test_proxies_wait_longer_than_a_request_may_run() -> None:
    text = (DEPLOY / "nginx/inferd.conf").read_text()
    for directive in ("grpc_read_timeout", "grpc_send_timeout", "client_body_timeout"):
        [seconds] = re.findall(rf"{directive} (\d+)s;", text)
        assert int(seconds) > DEFAULTS.request_timeout_s
    [mebibytes] = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(mebibytes) > DEFAULTS.max_message_mib


# --- kubernetes ---------------------------------------------------------------------------------------------------


def test_probes_ask_for_names_that_health_knows_on_the_port_for_probes(served_by_kubernetes: Config) -> None:
    listen = served_by_kubernetes.server.probe_listen
    assert listen is not None
    for probe, services in (("startupProbe", LIVENESS), ("livenessProbe", LIVENESS), ("readinessProbe", READINESS)):
        grpc = CONTAINER[probe]["grpc"]
        assert grpc["port"] == int(listen.rpartition(":")[2])  # a number: names are not allowed here
        assert grpc["service"] in services
        assert CONTAINER[probe]["timeoutSeconds"] >= 2


def test_the_pod_is_neither_root_nor_can_it_write(served_by_kubernetes: Config) -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not CONTAINER["securityContext"]["allowPrivilegeEscalation"]


def test_the_manifests_agree_with_each_other(served_by_kubernetes: Config) -> None:
    service, workload = MANIFESTS["Service"]["spec"], MANIFESTS["StatefulSet"]
    assert service["clusterIP"] == "None"
    assert workload["spec"]["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == labels == workload["spec"]["selector"]["matchLabels"]
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == int(served_by_kubernetes.server.listen.rpartition(":")[2])
    volumes = {volume["name"] for volume in POD["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == volumes
    assert CONTAINER["args"][-1] == f"{mounts['config']}/inferd.yaml"
    budget = served_by_kubernetes.manager.memory_budget_gb
    assert float(CONTAINER["resources"]["limits"]["memory"].removesuffix("Gi")) > budget


# --- commands and flags -------------------------------------------------------------------------------------------


def command_lines() -> list[list[str]]:
    """Every command line of inferd in deploy/, without the program."""
    lines = [CONTAINER["args"]]
    lines += [unit()["ExecStart"].split()[1:]]
    agent = plistlib.loads((DEPLOY / "launchd/local.inferd.server.plist").read_bytes())
    lines += [agent["ProgramArguments"][3:]]
    lines += [re.findall(r'"([^"]+)"', words) for words in re.findall(r"^(?:  )?CMD \[(.*)\]$", DOCKERFILE, re.M)]
    return [line[1:] if line[0] == "inferd" else line for line in lines]


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_every_command_and_flag_exists(line: list[str]) -> None:
    group = commands if line[0] in ("serve", "check") else cli.app
    helped = CliRunner().invoke(group, [line[0], "--help"], env={"COLUMNS": "300"})
    assert helped.exit_code == 0
    for word in line[1:]:
        assert not word.startswith("--") or re.search(rf"{word}\b", helped.stdout), word


def test_every_variable_of_the_image_is_a_setting() -> None:
    variables = set(re.findall(r"(INFERD_\w+)=", DOCKERFILE))
    assert variables
    assert variables <= {setting.variable for setting in SETTINGS}


def test_the_image_copies_what_is_there_and_is_not_root() -> None:
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M):
        assert all((root / source).exists() for source in line.split()[:-1]), line
    assert re.search(r"^USER 10001", DOCKERFILE, re.M)
    assert re.search(r"^HEALTHCHECK ", DOCKERFILE, re.M)
    assert POD["securityContext"]["runAsUser"] == 10001


def test_the_launch_agent_is_the_one_that_the_command_writes() -> None:
    file = DEPLOY / "launchd/local.inferd.server.plist"
    agent = plistlib.loads(file.read_bytes())
    settings = ServiceSettings(
        agent["ProgramArguments"],
        stop_seconds(DEFAULTS.drain_delay_s, DEFAULTS.drain_timeout_s),
        Path(agent["StandardErrorPath"]),
    )
    assert launch_agent(settings) == file.read_text()


def test_envoy_asks_for_readiness_and_cuts_no_stream() -> None:
    resources: Any = yaml.safe_load((DEPLOY / "envoy/inferd.yaml").read_text())["static_resources"]
    [cluster] = resources["clusters"]
    assert cluster["health_checks"][0]["grpc_health_check"]["service_name"] in READINESS
    [listener] = resources["listeners"]
    connections = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert connections["stream_idle_timeout"] == "0s"
    [route] = connections["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"] == {"cluster": cluster["name"], "timeout": "0s"}
    pings = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
    interval = pings["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]["interval"]
    assert int(interval.removesuffix("s")) > 5
