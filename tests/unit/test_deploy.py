"""The board and the alert rules in ``deploy/`` use only metrics that the driver exports, and use all of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import promql_parser
import pytest
import yaml

from tests.unit.history_support import ended
from twopc.integration.history import PrometheusMetrics
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
BOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "twopc.json").read_text())
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS: Final[list[dict[str, Any]]] = BOARD["panels"]
ON_BOARD: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]
IN_RULES: Final = [rule["expr"] for rule in RULES]


def _parsed(expression: str) -> promql_parser.Expr:
    """The expression as Grafana sends it."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("$query", ".*"))


def _selected(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric that an expression reads, with the labels that select it."""
    found: list[promql_parser.VectorSelector] = []

    class Reader:
        def pre_visit(self, node: promql_parser.Expr) -> bool:
            if isinstance(node, promql_parser.VectorSelector):
                found.append(node)
            elif isinstance(node, promql_parser.MatrixSelector):
                found.append(node.vector_selector)
            return True

    promql_parser.walk(_parsed(expression), Reader().pre_visit)
    yield from ((str(one.name), {matcher.name for matcher in one.matchers.matchers}) for one in found)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The names of all samples, with their labels."""
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    metrics = PrometheusMetrics("q", registry=registry)
    metrics.ended(ended(0))
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples if not sample.name.endswith("_created")}


@pytest.mark.parametrize("expression", [*ON_BOARD, *IN_RULES])
def test_each_expression_uses_only_exported_metrics_and_labels(expression: str, exported: dict[str, set[str]]) -> None:
    selected = list(_selected(expression))
    assert selected
    for name, labels in selected:
        assert name in exported
        assert labels <= exported[name]
    grouped = {label.strip() for labels in re.findall(r"\bby \((.*?)\)", expression) for label in labels.split(",")}
    assert grouped <= set().union(*(exported[name] for name, _ in selected))


def test_every_exported_metric_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = {name for expression in ON_BOARD for name, _ in _selected(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    assert families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == set()


def test_the_rules_cover_every_state_that_needs_an_operator() -> None:
    read = {name for expression in IN_RULES for name, _ in _selected(expression)}
    assert {
        "twopc_checkpoints_total",
        "twopc_in_doubt",
        "twopc_last_completed_timestamp_seconds",
        "twopc_transaction_age_ratio",
    } <= read


def test_every_rule_has_a_summary_and_a_runbook_entry_and_tests_in_which_it_fires_and_does_not_fire() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    anchors = {line[4:].lower().replace(" ", "-") for line in text.splitlines() if line.startswith("### ")}
    tests = [
        test
        for group in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
        for test in group["alert_rule_test"]
    ]
    for rule in RULES:
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"].removeprefix("docs/operations.md#") in anchors
        assert rule["labels"]["severity"] in {"critical", "warning"}
        of_it = [bool(test["exp_alerts"]) for test in tests if test["alertname"] == rule["alert"]]
        assert set(of_it) == {True, False}, rule["alert"]


def test_the_page_on_alerts_has_every_rule() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text()
    assert {rule["alert"] for rule in RULES} <= set(re.findall(r"`(Twopc\w+)`", text))


def test_grafana_can_import_the_dashboard() -> None:
    """It has the fields that the importer asks for. Panels have ids and separate places, and name their data source."""
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= BOARD.keys()
    assert "id" not in BOARD, "Grafana's database should assign the id"
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert variables == {"datasource", "query"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(int(place["w"])) for dy in range(int(place["h"]))}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["refId"] for target in panel["targets"]} == set("ABC"[: len(panel["targets"])])
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = {name for text in ON_BOARD for name in re.findall(r"\$(?!__)(\w+)", text)}
    assert used == {"query"}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed; Debian's package prometheus has it"
)
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)  # noqa: S607
    assert done.returncode == 0, done.stdout + done.stderr


def _third_of_the_transaction_timeout_s() -> float:
    """How long a query may be without a driver: decided transactions expire after three times as long."""
    sink = KafkaSink(name="orders", topic="orders", bootstrap_servers="broker:9092")
    return sink.transaction_timeout_ms / 3_000


