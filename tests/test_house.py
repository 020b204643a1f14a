"""The rules of the repository that no tool checks: import direction, docstrings, sizes, documents.

Reads the sources; runs nothing of them. A rule that fails names the file and the line.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

PACKAGES = ("graphs", "runtime", "server", "models")
CONTRACT = "fourstep"  # the package of the contract's generated code, in proto/
# What each package may import of the others; the direction is server -> runtime -> graphs.
ALLOWED = {
    "graphs": {"graphs"},
    "runtime": {"runtime", "graphs"},
    "server": {"server", "runtime", "graphs", CONTRACT},
    "models": {"models", "runtime", "graphs"},
}
# The extras that a package may import.
EXTRAS = {
    "models": ("nano",),
    "runtime": ("bench",),
    "server": ("otel", "bench"),
    "tests": ("test", "nano", "otel", "gateway"),
}
# Imports of tests and tools that come with a declared requirement under another name.
DISTRIBUTION = {
    "yaml": "pyyaml",
    "cryptography": "trustme",
    "google": "protobuf",
    "hpack": "h2",
    "hyperframe": "h2",
    "grpc": "grpcio",
    "grpc_health": "grpcio_health_checking",
    "grpc_reflection": "grpcio_reflection",
    "opentelemetry": "opentelemetry_sdk",
    "pythonjsonlogger": "python_json_logger",
}


def tracked() -> list[Path]:
    """Files that git would carry; in an export without git, all that are not build output."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        return [path for name in names if name and (path := ROOT / name).is_file()]
    skipped = {".venv", "build", "__pycache__"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not skipped & set(p.parts)]


SOURCES = sorted(
    path
    for path in tracked()
    if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "proto"
)
MODULES = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level name) of every import, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            yield node.lineno, (node.module or "").split(".")[0]


def test_there_is_something_to_check() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    allowed = ALLOWED[path.relative_to(ROOT).parts[0]]
    ours = {*PACKAGES, CONTRACT, "tests"}
    wrong = [f"{line}: {name}" for line, name in imports(path) if name in ours - allowed]
    assert not wrong, f"{name_of(path)} imports {wrong}"


def declared(*groups: str) -> set[str]:
    """Import names of the requirements in pyproject.toml, plus those of the given extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [line for group in groups for line in extras[group]]
    return {re.split(r"[^A-Za-z0-9_-]", line)[0].replace("-", "_").lower() for line in lines}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_third_party_imports_are_declared(path: Path) -> None:
    top = path.relative_to(ROOT).parts[0]
    known = (
        declared(*EXTRAS.get(top, ()))
        | set(sys.stdlib_module_names)
        | {*PACKAGES, CONTRACT, "tests"}
    )
    unknown = {
        name for _, name in imports(path) if DISTRIBUTION.get(name, name).lower() not in known
    }
    assert not unknown, f"{name_of(path)} imports undeclared {sorted(unknown)}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_is_short_ascii_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{name_of(path)} has no docstring"
    assert len(text.splitlines()) <= 300, f"{name_of(path)} is over 300 lines"
    odd = [n for n, line in enumerate(text.splitlines(), start=1) if not line.isascii()]
    assert not odd, f"{name_of(path)} is not ASCII at lines {odd}"


def test_structure_names_every_module_and_nothing_else() -> None:
    text = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([^`]+\.py)` \|", text, flags=re.MULTILINE))
    packages = {path for path in MODULES if path.name != "__init__.py"}
    assert listed == {name_of(path) for path in packages}


# Absolute paths of someone's machine, and words that only make sense where this was written.
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|work|Users|mnt|opt)/|\.\./shared|\bissue \d")


@pytest.mark.parametrize(
    "path",
    [p for p in tracked() if p.suffix in {".py", ".md", ".toml", ".jinja", ""}],
    ids=name_of,
)
def test_no_machine_or_workplace_is_mentioned(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    found = [number for number, line in lines if PRIVATE.search(line)]
    if path != Path(__file__):
        assert not found, f"{name_of(path)} at lines {found}"


def links(path: Path) -> Iterator[str]:
    """Relative targets of the links in a Markdown file."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            yield target


@pytest.mark.parametrize("path", [p for p in tracked() if p.suffix == ".md"], ids=name_of)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    broken = [target for target in links(path) if not (path.parent / target).exists()]
    assert not broken, f"{name_of(path)}: {broken}"


def test_the_targets_of_the_makefile_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = "run test soak lint fmt bench bench-peers nano proto clean"
    for target in names.split():
        assert re.search(rf"^{target}:", text, flags=re.MULTILINE), target


@pytest.mark.parametrize("path", [p for p in tracked() if p.suffix in {".py", ".md"}], ids=name_of)
def test_extras_are_installed_from_the_clone(path: Path) -> None:
    """The package is on no index."""
    lines = path.read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines if re.search(r"pip install .*fourstep\[\w", line)]
    assert not wrong, name_of(path)
