"""What deploy/ holds fits the program: keys, metrics, ports, times, and what a worker may do.

Reads the files as their own tools would, as far as that goes without them. Does not start anything.
"""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client.registry import Collector

from runtime.metrics import Metrics
from server.cli_commands import app
from server.config import OperationsConfig, ServeConfig
from server.config_file import load
from server.operations.operations import Operations
from tests.runtime.served import scheduler
from tests.sources import ROOT

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
TARGET = {"job", "instance"}  # labels that Prometheus adds


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


def found(kind: str) -> dict[str, Any]:
    """The one object of this kind among the manifests."""
    (one,) = [one for path in BASE.glob("*.yaml") for one in documents(path) if one["kind"] == kind]
    return one


# Metrics


@contextmanager
def every_metric() -> Iterator[Metrics]:
    """Of a worker that has begun to serve."""
    with Operations(OperationsConfig(address=None)) as operations:
        operations.metrics.watch(scheduler())
        yield operations.metrics


@pytest.fixture(scope="module")
def families() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, as Prometheus and docs write it."""
    told: dict[str, tuple[str, set[str]]] = {}
    with every_metric() as metrics:
        for collector in metrics.registry._collector_to_names:
            for family in collector.collect():
                name = family.name + ("_total" if family.type == "counter" else "")
                told[name] = family.type, labels_of(collector, family.samples)
    return told


def labels_of(collector: Collector, samples: list[Any]) -> set[str]:
    """Those that a metric declares, or that a collector of several has given its samples."""
    declared = getattr(collector, "_labelnames", None)
    if declared is not None:
        return set(declared)
    return {label for sample in samples for label in sample.labels}


def series(families: dict[str, tuple[str, set[str]]]) -> dict[str, set[str]]:
    """Labels by the name that a query may use."""
    found = {"up": set[str]()}
    for name, (kind, labels) in families.items():
        for suffix in SUFFIXES[kind]:
            own = labels | {"le"} if suffix == "_bucket" else labels
            found[name.removesuffix("_total") + suffix] = own
    return found


def check_query(query: str, known: dict[str, set[str]]) -> None:
    """Every metric in it exists, and no label is asked for that none of them has."""
    names = set(re.findall(r"\b(?:fourstep_|vllm:|process_|up\b)[\w:]*", query))
    assert names, query
    assert names <= known.keys(), query
    labels = set[str]().union(*(known[name] for name in names)) | TARGET
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    for listed in re.findall(r"\bby\s*\(([^)]*)\)", query):
        used |= {label.strip() for label in listed.split(",")}
    assert used <= labels, query


def test_the_dashboard_asks_for_what_there_is(
    families: dict[str, tuple[str, set[str]]],
) -> None:
    board = json.loads((DEPLOY / "grafana" / "fourstep.json").read_text(encoding="utf-8"))
    known, queries = series(families), list[str]()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            queries.append(target["expr"])
            check_query(target["expr"], known)
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(label in target["expr"] for label in shown), target
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    own = {name for name in families if name.startswith(("fourstep_", "vllm:"))}
    unseen = {name for name in own if not any(name in query for query in queries)}
    assert {name.removesuffix("_length") for name in unseen} <= {"fourstep_acceptance"}


def test_alerts_ask_for_what_there_is_and_are_explained(
    families: dict[str, tuple[str, set[str]]],
) -> None:
    (rules,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    for alert in alerts:
        check_query(alert["expr"], series(families))
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
    explained = re.findall(r"^\| `(Fourstep\w+)` \|", OPERATIONS, flags=re.MULTILINE)
    assert explained == [alert["alert"] for alert in alerts]


def test_the_table_of_metrics_is_whole(families: dict[str, tuple[str, set[str]]]) -> None:
    row = r"^\| `([\w:]+)` \| (counter|gauge|histogram) \| ([\w, ]*)\|"
    rows = re.findall(row, OPERATIONS, flags=re.MULTILINE)
    told = {name: (kind, set(labels.replace(",", " ").split())) for name, kind, labels in rows}
    assert told == families


def test_a_query_that_asks_for_nothing_real_is_seen(
    families: dict[str, tuple[str, set[str]]],
) -> None:
    known = series(families)
    check_query('sum by (code) (rate(fourstep_calls_total{rpc="x"}[5m]))', known)
    for wrong in ("fourstep_calls", 'fourstep_calls_total{tenant="x"}', "sum by (no) (up)"):
        with pytest.raises(AssertionError):
            check_query(wrong, known)


# Configuration


@pytest.mark.parametrize("path", [DEPLOY / "fourstep.toml", BASE / "fourstep.toml"], ids=str)
def test_configurations_are_read(path: Path) -> None:
    config = load(path)
    assert config.operations.log_format == "json"
    assert all(one.tls or one.exposed or "unix:" in one.address for one in config.listeners)
    assert config.model.artifact is not None


def test_the_unit_starts_what_there_is() -> None:
    lines = (DEPLOY / "fourstep.service").read_text(encoding="utf-8").splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, command, *arguments = shlex.split(unit["ExecStart"])
    assert Path(program).name == "fourstep"
    check_arguments([command, *arguments])
    assert Path(arguments[-1]).name == (DEPLOY / "fourstep.toml").name
    assert int(unit["TimeoutStopSec"]) > seconds_to_leave(load(DEPLOY / "fourstep.toml"))
    assert unit["RestartPreventExitStatus"] == "2"
    assert unit["KillSignal"] == "SIGTERM"
    assert "Documentation" not in unit, "it has no address of its own"


def check_arguments(arguments: list[str]) -> None:
    """That the command line parses, and nothing is run."""
    command = typer.main.get_command(app)
    group: Any = command
    sub = group.commands[arguments[0]]
    with sub.make_context(arguments[0], arguments[1:]) as context:
        assert context.params["config"] is not None


def seconds_to_leave(config: ServeConfig) -> float:
    return config.drain.grace_s + config.drain.timeout_s


# The image and the cluster


def test_the_image_runs_as_nobody_and_serves() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    stages = dict(
        re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", text, re.DOTALL | re.MULTILINE)
    )
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split()), copied
    for name in ("serve", "build"):
        users = re.findall(r"^USER (.+)$", stages[name], re.MULTILINE)
        assert users[-1] == "10001:10001"
        words = words_of(stages[name], "ENTRYPOINT")
        assert words == ["fourstep", name]
    assert "g++" not in stages["serve"] + stages["base"]
    check_arguments(["serve", *words_of(stages["serve"], "CMD")])


def words_of(stage: str, instruction: str) -> list[str]:
    match = re.search(rf"^{instruction} (.+)$", stage, re.MULTILINE)
    assert match is not None
    return json.loads(match[1])


def worker() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and its container."""
    pod = found("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_manifests_are_objects_of_the_kustomization() -> None:
    (listed,) = documents(BASE / "kustomization.yaml")
    assert {*listed["resources"], "kustomization.yaml"} == {p.name for p in BASE.glob("*.yaml")}
    for path in BASE.glob("*.yaml"):
        for one in documents(path):
            assert {"apiVersion", "kind"} <= one.keys(), path
    assert listed["configMapGenerator"][0]["files"] == ["fourstep.toml"]


def test_a_pod_may_do_little() -> None:
    pod, container = worker()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    may = container["securityContext"]
    assert may["readOnlyRootFilesystem"] is True
    assert may["allowPrivilegeEscalation"] is False
    assert may["capabilities"] == {"drop": ["ALL"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        assert mount["name"] in volumes
        assert mount.get("readOnly") or "emptyDir" in volumes[mount["name"]]
    for name in ("tls", "tokens"):  # other users may not read tokens
        assert volumes[name]["secret"]["defaultMode"] & 0o007 == 0


def test_a_pod_leaves_in_time_and_is_probed_where_it_answers() -> None:
    pod, container = worker()
    config = load(BASE / "fourstep.toml")
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > before + seconds_to_leave(config)
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "liveness")
    }
    assert paths == {"readiness": "/readyz", "liveness": "/healthz"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.operations.address == f"0.0.0.0:{ports['operations']}"
    listening = {int(one.address.rpartition(":")[2]) for one in config.listeners}
    assert listening == {ports["grpc"], ports["gateway"]}
    for port in found("Service")["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    opened = [
        port["port"] for rule in found("NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]
    ]
    assert sorted(opened) == sorted(ports)


def test_what_the_configuration_names_is_mounted() -> None:
    pod, container = worker()
    config = load(BASE / "fourstep.toml")
    mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    first = config.listeners[0]
    assert first.tls is not None
    named = [config.model.checkpoint, config.model.artifact, first.tls.cert, first.tls.key]
    for path in [*named, first.tokens]:
        assert path is not None
        assert any(mount in (path, *path.parents) for mount in mounts), path
    claims = {
        one["metadata"]["name"]
        for one in documents(BASE / "volumes.yaml")
        if one["kind"] == "PersistentVolumeClaim"
    }
    used = [
        v["persistentVolumeClaim"]["claimName"]
        for v in pod["volumes"]
        if "persistentVolumeClaim" in v
    ]
    assert set(used) == claims


def test_the_variant_with_gpus_asks_for_one() -> None:
    (listed,) = documents(DEPLOY / "kubernetes" / "gpu" / "kustomization.yaml")
    assert [(BASE.parent / "gpu" / name).resolve() for name in listed["resources"]] == [BASE]
    (patch,) = documents(DEPLOY / "kubernetes" / "gpu" / listed["patches"][0]["path"])
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert patch["metadata"]["name"] == found("Deployment")["metadata"]["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
