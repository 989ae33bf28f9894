"""Which addresses are well formed, and which of them other machines can reach."""

import pytest

from inferd_server.config.listen import (
    endpoint_problem,
    listen_problem,
    metrics_listen_problem,
    probe_listen_problem,
)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:50051", "127.0.0.1:0", "localhost:1", "LOCALHOST:1", "[::1]:50051", "127.8.8.8:65535", "unix:/run/x"],
)
def test_addresses_of_this_machine_are_fine(address: str) -> None:
    assert listen_problem(address, insecure=False) == ""


@pytest.mark.parametrize(
    "address", ["0.0.0.0:50051", "[::]:50051", "10.0.0.5:1", "example.org:50051", "localhost.evil.org:1", "[fe80::1]:1"]
)
def test_addresses_that_others_can_reach_need_insecure(address: str) -> None:
    assert "neither TLS nor keys" in listen_problem(address, insecure=False)
    assert "--insecure" in listen_problem(address, insecure=False)
    assert listen_problem(address, insecure=True) == ""
    assert listen_problem(address, insecure=False, guarded=True) == ""


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1",
        ":50051",
        "127.0.0.1:",
        "127.0.0.1:70000",
        "127.0.0.1:-1",
        "::1:50051",
        "a b:1",
        "unix:",
        "unix:x",
        "http://127.0.0.1:1",
        "127.0.0.1:1\n",
        "unix:/a\x00b",
        "127.0.0.1:1,127.0.0.1:2",
    ],
)
def test_other_forms_are_refused_with_the_forms_that_are_allowed(address: str) -> None:
    assert "must be HOST:PORT" in listen_problem(address, insecure=True)


def test_a_socket_path_is_as_short_as_the_system_wants_it() -> None:
    assert "at most" in listen_problem("unix:/" + "x" * 200, insecure=False)


def test_metrics_are_served_at_a_port_of_this_machine_unless_told_otherwise() -> None:
    for address in ("127.0.0.1:9464", "localhost:0", "[::1]:1"):
        assert metrics_listen_problem(address, insecure=False) == ""
    assert "could read which models are used" in metrics_listen_problem("0.0.0.0:9464", insecure=False)
    assert metrics_listen_problem("0.0.0.0:9464", insecure=True) == ""
    for address in ("", "9464", "unix:/run/metrics", "127.0.0.1:70000", "http://127.0.0.1:1"):
        assert metrics_listen_problem(address, insecure=True).startswith("must be HOST:PORT (")


def test_a_collector_is_a_host_and_port_or_a_url() -> None:
    for endpoint in ("localhost:4317", "[::1]:4317", "http://10.0.0.1:4317", "https://collector.internal:4317/"):
        assert endpoint_problem(endpoint, insecure=False) == ""
    for endpoint in ("localhost", "grpc://localhost:4317", "http://localhost", "http://h:1/v1/traces", "h:99999", ""):
        assert endpoint_problem(endpoint, insecure=False).startswith("must be HOST:PORT (")
    assert endpoint_problem("http://h:1", insecure=True) == ""
    assert "asks for TLS" in endpoint_problem("https://h:1", insecure=True)


def test_probes_may_come_from_anywhere_but_need_a_port() -> None:
    assert probe_listen_problem("0.0.0.0:50052") == ""
    for address in ("", "50052", "unix:/run/x", "127.0.0.1:70000"):
        assert probe_listen_problem(address).startswith("must be HOST:PORT (")
