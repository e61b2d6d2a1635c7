"""The files that compose mounts, each judged by the program that reads it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tools.stack.build import binary
from tools.stack.compose import COMPOSE_FILE, compose, services

ROOT = Path(__file__).parents[2]
PROVISIONING = ROOT / "deploy/grafana/provisioning"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.fixture(scope="module")
def rendered() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compose("config", "--format", "json"))["services"]
    return found


# ------------------------------------------------------------------------------------ compose


def test_compose_refuses_a_word_that_it_does_not_know(tmp_path: Path) -> None:
    """So that it reads ours says something."""
    wrong = tmp_path / "compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("healthcheck:", "health_check:", 1))
    with pytest.raises(subprocess.CalledProcessError) as refused:
        services(wrong)
    assert "health_check" in refused.value.stderr


def test_no_port_is_open_to_other_machines(rendered: dict[str, Any]) -> None:
    """Every published port is one of the loopback interface."""
    ports = [port for service in rendered.values() for port in service.get("ports", ())]
    assert {port["target"] for port in ports} == {4317, 4318, 13133, 9090, 3200, 16686, 3000}
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_every_image_has_its_version(rendered: dict[str, Any]) -> None:
    """A tag of numbers: the same files meet the same programs tomorrow."""
    for service in rendered.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])


def test_images_and_tested_servers_are_the_same_versions(rendered: dict[str, Any]) -> None:
    """Jaeger's module 1.76.0 is its release 2.13.0, Prometheus' 0.316.0 its 3.16.0."""
    tags = {name: service["image"].rpartition(":")[2] for name, service in rendered.items()}
    manifest = read("tools/stack/otelcol/builder-config.yaml")
    modules = {
        name: re.search(rf"{name} v([\d.]+)", (ROOT / f"tools/stack/{name}/go.mod").read_text())
        for name in ("jaeger", "prometheus")
    }
    assert tags["otel-collector"] == manifest["dist"]["version"]
    assert (modules["jaeger"] or [""])[1] == "1.76.0"
    assert tags["jaeger"] == "2.13.0"
    assert f"v3.{(modules['prometheus'] or [''])[1].removeprefix('0.3')}" == tags["prometheus"]


def test_nothing_can_be_opened_by_a_password_that_everybody_knows(rendered: dict[str, Any]) -> None:
    """No administrator is made, nobody can log in, and who looks on may change nothing."""
    grafana = rendered["grafana"]["environment"]
    assert not [key for key in grafana if "PASSWORD" in key]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_what_compose_mounts_is_there() -> None:
    """A folder that is missing would be made by the engine, empty and owned by root."""
    mounts = [path for each in services(COMPOSE_FILE) for path in each.mounts.values() if path]
    assert len(mounts) == 6
    assert [path for path in mounts if not path.exists()] == []


# ------------------------------------------------------------------------------------ servers


@pytest.mark.parametrize("file", ["gateway", "agent"])
def test_the_collector_takes_its_files(file: str) -> None:
    """The real collector, with exactly the components of the manifest."""
    judged = run(binary("otelcol"), "validate", f"--config=collector/{file}.yaml")
    assert judged.returncode == 0, judged.stderr


def test_the_collector_refuses_a_key_that_it_does_not_know(tmp_path: Path) -> None:
    """So that it takes ours says something."""
    text = (ROOT / "collector/gateway.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("num_consumers: 1", "consumers: 1", 1))
    judged = run(binary("otelcol"), "validate", f"--config={tmp_path}/wrong.yaml")
    assert judged.returncode != 0
    assert "consumers" in judged.stderr


def test_jaeger_takes_its_file() -> None:
    """The real Jaeger."""
    judged = run(binary("jaeger"), "validate", "--config=deploy/jaeger/jaeger.yaml")
    assert judged.returncode == 0, judged.stderr


def test_prometheus_takes_its_files() -> None:
    """The real promtool, with the rules and targets that the file names."""
    judged = run(binary("promtool"), "check", "config", "deploy/prometheus/prometheus.yml")
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_tempo_has_no_key_of_its_second_version() -> None:
    """Version 3 refuses them, and Tempo itself is not here to say so."""
    keys = set(read("deploy/tempo/tempo.yaml"))
    assert keys == {
        *("stream_over_http_enabled", "server", "distributor", "live_store", "storage"),
        *("overrides", "usage_report"),
    }


def test_the_same_text_is_removed_wherever_it_may_stand() -> None:
    """Resource, span, event and data point: one pattern, and one more for old events."""
    scrub = read("collector/gateway.yaml")["processors"]["transform/scrub"]
    statements = scrub["trace_statements"] + scrub["metric_statements"]
    found = [
        re.fullmatch(r'delete_matching_keys\(([\w.]+), "(.+?)"\)(?: where .*)?', statement)
        for statement in statements
    ]
    patterns = [(match[1], match[2]) for match in found if match]
    assert len(patterns) == len(statements) == 6
    assert len({pattern for _, pattern in patterns}) == 2
    assert {place for place, _ in patterns} == {
        *("resource.attributes", "span.attributes", "spanevent.attributes", "datapoint.attributes"),
    }


# ------------------------------------------------------------------------------------ Grafana

DATA_SOURCES = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "datasources"],
    "properties": {
        "apiVersion": {"const": 1},
        "datasources": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "uid", "type", "access", "url"],
                "properties": {
                    "name": {"type": "string"},
                    "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
                    "type": {"enum": ["prometheus", "tempo", "jaeger"]},
                    "access": {"const": "proxy"},
                    "url": {"type": "string", "pattern": "^http://"},
                    "isDefault": {"type": "boolean"},
                    "jsonData": {"type": "object"},
                },
            },
        },
    },
}
DASHBOARDS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "providers"],
    "properties": {
        "apiVersion": {"const": 1},
        "providers": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "type", "options"],
                "properties": {
                    "name": {"type": "string"},
                    "orgId": {"type": "integer"},
                    "folder": {"type": "string"},
                    "folderUid": {"type": "string"},
                    "type": {"const": "file"},
                    "disableDeletion": {"type": "boolean"},
                    "allowUiUpdates": {"type": "boolean"},
                    "updateIntervalSeconds": {"type": "integer"},
                    "options": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["path"],
                        "properties": {
                            "path": {"type": "string"},
                            "foldersFromFilesStructure": {"type": "boolean"},
                        },
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize(
    ("folder", "schema"), [("datasources", DATA_SOURCES), ("dashboards", DASHBOARDS)]
)
def test_provisioning_has_the_form_that_grafana_documents(
    folder: str, schema: dict[str, Any]
) -> None:
    """Written from its documentation: Grafana itself is not here to say so."""
    for file in (PROVISIONING / folder).iterdir():
        jsonschema.validate(yaml.safe_load(file.read_text()), schema)


def test_data_sources_are_services_and_know_each_other(rendered: dict[str, Any]) -> None:
    """Every host and port is a service's, every uid that one names is another's."""
    text = (PROVISIONING / "datasources/otel-grpo.yaml").read_text()
    sources = yaml.safe_load(text)["datasources"]
    listens = {"prometheus": 9090, "tempo": 3200, "jaeger": 16686}
    assert {source["url"] for source in sources} == {
        f"http://{service}:{port}" for service, port in listens.items() if service in rendered
    }
    named = set(re.findall(r"datasourceUid: ([\w-]+)", text))
    assert named <= {source["uid"] for source in sources}
    assert len(named) == 3
    # Compose leaves `$` alone in files, Grafana does not: a variable of a query needs two.
    assert re.findall(r"(?<!\$)\$(?!\$)\w+", text) == []


def test_dashboards_lie_where_grafana_looks(rendered: dict[str, Any]) -> None:
    """The folder of the provider is the one that is mounted, and it has dashboards in it."""
    (provider,) = read("deploy/grafana/provisioning/dashboards/otel-grpo.yaml")["providers"]
    (mount,) = [
        mount
        for mount in rendered["grafana"]["volumes"]
        if mount["target"] == provider["options"]["path"]
    ]
    assert list(Path(mount["source"]).glob("*.json"))


# --------------------------------------------------------------------------------- Kubernetes


def test_the_agent_of_a_node_is_what_kubernetes_knows() -> None:
    """Each object by the schema of the API; the configuration lies where the collector looks."""
    daemon_set, service = yaml.safe_load_all(
        (ROOT / "deploy/kubernetes/agent.yaml").read_text(),
    )
    for each in (daemon_set, service):
        kubernetes_validate.validate(each, "1.37", strict=True)
    pod = daemon_set["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"] == [f"--config={mounts['configuration']}/agent.yaml"]
    assert mounts["state"] in (ROOT / "collector/agent.yaml").read_text()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert container["image"].endswith(
        f":{read('tools/stack/otelcol/builder-config.yaml')['dist']['version']}"
    )
