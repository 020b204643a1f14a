"""ServeConfig: what goes together, and every problem of a file and of flags told by its name."""

import dataclasses
from pathlib import Path

import pytest

from server.config import (
    ListenerConfig,
    OperationsConfig,
    ServeConfig,
    TlsConfig,
    address_problem,
    is_local,
)
from server.config_file import ConfigError, Flag, load


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/socket", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.3:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_what_only_this_machine_can_reach(address: str, local: bool) -> None:
    assert address_problem(address) is None
    assert is_local(address) == local


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":1",
        "host",
        "host:",
        "host:65536",
        "host:1:2",
        "::1:1",
        "unix:here",
        "unix:",
        "unix:/" + "x" * 120,
    ],
)
def test_what_is_no_address(address: str) -> None:
    assert address_problem(address)


def test_with_nothing_said_one_listener_is_on_this_machine() -> None:
    config = load()
    assert config == ServeConfig()
    assert [one.address for one in config.listeners] == ["127.0.0.1:50051"]
    assert config.operations.address == "127.0.0.1:9464"


FILE = """
[model]
checkpoint = "nano"
slots = 8

[[listeners]]
address = "0.0.0.0:50051"
tls = { cert = "tls/cert.pem", key = "/keys/key.pem" }
tokens = "tokens"
operators = ["ops"]

[[listeners]]
address = "unix:/run/fourstep/vllm"
protocol = "vllm"

[limits]
deadline_s = 60

[operations]
log_format = "json"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fourstep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_with_paths_from_its_folder(tmp_path: Path) -> None:
    flags: list[Flag] = [("--slots", "model.slots", 2), ("--grace", "drain.grace_s", 1.0)]
    config = load(written(tmp_path, FILE), flags)
    assert config.model.checkpoint == tmp_path / "nano"
    assert config.model.slots == 2
    assert config.drain.grace_s == 1.0
    assert config.limits.deadline_s == 60.0
    own, gateway = config.listeners
    assert own.tls == TlsConfig(cert=tmp_path / "tls" / "cert.pem", key=Path("/keys/key.pem"))
    assert own.operators == ("ops",)
    assert (gateway.protocol, gateway.tokens) == ("vllm", None)
    assert config.operations.log_format == "json"


def problems(file: Path | None, *flags: Flag) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, flags)
    return str(caught.value).split("; ")


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = """
    colour = "red"
    [model]
    slots = 0
    context = "many"
    compiler = "gcc"
    [[listeners]]
    address = "0.0.0.0:1"
    tokens = "t"
    [[listeners]]
    port = 3
    tls = { cert = "c" }
    operators = "me"
    [drain]
    grace_s = -1
    [operations]
    address = "10.0.0.1:1"
    """
    found = problems(written(tmp_path, text), ("--spec-tokens", "model.spec_tokens", 4))
    expected = {
        "colour: there is no such key",
        "model.slots: 0 must be >= 1",
        "model.context: 'many' must be a whole number",
        "model.compiler: 'gcc' must be one of inductor, eager",
        "--spec-tokens: 4 must be in [0, 3]",
        "listeners[0].tokens: 0.0.0.0:1 is not encrypted",
        "listeners[0].address: 0.0.0.0:1 can be reached from other machines",
        "listeners[1].port: there is no such key",
        "listeners[1].tls.key: is needed",
        "listeners[1].operators: must be a list",
        "drain.grace_s: -1.0 must be >= 0",
        "operations.address: 10.0.0.1:1 can be reached from other machines",
    }
    joined = "; ".join(found)
    assert {start for start in expected if start not in joined} == set()
    assert sum(": " in one for one in found) == len(expected)


def test_flags_describe_a_listener_and_are_named(tmp_path: Path) -> None:
    exposed = ("--exposed", "listeners[0].exposed", None)
    assert problems(None, ("--listen", "listeners[0].address", "0.0.0.0:1"), exposed) == [
        "--listen: 0.0.0.0:1 can be reached from other machines, and nothing is encrypted: use "
        "TLS, 127.0.0.1 or a unix: socket, or say --exposed where the network is trusted"
    ]
    key = ("--tls-key", "listeners[0].tls.key", None)
    assert problems(None, ("--tls-cert", "listeners[0].tls.cert", Path("c")), key) == [
        "--tls-key: is needed"
    ]
    assert problems(None, ("--listen", "listeners[0].address", "127.0.0.1:99999")) == [
        "--listen: '127.0.0.1:99999' must be HOST:PORT with a port from 0 to 65535, or unix:PATH"
    ]
    assert problems(None, ("--operations", "operations.address", "foo")) == [
        "--operations: 'foo' must be HOST:PORT with a port from 0 to 65535"
    ]
    assert problems(None, ("--operations", "operations.address", "0.0.0.0:1")) == [
        "--operations: 0.0.0.0:1 can be reached from other machines, and nothing is encrypted: use "
        "127.0.0.1, or say `exposed` where the network is trusted"
    ]
    file = written(tmp_path, "[[listeners]]\n")
    assert problems(file, ("--listen", "listeners[0].address", "127.0.0.1:1")) == [
        f"--listen: {file} has listeners, so say it there"
    ]
    both = load(None, [("--listen-vllm", "listeners[1].address", "127.0.0.1:2")])
    assert [one.address for one in both.listeners] == ["127.0.0.1:50051", "127.0.0.1:2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 3", "model: must be a table"),
        ("listeners = []", "listeners: at least one is needed"),
        ("listeners = 3", "listeners: must be a list"),
        ("[model]\nslots = true", "model.slots: True must be a whole number"),
        ("[model]\ncheckpoint = 3", "model.checkpoint: 3 must be a path"),
        ("[limits]\ndeadline_s = nan", "limits.deadline_s: nan must be >= 0.001"),
        ("[[listeners]]\n[[listeners]]", "is that of listeners[0].address too"),
        ("[operations]\naddress = '127.0.0.1:50051'", "is that of operations.address too"),
        ("[operations]\naddress = 'unix:/x'", "must be HOST:PORT"),
        ("[[listeners]]\noperators = ['x']", "operators: nobody has a name without tokens"),
        ("[model", "Expected"),
    ],
)
def test_what_a_file_has_wrong(tmp_path: Path, text: str, words: str) -> None:
    file = written(tmp_path, text)
    assert words in "; ".join(problems(file))


def test_tokens_never_cross_a_network_in_clear() -> None:
    own = ListenerConfig(address="0.0.0.0:1", tokens=Path("t"), exposed=True)
    assert [key for key, _ in own.problems()] == ["tokens"]
    tls = TlsConfig(cert=Path("c"), key=Path("k"))
    assert not list(dataclasses.replace(own, tls=tls, exposed=False).problems())
    assert not list(OperationsConfig(address="0.0.0.0:1", exposed=True).problems())


def test_a_flag_below_what_is_no_table_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "model = 3")
    assert problems(file, ("--slots", "model.slots", 2)) == ["model: must be a table"]
