"""`doctor` finds what is wrong, says how to mend it in one line, and gives no secret away."""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from otel_grpo.cli.checks import directory, last_run, trainers
from otel_grpo.cli.checks.collector import without_secrets
from otel_grpo.cli.endpoint import ENDPOINT, OF_SIGNALS
from otel_grpo.records.model import SinkCounts

OTLP = Path(__file__).parents[1] / "otlp"
sys.path[:0] = [str(OTLP)]

import receivers  # noqa: E402

Doctor = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*os.environ]:
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in (ENDPOINT, *OF_SIGNALS):  # what the command sets is unset afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(last_run, "_DEFAULT_JAEGER", "http://127.0.0.1:1")


@pytest.fixture
def doctor(call: Any) -> Doctor:
    """The findings as topic -> (state, text), and the exit status."""

    def ask(*arguments: str | Path) -> SimpleNamespace:
        result = call("doctor", "--json", *arguments)
        whole = json.loads(result.stdout)
        found = [(each["topic"], each["state"], each["text"]) for each in whole["findings"]]
        assert result.exit_code == whole["exit_status"] == any(s == "bad" for _, s, _ in found)
        assert all("\n" not in text for _, _, text in found)
        return SimpleNamespace(
            status=result.exit_code,
            findings=whole["findings"],
            of=lambda topic: [(state, text) for t, state, text in found if t == topic],
            bad=[text for _, state, text in found if state == "bad"],
        )

    return ask


def test_nothing_is_wrong_and_nothing_is_sent(call: Any, tmp_path: Path) -> None:
    """Plain lines, exit status 0, and nothing is left where it looked."""
    result = call("doctor")
    assert result.exit_code == 0, result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    for said in ("Installed\n  ok    otel-grpo ", "Trainers\n", "off: nothing names a collector"):
        assert said in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_versions_for_scripts(doctor: Doctor) -> None:
    """Packages that are here with their version, others with null."""
    (versions,) = [
        each["details"]["versions"] for each in doctor().findings if each["details"].get("versions")
    ]
    assert versions["opentelemetry-sdk"].startswith("1.")
    assert versions["opentelemetry-exporter-otlp-proto-grpc"] == versions["opentelemetry-sdk"]
    assert {"trl", "torch", "ray", "nvidia-ml-py"} <= versions.keys()


# ------------------------------------------------------------------------------------ collectors


def test_a_collector_that_takes_it(doctor: Doctor) -> None:
    """A request of each signal, without a span or a point in it."""
    with receivers.http() as receiver:
        told = doctor("--otlp", receiver.url)
    assert told.status == 0
    assert told.of("Sending by OTLP") == [
        ("good", f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.url}"),
        ("good", f"traces: {receiver.url}/v1/traces takes them, by http/protobuf"),
        ("good", f"metrics: {receiver.url}/v1/metrics takes them, by http/protobuf"),
    ]
    assert [got.signal for got in receiver.requests] == ["traces", "metrics"]
    assert not receiver.spans
    assert not receiver.metrics[0].resource_metrics[0].scope_metrics[0].metrics


def test_a_collector_over_grpc(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the standard variable."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with receivers.over_grpc() as receiver:
        told = doctor("--otlp", receiver.url)
    assert told.status == 0
    assert [got.signal for got in receiver.requests] == ["traces", "metrics"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "OTEL_EXPORTER_OTLP_HEADERS needs a valid token"),
        (403, "the token of OTEL_EXPORTER_OTLP_HEADERS may not write"),
        (404, "no OTLP receiver is at this path: OTEL_EXPORTER_OTLP_ENDPOINT goes without /v1/"),
        (503, "answers 503"),
    ],
)
def test_a_collector_that_refuses(doctor: Doctor, status: int, said: str) -> None:
    """Asked once for each signal."""
    with receivers.http(lambda _: receivers.Reply(status)) as receiver:
        told = doctor("--otlp", receiver.url)
    assert told.status == 1
    assert [said in text for text in told.bad] == [True, True]
    assert len(receiver.requests) == 2


def test_nobody_listens(doctor: Doctor) -> None:
    """And what to do."""
    told = doctor("--otlp", f"http://127.0.0.1:{receivers.dead_port()}")
    assert ["nothing listens there: start a collector" in text for text in told.bad] == [True] * 2


def test_a_host_that_is_not_known(doctor: Doctor) -> None:
    """A name of the domain that is kept for that."""
    told = doctor("--otlp", "http://no-such-host.invalid:4318")
    assert ["host name is not known; mend the name" in text for text in told.bad] == [True] * 2


