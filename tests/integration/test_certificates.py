"""Agents and rendezvous with certificates: what is accepted, what is refused and with which words, and SIGHUP."""

import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys

import pytest

import jobs
import nodes as lib
from crund import Crund
from job_secret import write_secret
from session_agent import Agent

pytestmark = pytest.mark.sanitize

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"
MAKE = pathlib.Path(__file__).resolve().parents[1] / "support" / "make_certificates.sh"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run([MAKE, folder], check=True, stdout=subprocess.DEVNULL, timeout=120)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Without a secret of the user who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CRUN_SECRET_FILE", "CRUN_SECRET_FD"):
        monkeypatch.delenv(name, raising=False)


def files(folder, name, ca="ca"):
    options = [f"--tls-cert={folder}/{name}.pem", f"--tls-key={folder}/{name}.key"]
    return options + ([f"--tls-ca={folder}/{ca}.pem"] if ca else [])


def options(port, *more, host="localhost", nnodes=2, conf="last_call_timeout=60,join_timeout=30", job="job"):
    return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", f"--rdzv-id={job}",
            f"--rdzv-conf={conf}", *more]


def program(script):
    return ["--no-python", "sh", "-c", script]


@pytest.mark.parametrize("more", [[], ["--seal"]])
def test_nodes_with_certificates_meet(tmp_path, made, more):
    """A crun that serves the rendezvous and the store; a restart, so that both serve twice."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for name in ("node", "next"):
            nodes.crun(*options(port, "--max-restarts=1", "--security=require", *files(made, name), *more),
                       *program("[ $CRUN_GENERATION = 1 -o $RANK = 0 ] && echo RANK $RANK OF $WORLD_SIZE"))
        assert nodes.codes() == [0, 0], nodes.texts()
        text = nodes.texts()
        assert "RANK 0 OF 2" in text and "RANK 1 OF 2" in text
        assert "this job is open" not in text and "worker store" not in text


# The keys are those of the node's store, whose link to the rendezvous has to be made with the certificates.
STORE_WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from crund import Client
with Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as client:
    if os.environ["RANK"] == "0":
        client.set("word", b"of both")
    while not (word := client.get("word").decode()):
        time.sleep(0.05)
os.write(1, f"WORD {word}{' KEY' * ('CRUN_KEY_FD' in os.environ)}\\n".encode())
"""


def test_secret_beside_certificates_is_for_the_workers(tmp_path, made):
    secret = write_secret(tmp_path / "secret")
    worker = tmp_path / "worker.py"
    worker.write_text(STORE_WORKER)
    with Crund(BUILD, *files(made, "node")) as crund, lib.Nodes(tmp_path) as nodes:
        for name in ("next", "chained"):
            nodes.crun(*options(crund.port, f"--secret-file={secret}", *files(made, name), "--seal"),
                       worker, SUPPORT, env={"PYTHON_EXEC": sys.executable})
        assert nodes.codes() == [0, 0], nodes.texts()
        assert nodes.texts().count("KEY") == nodes.texts().count("WORD of both") == 2


# What one node needs to be refused: its certificate, its CAs, the name of the endpoint; the words that it prints; the words in
# crund's log.
REFUSED = [
    ("foreign", "ca", "localhost", "it does not accept the certificate", "its certificate is not accepted"),
    ("next", "other-ca", "localhost", "other-ca.pem (--tls-ca) stands for its certificate", ""),
    ("next", "ca", "127.0.0.2", "its certificate is not for 127.0.0.2, but for DNS:localhost, DNS:rendezvous.test, IP Address:127.0.0.1: name the "
     "endpoint as the certificate's subjectAltName does, or give it one for that name); trying again for", ""),
    ("server", "ca", "localhost", "it does not accept the certificate", "its certificate is not accepted"),
]


@pytest.mark.parametrize("cert, ca, host, here, there", REFUSED)
def test_node_is_refused(tmp_path, made, cert, ca, host, here, there):
    listen = (host.replace("localhost", "127.0.0.1") + ":0",)
    with Crund(BUILD, *files(made, "node"), listen=listen) as crund, lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(crund.port, *files(made, cert, ca), host=host, nnodes="1:2",
                                   conf="join_timeout=3,last_call_timeout=1,is_host=false"), *program("echo STOLEN"))
        assert node.wait() == 1
        assert here in node.text() and "STOLEN" not in node.text(), node.text()
        assert there in crund.log(), crund.log()


ENDPOINTS = [("localhost", "127.0.0.1", "first"), ("127.0.0.2", "127.0.0.2", "second"), ("127.0.0.3", "127.0.0.3", "third")]


