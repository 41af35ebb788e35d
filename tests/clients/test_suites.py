"""The suites of the Go and Rust clients, and all commands of pulsar-admin, by `make clients`.

Each reaches what it reaches with Apache Pulsar; what is excepted has its reason in exceptions.toml.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.suites import (
    CLIENTS,
    HTTP_PORT,
    HTTPS_PORT,
    NAMESPACES,
    PORT,
    TLS_PORT,
    Outcome,
    call,
    copied,
    go_outcome,
    go_run,
    judge,
    needs,
    rust_run,
    say,
    served,
)
from tests.processes import magnetar_command, magnetar_environment

pytestmark = pytest.mark.timeout(5400)

GO_MODULE = "github.com/apache/pulsar-client-go@v0.19.0"
RUST_CRATE = "6.9.1"
BUILD_TIMEOUT_S = 1800
GO_TIMEOUT_S = 2700
RUST_TIMEOUT_S = 600
SWEEP_TIMEOUT_S = 1800


# --- Go ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def go_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the Go client with its tests, to compile in."""
    needs("go", *NAMESPACES)
    place = tmp_path_factory.mktemp("go")
    found = json.loads(
        call(place, "go", "mod", "download", "-json", GO_MODULE, timeout_s=BUILD_TIMEOUT_S)
    )
    return copied(Path(found["Dir"]), place / "client")


def go_config(module: Path) -> str:
    """What the suite's own set-up of Pulsar says, `integration-tests/conf/standalone.conf`.

    There, all backlogs are looked at every 5 s. Here, topics are spread over the interval, and a
    new one has its turn in the next round: with 1 s that is within 5 s on a busy machine, too.
    """
    files = module / "integration-tests"
    return f"""
[broker]
tls_port = {TLS_PORT}
https_port = {HTTPS_PORT}
tls_certificate_file = "{files}/certs/broker-cert.pem"
tls_key_file = "{files}/certs/broker-key.pem"
tls_ca_file = "{files}/certs/cacert.pem"
tls_auth = true
token_secret_key = "file://{files}/tokens/secret.key"
basic_auth_file = "{files}/conf/.htpasswd"
anonymous_role = "anonymous"
authorization = true
super_users = ["localhost", "superUser", "admin"]
message_bytes_max = 1048576
key_shared_consistent_hashing = false
backlog_quota_check_interval_s = 1
"""


def go_rights(prefix: list[str], module: Path) -> None:
    """The tenants and grants of the suite's `scripts/pulsar-test-service-start.sh`."""
    token = f"file://{module}/integration-tests/tokens/admin-token"
    for command in (
        "tenants update public --admin-roles anonymous --allowed-clusters standalone",
        "namespaces grant-permission public/default anonymous --actions produce,consume",
        "tenants create private --allowed-clusters standalone",
        "namespaces create private/auth",
        "namespaces grant-permission private/auth token-principal --actions produce,consume",
    ):
        words = [*prefix, *magnetar_command("admin", *command.split())]
        more = {
            "PYTHONPATH": magnetar_environment()["PYTHONPATH"],
            "MAGNETAR_TOKEN": token,
            "MAGNETAR_ADMIN_URL": f"http://localhost:{HTTP_PORT}",
        }
        call(module, *words, timeout_s=120, **more)


def go_suite(module: Path, tmp_path: Path, suite: str, package: str) -> None:
    program = module / f"{suite}.test"
    folder = module / package
    call(folder, "go", "test", "-c", "-o", str(program), ".", timeout_s=BUILD_TIMEOUT_S)
    with served(tmp_path, go_config(module), "--advertised-host", "localhost") as space:
        go_rights(space.command_prefix, module)
        judge(suite, go_run(space, program, folder, timeout_s=GO_TIMEOUT_S))


def test_go_suite(go_module: Path, tmp_path: Path) -> None:
    """`go test ./pulsar` of the official client."""
    go_suite(go_module, tmp_path, "go", "pulsar")


def test_go_admin_suite(go_module: Path, tmp_path: Path) -> None:
    """`go test ./pulsaradmin/pkg/admin` of the official admin client."""
    go_suite(go_module, tmp_path, "go-admin", "pulsaradmin/pkg/admin")