def test_the_wrong_protocol(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP to a gRPC port and gRPC to an HTTP port: the variable to change is named."""
    with receivers.over_grpc() as receiver:
        told = doctor("--otlp", receiver.url)
    assert ["OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in text for text in told.bad] == [True] * 2
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with receivers.http() as receiver:
        told = doctor("--otlp", receiver.url)
    assert ["OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in t for t in told.bad] == [True] * 2


def test_a_certificate_that_is_not_trusted(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named; with it, it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(OTLP / "localhost.pem")
    with receivers.http(tls=context) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        told = doctor("--otlp", url)
        assert ["OTEL_EXPORTER_OTLP_CERTIFICATE" in text for text in told.bad] == [True] * 2
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(OTLP / "localhost.pem"))
        assert doctor("--otlp", url).status == 0


def test_a_collector_that_says_nothing(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of the variables, and what may be the reason."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with receivers.raw(receivers.hang) as receiver:
        told = doctor("--otlp", receiver.url)
    assert ["does not answer in time; is it up" in text for text in told.bad] == [True] * 2


def test_variables_are_told_and_secrets_are_not(
    doctor: Doctor, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the findings nor on the page."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20sesame")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/sesame.key")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "token=sesame")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("https_proxy", "http://me:sesame@proxy")
    with receivers.http() as receiver:
        url = receiver.url.replace("//", "//me:sesame@")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces?key=sesame")
        told, page = doctor(), call("doctor")
    assert told.of("Sending by OTLP")[0] == (
        "good",
        (
            "OTEL_EXPORTER_OTLP_HEADERS=(set), OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=(set), "
            f"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT={receiver.url}/v1/traces, "
            "OTEL_METRICS_EXPORTER=none, OTEL_RESOURCE_ATTRIBUTES=(set), "
            "OTEL_TRACES_SAMPLER=traceidratio, https_proxy=(set)"
        ),
    )
    assert ("note", "metrics are not sent: the variables say so") in told.of("Sending by OTLP")
    assert "sesame" not in json.dumps(told.findings)
    assert "sesame" not in page.output
    assert without_secrets("http://[") == "(no URL)"


def test_variables_that_make_no_sense(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding for each; a contradiction is one, too."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    with receivers.http() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        told = doctor()
        assert ["OTEL_BSP_MAX_QUEUE_SIZE=many is not" in text for text in told.bad] == [True]
        assert any("Prometheus refuses" in text for _, text in told.of("Sending by OTLP"))
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        (text,) = doctor().bad
    assert "other variables switch sending off" in text


def test_what_is_no_url(call: Any) -> None:
    """Wrong usage: status 2, and as JSON where that was asked for."""
    result = call("doctor", "--otlp", "localhost:4318")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is no URL" in result.stderr
    told = json.loads(call("doctor", "--json", "--otlp", "x").stdout)
    assert told["error"]["where"] == "--otlp"


# -------------------------------------------------------------------------------------- trainers


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a made-up `trl` of a version, whose module has this text."""

    def install(version: str, code: str) -> None:
        site = tmp_path / "site"
        package = site / "trl" / "trainer"
        package.mkdir(parents=True, exist_ok=True)
        for folder in (site / "trl", package):
            (folder / "__init__.py").write_text("")
        (package / "grpo_trainer.py").write_text(code)
        info = site / f"trl-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{Path(__file__).parents[2]}")

    return install


def test_a_trainer_of_another_version(doctor: Doctor, made_up: Any) -> None:
    """It is not imported; what is supported is said."""
    made_up("9.9", "raise SystemExit('imported')")
    (text,) = doctor().bad
    assert text == "not observed: trl 9.9 is installed and >=1.0,<1.17 is supported"


def test_a_trainer_that_another_one_brings(doctor: Doctor, made_up: Any, tmp_path: Path) -> None:
    """Its version is that one's matter."""
    made_up("0.29", "raise SystemExit('imported')")
    info = tmp_path / "site" / "ms_swift-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ms-swift\nVersion: 9.0\nRequires-Dist: TRL<0.30,>=0.15\n"
    )
    told = doctor().of("Trainers")
    assert told[0] == ("note", "trl 0.29 is there for ms-swift and not observed by itself")
    assert (told[1][0], told[1][1].startswith("not observed: ms-swift 9.0 ")) == ("bad", True)


def test_a_trainer_whose_methods_have_changed(doctor: Doctor, made_up: Any, tmp_path: Path) -> None:
    """What the adapter says of it, from a process of its own: nothing of it is loaded here."""
    trl = "import transformers, trl.extras.profiling\nclass GRPOTrainer: pass\n"
    made_up("1.16.3", trl)
    site = tmp_path / "site"
    (site / "transformers.py").write_text("class TrainerCallback: pass\n")
    (site / "trl" / "extras").mkdir()
    (site / "trl" / "extras" / "__init__.py").write_text("")
    (site / "trl" / "extras" / "profiling.py").write_text("class ProfilingContext: pass\n")
    (text,) = doctor().bad
    assert text.startswith("trl 1.16.3: otel-grpo: ")
    assert "GRPOTrainer.train is gone" in text
    assert "trl.trainer.grpo_trainer" not in sys.modules


def test_a_trainer_that_can_t_be_imported(doctor: Doctor, made_up: Any) -> None:
    """The last line of its traceback."""
    made_up("1.16.0", "import no_such_module_here")
    (text,) = doctor().bad
    assert text == (
        "trl 1.16.0 can't be imported: ModuleNotFoundError: No module named 'no_such_module_here'"
    )