def test_an_alert_for_a_dead_driver_fires_long_before_decided_transactions_expire() -> None:
    [dead] = [rule for rule in RULES if rule["alert"] == "TwopcNoCheckpointCompleted"]
    assert float(dead["expr"].rpartition(">")[2]) <= _third_of_the_transaction_timeout_s()


def test_the_driver_and_the_executors_of_the_spark_application_mount_the_checkpoint() -> None:
    spec = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "orders.yaml").read_text())["spec"]
    assert spec["driver"]["volumeMounts"] == spec["executor"]["volumeMounts"]
    assert {mount["name"] for mount in spec["driver"]["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_no_pod_runs_as_root_and_no_pod_may_gain_rights() -> None:
    spec = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "orders.yaml").read_text())["spec"]
    for pod in (spec["driver"], spec["executor"]):
        whole, container = pod["podSecurityContext"], pod["securityContext"]
        assert whole["runAsNonRoot"] is True
        assert whole["runAsUser"] == whole["runAsGroup"] == whole["fsGroup"] == 185
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["allowPrivilegeEscalation"] is False
        assert container["readOnlyRootFilesystem"] is True
        assert container["capabilities"] == {"drop": ["ALL"]}
        # Spark writes to its working directory and to /tmp, so with a read-only image, both are volumes.
        assert {mount["mountPath"] for mount in pod["volumeMounts"]} == {"/checkpoints", "/tmp", "/opt/spark/work-dir"}  # noqa: S108
        assert "securityContext" not in pod.get("template", {}).get("spec", {}), "the operator's own fields say it"


def test_the_image_in_the_documents_runs_as_the_user_of_the_spark_application() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    [image] = re.findall(r"^```dockerfile\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^USER (\w+)$", image, re.MULTILINE)[-1] == "spark"
    assert "user `spark` (185)" in text


def test_the_image_in_the_documents_has_the_program_and_the_spark_version_of_the_spark_application() -> None:
    spec = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "orders.yaml").read_text())["spec"]
    text = (ROOT / "docs" / "deployment.md").read_text()
    [image] = re.findall(r"^```dockerfile\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    program = spec["mainApplicationFile"].removeprefix("local://")
    assert re.search(rf"^COPY \S+ {re.escape(program)}$", image, re.MULTILINE)
    assert image.startswith(f"FROM spark:{spec['sparkVersion']}-python3\n")


def test_the_spark_application_restarts_forever_and_its_probe_notices_a_batch_that_hangs(tmp_path: Path) -> None:
    """Not run on a cluster. The test checks that it is YAML with the operator's fields, and runs the probe's command.

    ``OnFailure``: a query that was stopped with a savepoint ends with status 0, and must not start again.
    """
    found = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "orders.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    policy = found["spec"]["restartPolicy"]
    assert policy["type"] == "OnFailure" and policy["onFailureRetries"] == 2**31 - 1
    [container] = found["spec"]["driver"]["template"]["spec"]["containers"]
    [mount] = [mount for mount in found["spec"]["driver"]["volumeMounts"] if mount["name"] == "checkpoints"]
    probe = container["livenessProbe"]
    shell, option, command = probe["exec"]["command"]
    notices_s = probe["periodSeconds"] * probe["failureThreshold"]
    notices_s += 60 * int(re.findall(r"-mmin -(\d+)", command)[0])
    assert max(notices_s, probe["initialDelaySeconds"]) <= _third_of_the_transaction_timeout_s()
    assert mount["mountPath"] in command
    planned, finished = (tmp_path / "orders" / name for name in ("offsets", "commits"))

    def is_alive() -> bool:
        asked = [shell, option, command.replace(mount["mountPath"], str(tmp_path))]
        return subprocess.run(asked, check=False).returncode == 0

    assert not is_alive()
    for directory in (planned, finished):
        directory.mkdir(parents=True)
    assert is_alive()
    for batch in (9, 10):
        (planned / str(batch)).touch()
        assert is_alive()
        os.utime(planned / str(batch), (time.time() - 5 * 60,) * 2)
        assert not is_alive()
        (finished / str(batch)).touch()
        assert is_alive()  # no batch is due, however long ago the last one was finished
