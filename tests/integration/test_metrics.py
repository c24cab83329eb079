"""--metrics-addr of crun and crund: formats, values, limits, and the files for Prometheus and Grafana."""

import json
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import jobs
import launches
from crund import Crund
from scrapes import OPEN_METRICS, samples, scrape, value
from session_agent import Agent
from strict import skip

pytestmark = pytest.mark.sanitize

BUILD = jobs.build_folder()


@pytest.fixture(autouse=True)
def library():
    import ctypes.util
    if not ctypes.util.find_library("microhttpd"):
        skip("libmicrohttpd is not installed")


def lint(text):
    if not shutil.which("promtool"):
        skip("promtool is not installed")
    p = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stderr == "", p.stderr


def port_of(stream):
    """From the line that names it; lines before it are passed over."""
    for line in stream:
        m = re.search(r"metrics on port (\d+)", line)
        if m:
            return int(m.group(1))
    raise AssertionError("no line names the port")


@pytest.fixture
def crund():
    with Crund(BUILD, "--metrics-addr=0") as c:
        c.metrics = port_of(c.process.stdout)
        yield c
        assert c.stop() == 0, c.log()


def test_crund(crund):
    with crund.client() as client:
        for i in range(10):
            client.set(b"/key", b"value")
        assert client.get(b"/key") == b"value"
        with Agent(crund.port, job="train\"7\\", min_nodes=2, max_nodes=2).join() as agent:
            agent.view("wait")
            status, kind, text = scrape(crund.metrics)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = samples(text)
    assert value(found, "crun_store_operations_total", op="set") == 10
    assert value(found, "crun_store_operations_total", op="get") == 1
    assert value(found, "crun_store_operation_seconds_count") >= 11
    assert 0 < value(found, "crun_store_operation_seconds_sum") < 10
    assert value(found, "crun_sessions") == 1 and value(found, "crun_jobs", state="gathering") == 1
    assert found["crun_job_nodes", (("job_id", 'train\\"7\\\\'),)] == 1
    lint(text)
    status, kind, text = scrape(crund.metrics, accept=OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0") and text.endswith("# EOF\n")
    assert "# TYPE crun_store_operations counter" in text


def test_crund_has_the_workers_of_its_jobs(crund):
    """By job: what the nodes report, why generations ended, and whether no node makes progress."""
    def found():
        return samples(scrape(crund.metrics)[2])
    with Agent(crund.port, job="red", workers=3, min_nodes=2, max_nodes=2).join() as a, \
            Agent(crund.port, job="red", workers=5, min_nodes=2, max_nodes=2).join() as b, Agent(crund.port, job="blue").join() as c:
        for agent in (a, b, c):
            agent.start()
        seen = jobs.wait_for(lambda: (s := found()) and value(s, "crun_workers", job_id="red", state="running") == 8 and s, 30, 0.05)
        assert value(seen, "crun_workers", job_id="blue", state="running") == 2
        assert value(seen, "crun_job_generations_total", job_id="red") == 1 and value(seen, "crun_hang_suspected", job_id="red") == 0
        assert 0 < value(seen, "crun_generation_seconds", job_id="red") < 600
        a.say("running", quiet=True)
        b.say("running", quiet=True)
        jobs.wait_for(lambda: value(found(), "crun_hang_suspected", job_id="red") == 1, 30, 0.05)
        assert value(found(), "crun_hang_suspected", job_id="blue") == 0
        a.fail(0)
        b.view("stop")
        assert jobs.wait_for(lambda: (s := found()) and value(s, "crun_hang_suspected", job_id="red") == 0 and s, 30, 0.05)
        for agent in (a, b):
            agent.say("ready")
        for agent in (a, b):
            agent.start()
        seen = jobs.wait_for(lambda: (s := found()) and value(s, "crun_job_generations_total", job_id="red") == 2 and s, 30, 0.05)
        assert value(seen, "crun_restarts_total", job_id="red", cause="worker") == 1
        assert value(seen, "crun_restarts_total", job_id="red", cause="lost") == 0 == value(seen, "crun_restarts_total", job_id="blue", cause="worker")
        a.say("done")
        jobs.wait_for(lambda: value(found(), "crun_workers", job_id="red", state="succeeded") == 3, 30, 0.05)
        lint(scrape(crund.metrics)[2])


def test_other_requests(crund):
    assert scrape(crund.metrics, "/")[0] == 404
    assert scrape(crund.metrics, method="POST")[0] == 405
    assert scrape(crund.metrics, method="HEAD")[::2] == (200, "")


def test_silent_scrapers_delay_nothing(crund):
    """More than are served, which send nothing; the end does not wait for them."""
    silent = [socket.create_connection(("127.0.0.1", crund.metrics)) for _ in range(40)]
    with crund.client() as client:
        assert client.ping()
    begin = time.monotonic()
    crund.process.send_signal(signal.SIGTERM)
    assert crund.process.wait(60) == 0 and time.monotonic() - begin < 20
    for s in silent:
        s.close()


def test_memory_stays(crund):
    if jobs.is_sanitized():
        pytest.skip("a sanitizer keeps what was freed")
    for _ in range(200):
        scrape(crund.metrics)
    before = crund.rss_kib()
    for _ in range(1000):
        scrape(crund.metrics, accept=OPEN_METRICS)
    assert crund.rss_kib() - before < 1024


def test_process_that_stood_still(crund):
    """A stopped process answers again when it goes on."""
    scrape(crund.metrics)
    crund.process.send_signal(signal.SIGSTOP)
    with pytest.raises((TimeoutError, socket.timeout)):
        scrape(crund.metrics, timeout=1)
    crund.process.send_signal(signal.SIGCONT)
    assert scrape(crund.metrics)[0] == 200


def test_address_that_is_used(crund):
    p = subprocess.run([BUILD / "rendezvous" / "crund", "--listen=127.0.0.1:0", f"--metrics-addr={crund.metrics}"],
                       capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and "cannot serve metrics" in p.stderr
    p = jobs.run([jobs.crun(), f"--metrics-addr={crund.metrics}", "--no-python", "true"])
    assert p.returncode == 0 and "the job runs without metrics" in p.stderr
    for address in ("name:1", "1.2.3.4", "70000"):
        assert jobs.run([jobs.crun(), f"--metrics-addr={address}", "--no-python", "true"]).returncode == 1
        assert subprocess.run([BUILD / "rendezvous" / "crund", f"--metrics-addr={address}"], capture_output=True, timeout=60).returncode == 2


def test_crun():
    """A job that was restarted once: states, causes, the store of its workers."""
    job = launches.start(["--nproc-per-node=2", "--max-restarts=2", "--metrics-addr=0", "--redirects=0", "-t", "3", "--no-python", "sh", "-c",
                          "echo line; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ] && exit 3; exec sleep 60"],
                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    port = port_of(job.stderr)

    def restarted():
        found = samples(scrape(port)[2])
        return found if value(found, "crun_generation") == 1 and value(found, "crun_workers", state="running") == 2 else None
    found = jobs.wait_for(restarted, 60, 0.05)
    assert value(found, "crun_restarts_total", cause="worker") == 1
    assert value(found, "crun_restarts_total", cause="peer") == 0
    assert value(found, "crun_generation_seconds") >= 0
    assert value(found, "crun_hang_suspected", rank="1") == 0
    jobs.wait_for(lambda: value(samples(scrape(port)[2]), "crun_output_bytes_total") >= 10, 30, 0.05)
    lint(scrape(port)[2])
    job.terminate()
    job.communicate(timeout=60)
    with pytest.raises(ConnectionRefusedError):
        scrape(port)


def test_alert_rules_and_dashboard():
    """They are well formed, and name metrics that exist."""
    rules = jobs.ROOT / "packaging" / "prometheus" / "crun-alerts.yml"
    dashboard = (jobs.ROOT / "packaging" / "grafana" / "crun-dashboard.json").read_text()
    sources = "\n".join(p.read_text() for room in ("launcher", "rendezvous") for p in (jobs.ROOT / room).rglob("*.c"))
    json.loads(dashboard)
    for name in set(re.findall(r"crun_[a-z_]+", rules.read_text() + dashboard)):
        assert f'"{re.sub("_(total|bucket)$", "", name)}"' in sources, name
    if not shutil.which("promtool"):
        skip("promtool is not installed")
    p = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