def test_a_trainer_that_takes_too_long(
    doctor: Doctor, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended, and that is no finding."""
    monkeypatch.setattr(trainers, "TIMEOUT_S", 0.5)
    made_up("1.16.0", "import time; time.sleep(60)")
    told = doctor()
    assert told.status == 0
    ((state, text),) = told.of("Trainers")
    assert (state, text.startswith("trl 1.16.0 took more than ")) == ("note", True)


def test_observing_is_switched_off(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our own variable."""
    monkeypatch.setenv("OTEL_GRPO_DISABLED", "true")
    (text,) = doctor().bad
    assert text.startswith("OTEL_GRPO_DISABLED is true")


# ------------------------------------------------------------------------------- run directories


def test_a_directory_that_can_t_be_written(doctor: Doctor, tmp_path: Path) -> None:
    """A file in its place; a name that is too long."""
    (tmp_path / "file").write_text("")
    (text,) = doctor("--run-dir", tmp_path / "file" / "x").bad
    assert "is no directory; say another" in text
    (text,) = doctor("--run-dir", "/proc/x").bad
    assert "/proc/x (made in /proc) can't be written (" in text


def test_the_type_of_a_file_system() -> None:
    """The longest mount point counts, of two the later one, with escapes undone."""
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:50 / /data rw shared:1 - nfs4 server:/x rw\n"
        "24 23 0:51 / /data/my\\040runs rw - lustre x rw\n"
        "25 22 0:52 / /data rw - fuse.sshfs x rw\n"
        "broken\n"
    )
    assert directory.file_system(Path("/database"), mounts) == "ext4"
    assert directory.file_system(Path("/data/runs"), mounts) == "fuse.sshfs"
    assert directory.file_system(Path("/data/my runs/a"), mounts) == "lustre"
    assert directory.file_system(Path("/"), "") == "unknown"


def test_who_sees_a_directory(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its file system; one without locks is a finding."""
    monkeypatch.setattr(directory, "file_system", lambda _: "nfs4")
    assert ("note", "its file system is nfs4: other machines may see it, too") in (
        doctor("--run-dir", tmp_path).of("Run directory")
    )
    monkeypatch.setattr(directory.fcntl, "flock", lambda *_: None)
    (text,) = doctor("--run-dir", tmp_path).bad
    assert text.startswith("locks do not work on nfs4")


# ------------------------------------------------------------------------------------- last run


def test_what_was_refused_of_the_last_run(doctor: Doctor, reference: Any, tmp_path: Path) -> None:
    """By sink and reason; the newest below runs/ is the last one."""
    sinks = {
        "spans": SinkCounts(39, 39, 0, 0),
        "otlp_spans": SinkCounts(39, 30, 7, 0, {"http_401": 4, "queue_full": 3}, unconfirmed=2),
        "otlp_metrics": SinkCounts(4, 4, 0, 0, unconfirmed=0),
    }
    observed = reference.summary.observed
    observed.sinks = sinks
    reference.change(observed=observed)
    reference.path = tmp_path / "runs" / "new"
    reference.write()
    old = tmp_path / "runs" / "old"
    old.mkdir()
    (old / "run.json").write_text("{}")
    os.utime(old / "run.json", (1, 1))
    told = doctor()
    assert told.bad == [
        (
            "7 spans not taken, 2 spans sent without an answer (`otel-grpo replay` sends them again): "
            "http_401 4, queue_full 3"
        )
    ]
    found = told.of("Last run")
    assert found[0] == ("good", "runs/new: run reference, completed")
    assert ("good", "otlp_metrics: 4 of 4 taken") in found
    (told,) = doctor("--run-dir", old).bad
    assert told.startswith(f"{old}/run.json: ")


def test_a_run_that_was_not_sent(doctor: Doctor, real: Path) -> None:
    """That is no fault."""
    found = doctor("--run-dir", real).of("Last run")
    assert ("note", "nothing of it was sent; `otel-grpo replay` can do so") in found


def test_a_link_to_the_traces(doctor: Doctor, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Jaeger has them; one that was named and is away is a finding."""
    asked: list[str] = []
    data = [{"traceID": "1"}]

    class Jaeger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"data": data}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Jaeger) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_GRPO_JAEGER_URL", f"{url}/")
        found = {text.split(":")[0]: text for _, text in doctor("--run-dir", real).of("Last run")}
        data.clear()
        none = doctor("--run-dir", real).of("Last run")
        server.shutdown()
    link = urlsplit(found["its traces"].removeprefix("its traces: "))
    query = parse_qs(link.query)
    assert f"{link.scheme}://{link.netloc}{link.path}" == f"{url}/search"
    assert query["service"] == ["otel-grpo"]
    assert json.loads(query["tags"][0]) == {"rl.run.id": "real"}
    run = json.loads((real / "run.json").read_text())
    assert int(query["start"][0]) == run["attempts"][0]["started_unix_ns"] // 1000
    assert int(query["end"][0]) <= time.time() * 10**6
    assert asked[0].startswith("/api/traces?service=otel-grpo&")
    assert ("note", f"Jaeger at {url} has no trace of it") in none
    (text,) = doctor("--run-dir", real).bad
    assert f"{url} (OTEL_GRPO_JAEGER_URL) does not answer" in text
