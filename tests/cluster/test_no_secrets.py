"""Passwords and keys are in nothing that real processes print, log, serve as metrics, or show of themselves."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.certificates import Authority
from tests.command import COMMAND, PRELOADED, environment
from tests.waiting import eventually_here

from bkpy.local.process import free_port
from bkpy.protocol.wire.records import digest_key, ledger_key

if TYPE_CHECKING:
    from bkpy.local.zookeeper import ZooKeeperServer

DEADLINE_S = 100
USER = "bkpy"
ZOOKEEPER_PASSWORD = "zk-4711-hush"
LEDGER_PASSWORD = "ledger-0815-hush"


class Run:
    """Commands with the same variables, and all that they have shown."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self.shown = b""

    def __call__(self, *words: object, stdin: bytes = b"", fails: bool = False, **others: str) -> str:
        env = {**self.variables, **others}
        done = PRELOADED.run(list(map(str, words)), stdin=stdin, env=env, timeout_s=DEADLINE_S)
        self.shown += done.stdout + done.stderr
        assert (done.returncode != 0) is fails, done.stderr.decode()
        return done.stdout.decode()


def test_no_password_and_no_key_is_shown_anywhere(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    files = ca.settings(ca.issue("everybody"))
    password = tmp_path / "password"
    password.write_text(f"{LEDGER_PASSWORD}\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("another")
    hidden = secrets(files["tls_key_file"])
    uri = f"zk://{zookeeper.connect_string}/secrets"
    tls = {f"BKPY_{name.upper()}": value for name, value in files.items()}
    run = Run({**environment(uri), **tls, "BKPY_ZOOKEEPER_AUTH": f"{USER}:{ZOOKEEPER_PASSWORD}"})
    run("--debug", "cluster", "init")
    port, metrics_port = free_port(), free_port()
    log = tmp_path / "bookie.log"
    directories = [f"--{kind}_directories={tmp_path / kind}" for kind in ("journal", "ledger")]
    words = [f"--metadata_uri={uri}", "--bookie_id=a", f"--listen=127.0.0.1:{port}", f"--metrics_port={metrics_port}"]
    with log.open("wb") as out:
        bookie = subprocess.Popen(
            [*COMMAND, "bookie", "run", *words, *directories, "--log_level=debug"],
            stdout=out,
            stderr=out,
            env=run.variables,
        )
    try:
        wait_for(bookie, log)
        sizes = ("--ensemble", "1,1,1")
        options = ("--password-file", password, "--digest", "hmac-sha256")
        ledger_id = run("--debug", "ledger", "write", *sizes, *options, stdin=b"one\ntwo\n").strip()
        assert run("--debug", "ledger", "read", ledger_id, "--password-file", password) == "one\ntwo\n"
        run("--debug", "ledger", "read", ledger_id, "--password-file", wrong, fails=True)
        run("--debug", "ledger", "recover", ledger_id, "--password-file", password)
        run("--debug", "ledger", "show", ledger_id)
        # What fails, with tracebacks: other credentials, and files that make no sense.
        run("--debug", "ledger", "list", fails=True, BKPY_ZOOKEEPER_AUTH=f"{USER}:no-{ZOOKEEPER_PASSWORD}")
        run("--debug", "ledger", "list", fails=True, BKPY_ZOOKEEPER_AUTH=f"{ZOOKEEPER_PASSWORD}:")
        run("--debug", "--set", f"zookeeper_auth={USER}:x", "ledger", "list", fails=True)
        run("--debug", "ledger", "read", ledger_id, fails=True, BKPY_TLS_KEY_FILE=str(ca.file))
        run("--debug", "ledger", "read", ledger_id, fails=True, BKPY_TLS_CERTIFICATE_FILE=files["tls_key_file"])
        run("--debug", "ledger", "read", ledger_id, fails=True, BKPY_ZOOKEEPER_AUTH="", BKPY_ZOOKEEPER_AUTH_FILE="/x")
        os.kill(bookie.pid, signal.SIGHUP)
        Path(files["tls_key_file"]).write_bytes(Path(files["tls_key_file"]).read_bytes()[:60])
        os.kill(bookie.pid, signal.SIGHUP)  # it is told of in the log
        page = urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics").read()
        command_line = Path(f"/proc/{bookie.pid}/cmdline").read_bytes()
    finally:
        bookie.send_signal(signal.SIGTERM)
        bookie.wait(DEADLINE_S)
    logged = log.read_bytes()
    assert b"goes on with its former certificates" in logged
    assert b"bkpy_bookie_tls_handshakes_total" in page
    assert b"Traceback" in run.shown
    everything = run.shown + logged + page + command_line
    for secret in hidden:
        assert secret not in everything


def secrets(key_file: str) -> list[bytes]:
    """What must not be seen, in every form that something might write it."""
    raw = [ledger_key(LEDGER_PASSWORD.encode()), digest_key(LEDGER_PASSWORD.encode())]
    texts = [ZOOKEEPER_PASSWORD.encode(), LEDGER_PASSWORD.encode()]
    forms = [
        form
        for key in (*raw, *texts)
        for form in (key, key.hex().encode(), base64.b64encode(key), repr(key)[2:-1].encode())
    ]
    return [*forms, b"PRIVATE KEY", *(line for line in Path(key_file).read_bytes().splitlines()[1:2] if line)]


def wait_for(bookie: subprocess.Popen[bytes], log: Path) -> None:
    eventually_here(lambda: bookie.poll() is not None or b"serves at" in log.read_bytes(), "the bookie serves")
    assert bookie.poll() is None, log.read_text()