def run_with_endpoints(nodes, crund, at, made):
    """A node that knows three rendezvous, of which that with the index `at` runs."""
    ports = [crund.port if i == at else lib.free_port() for i in range(3)]
    endpoints = ",".join(f"{host}:{port}" for (host, _, _), port in zip(ENDPOINTS, ports))
    return nodes.crun("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoints}", "--rdzv-id=job",
                      "--rdzv-conf=join_timeout=6,last_call_timeout=1", *files(made, "node"),
                      *program("echo RAN"))


@pytest.mark.parametrize("at", range(3))
def test_each_endpoint_has_a_name_of_its_own(tmp_path, made, at):
    _, address, cert = ENDPOINTS[at]
    with Crund(BUILD, *files(made, cert), listen=(f"{address}:0",)) as crund, lib.Nodes(tmp_path) as nodes:
        node = run_with_endpoints(nodes, crund, at, made)
        assert node.wait() == 0 and "RAN" in node.text(), node.text()


@pytest.mark.parametrize("at, cert", [(0, "second"), (1, "first"), (2, "second")])
def test_the_name_of_another_endpoint_is_refused(tmp_path, made, at, cert):
    """A rendezvous cannot take the place of another one by its own certificate."""
    host, address, _ = ENDPOINTS[at]
    with Crund(BUILD, *files(made, cert), listen=(f"{address}:0",)) as crund, lib.Nodes(tmp_path) as nodes:
        node = run_with_endpoints(nodes, crund, at, made)
        assert node.wait() == 1 and "RAN" not in node.text(), node.text()
        assert "generation 0 runs" not in crund.log()
        names = {"first": "DNS:localhost", "second": "IP Address:127.0.0.2"}
        reason = (f"{address}:{crund.port}: its certificate is not for {host}, but for {names[cert]}: name the endpoint as the certificate's "
                  "subjectAltName does, or give it one for that name")
        if at > 0:  # a name may not have been looked up at the first attempt
            assert f"cannot be reached ({reason}); trying again for" in node.text(), node.text()
        assert f"(the join timeout): {reason}; check that it runs there" in node.text(), node.text()


def test_crunctl_with_certificates(tmp_path, made):
    """One job is shown, by its name, and to a client whose certificate is accepted; the rendezvous has to name its host."""
    port = lib.free_port()
    script = program(f"echo UP; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done")

    def ask(*more, name="next", ca="ca", host="localhost"):
        words = [w for option in files(made, name, ca) for w in option.split("=")]
        command = [BUILD / "launcher" / "crunctl", "--json", *words, "--endpoint", f"{host}:{port}", "status", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    with lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(port, *files(made, "first"), nnodes="1:2", conf="last_call_timeout=1"), *script)
        node.wait_for("UP")
        got = ask("job")
        assert got.returncode == 0 and json.loads(got.stdout)["job"] == "job", got
        for got, words in ((ask(), "with a certificate one job is shown"),
                           (ask("job", host="127.0.0.1"), "its certificate is not for 127.0.0.1"),
                           (ask("job", ca="other-ca"), "stands for its certificate"),
                           (ask("job", ca=None), "all three are needed"),
                           (ask("job", name="absent"), "cannot read the certificate")):
            assert got.returncode in (1, 2) and got.stdout == "" and words in got.stderr, got
        assert ask("job", name="foreign").returncode == 1
        (tmp_path / "end").touch()
        assert node.wait() == 0, node.text()


def test_no_way_back_to_the_clear(tmp_path, made):
    """A plain agent at a crund with certificates, and an agent with certificates at a plain crund, or one with secrets."""
    short = "join_timeout=3,last_call_timeout=1"
    with Crund(BUILD, *files(made, "node")) as crund, lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(crund.port, "--security=open", nnodes="1:2", conf=short), *program("echo STOLEN"))
        assert node.wait() == 1
        assert "start crun with --tls-cert" in node.text() and "STOLEN" not in node.text()
        with Agent(crund.port, job="job") as agent:
            view = agent.join().view()
        assert view["view"] == "refused" and "--tls-cert" in json.dumps(view)

    secret = write_secret(tmp_path / "secret")
    for more in ([], ["--secret-file", str(secret)]):
        with Crund(BUILD, *more) as crund, lib.Nodes(tmp_path) as nodes:
            node = nodes.crun(*options(crund.port, *files(made, "node"), nnodes="1:2", conf=short),
                              *program("echo STOLEN"))
            assert node.wait() == 1
            assert "STOLEN" not in node.text()
            assert "certificate" in node.text() or "it has no secret" in node.text(), node.text()


def test_older_tls_is_refused(made):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(made / "ca.pem")
    context.load_cert_chain(made / "node.pem", made / "node.key")
    context.set_alpn_protocols(["crun1-agent"])
    with Crund(BUILD, *files(made, "node")) as crund:
        with socket.create_connection(("127.0.0.1", crund.port), timeout=60) as s:
            with context.wrap_socket(s, server_hostname="localhost") as tls:
                assert tls.version() == "TLSv1.3" and tls.selected_alpn_protocol() == "crun1-agent"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", crund.port), timeout=60) as s, pytest.raises(ssl.SSLError):
            context.wrap_socket(s, server_hostname="localhost")