def test_go_suites_that_need_no_server(go_module: Path) -> None:
    """What is left of `pulsaradmin`: settings, addresses, credentials."""
    packages = [
        f"./pulsaradmin/pkg/{name}" for name in ("admin/auth", "admin/config", "rest", "utils")
    ]
    events = call(go_module, "go", "test", "-json", *packages, timeout_s=BUILD_TIMEOUT_S)
    outcome = go_outcome(events)
    say(f"go, without a server: {len(outcome.passed)} passed, {len(outcome.failed)} failed")
    assert outcome.passed
    assert not outcome.failed


# --- Rust ----------------------------------------------------------------------------------------


def test_rust_suite(tmp_path: Path) -> None:
    """The tests inside pulsar-rs: with Tokio, compression and its calls of the admin interface."""
    needs("cargo", *NAMESPACES)
    crate = copied(_crate(tmp_path / "fetch"), tmp_path / "crate")
    (crate / "rust-toolchain.toml").unlink(missing_ok=True)  # Any toolchain of today will do.
    protoc = tmp_path / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    features = "tokio-runtime,compression,admin-api"
    built = call(
        crate,
        *("cargo", "test", "--lib", "--no-run", "--message-format=json"),
        *("--no-default-features", "--features", features),
        timeout_s=BUILD_TIMEOUT_S,
        PROTOC=str(protoc),
        CARGO_TARGET_DIR=str(tmp_path / "target"),
    )
    messages = [json.loads(line) for line in built.splitlines() if line.startswith("{")]
    program = next(
        each["executable"]
        for each in messages
        if each.get("executable") and each.get("target", {}).get("name") == "pulsar"
    )
    with served(tmp_path, f"[broker]\nport = {PORT}\n") as space:
        judge("rust", rust_run(space, Path(program), crate, timeout_s=RUST_TIMEOUT_S))


def _crate(place: Path) -> Path:
    """Where cargo keeps the sources of the crate."""
    (place / "src").mkdir(parents=True)
    (place / "src" / "lib.rs").write_text("")
    (place / "Cargo.toml").write_text(
        '[package]\nname = "fetch"\nversion = "0.1.0"\nedition = "2021"\n'
        f'[dependencies]\npulsar = {{ version = "={RUST_CRATE}", default-features = false, '
        'features = ["tokio-runtime", "compression", "admin-api"] }\n'
    )
    found = json.loads(
        call(place, "cargo", "metadata", "--format-version", "1", timeout_s=BUILD_TIMEOUT_S)
    )
    path = next(each["manifest_path"] for each in found["packages"] if each["name"] == "pulsar")
    return Path(path).parent


# --- Java ----------------------------------------------------------------------------------------


def test_java_admin_sweep(tmp_path: Path) -> None:
    """Every command that `pulsar-admin --help` lists, once at least, in one program."""
    needs("mvn", "java", *NAMESPACES)
    place = tmp_path / "sweep"
    shutil.copytree(CLIENTS / "java_sweep", place)
    copy = "dependency:copy-dependencies"
    lib = f"-DoutputDirectory={place / 'lib'}"
    call(place, "mvn", "-q", "-B", copy, lib, timeout_s=BUILD_TIMEOUT_S)
    with served(tmp_path, "[broker]\ntransaction_coordinator_enabled = true\n") as space:

        def run(names: Sequence[str]) -> Outcome:
            if names:  # A command depends on those before it: there is nothing to repeat alone.
                return Outcome()
            url = f"http://127.0.0.1:{HTTP_PORT}"
            story = (
                "java",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                "lib/*",
                "Sweep.java",
                url,
                f"pulsar://127.0.0.1:{PORT}",
            )
            done = call(
                place,
                *space.command_prefix,
                *story,
                "commands.txt",
                timeout_s=SWEEP_TIMEOUT_S,
            )
            return sweep_outcome(done)

        judge("java-admin", run)


def sweep_outcome(text: str) -> Outcome:
    """Lines of the sweep: ok, failed or left, the command, and why."""
    outcome = Outcome()
    for line in text.splitlines():
        word, _, rest = line.partition("\t")
        name, _, why = rest.partition("\t")
        kinds = {"ok": outcome.passed, "failed": outcome.failed, "left": outcome.skipped}
        if word in kinds:
            kinds[word].add(name)
            outcome.output[name] = why
    return outcome