def test_without_cas_every_client_is_served_encrypted(tmp_path, made):
    with Crund(BUILD, *files(made, "node", ca=None)) as crund, lib.Nodes(tmp_path) as nodes:
        node = nodes.crun(*options(crund.port, *files(made, "foreign"), nnodes="1:2", conf="last_call_timeout=1"),
                          *program("true"))
        assert node.wait() == 0, node.text()


def served_certificate(port, made):
    """Of the rendezvous, whether or not it accepts us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(made / "bundle.pem")
    context.load_cert_chain(made / "node.pem", made / "node.key")
    context.set_alpn_protocols(["crun1-agent"])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        with context.wrap_socket(s, server_hostname="localhost") as tls:
            return tls.getpeercert(binary_form=True)


def der(path):
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_sighup_reads_them_again(tmp_path, made):
    """A session that is open goes on; one that cannot be read changes nothing, and is named."""
    used = tmp_path / "used"
    used.mkdir()

    def install(name):
        for suffix in (".pem", ".key"):
            shutil.copy(made / (name + suffix), used / ("crund" + suffix))
        shutil.copy(made / "ca.pem", used / "ca.pem")

    install("node")
    with Crund(BUILD, *files(used, "crund")) as crund, lib.Nodes(tmp_path) as nodes:
        assert served_certificate(crund.port, made) == der(made / "node.pem")
        first = nodes.crun(*options(crund.port, *files(made, "chained")), *program("echo UP"))
        jobs.wait_for(lambda: "1/2 nodes" in first.text())

        install("next")
        crund.process.send_signal(signal.SIGHUP)
        jobs.wait_for(lambda: crund.log().count("certificates read") == 1)
        assert served_certificate(crund.port, made) == der(made / "next.pem")

        bad = [(lambda: install("expired"), "has expired on"),
               (lambda: shutil.copy(made / "node.pem", used / "crund.pem"), "does not belong to the certificate"),
               (lambda: (used / "crund.key").chmod(0o644), "chmod o="),
               (lambda: (used / "ca.pem").unlink(), "ca.pem: No such file")]
        for i, (spoil, words) in enumerate(bad):
            install("next")
            spoil()
            crund.process.send_signal(signal.SIGHUP)
            jobs.wait_for(lambda: crund.log().count("the certificates stay as they were") == i + 1)
            assert words in crund.log(), crund.log()
            assert served_certificate(crund.port, made) == der(made / "next.pem")

        nodes.crun(*options(crund.port, *files(made, "node")), *program("echo UP"))
        assert nodes.codes() == [0, 0], nodes.texts() + crund.log()
        assert crund.stop() == 0, crund.log()


@pytest.mark.parametrize("arguments, words", [
    (["--tls-cert={made}/expired.pem", "--tls-key={made}/expired.key", "--tls-ca={made}/ca.pem"], "has expired on"),
    (["--tls-cert={made}/node.pem", "--tls-key={made}/next.key", "--tls-ca={made}/ca.pem"], "does not belong"),
    (["--tls-cert={made}/node.pem", "--tls-key={tmp}/public.key", "--tls-ca={made}/ca.pem"], "chmod o="),
    (["--tls-cert={made}/locked.pem", "--tls-key={made}/locked.key", "--tls-ca={made}/ca.pem"], "has a passphrase"),
    (["--tls-cert={made}/node.pem", "--tls-key={made}/absent.key", "--tls-ca={made}/ca.pem"], "absent.key: No such file"),
])
def test_files_that_cannot_be_used(tmp_path, made, arguments, words):
    shutil.copy(made / "node.key", tmp_path / "public.key")
    (tmp_path / "public.key").chmod(0o644)
    arguments = [a.format(made=made, tmp=tmp_path) for a in arguments]
    commands = ([jobs.crun(), *options(lib.free_port()), *arguments, *program("true")],
                [BUILD / "rendezvous" / "crund", "--listen=127.0.0.1:0", *arguments])
    for command in commands:
        got = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert got.returncode == 1 and words in got.stderr, got.stderr


def test_guardian_of_a_killed_crun_is_believed(tmp_path, made):
    port = lib.free_port()
    script = "echo UP $RANK; [ $CRUN_GENERATION = 0 ] && exec sleep 600; echo AGAIN"
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, *files(made, "node"), "--max-restarts=1", nnodes="1:2"), *program(script))
        jobs.wait_for(lambda: lib.can_connect(port))
        nodes.crun(*options(port, *files(made, "next"), "--max-restarts=1", nnodes="1:2"), *program(script))
        for node in nodes:
            node.wait_for("UP")
        nodes[1].process.kill()
        assert nodes[0].wait() == 0, nodes.texts()
        assert "ended without" in nodes[0].text()
