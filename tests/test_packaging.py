"""The installed package: the wheel's contents, the search path, and the modules that an import loads."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LAYERS: dict[str, str] = CONFIG["tool"]["setuptools"]["package-dir"]
ZOO = (
    *("llama-7m", "llama-7m-dspark", "llama-7m-eagle3"),
    *("llama-draft", "llama-draft-deep", "llama-draft-sampled", "tokenizer"),
)

# Stands for what transformers takes from Hugging Face's package.
FAKE_KERNELS = """
    class CUDAProperties:
        installed = True

    class Stub:
        def __init__(self, *args, **kwargs): pass

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (Stub,), {"INFERENCE": 1, "TRAINING": 2, "FALLBACK": 4})
        return lambda *args, **kwargs: (lambda thing: thing)
"""


@pytest.fixture
def fake_kernels(tmp_path: Path) -> Path:
    """A folder that holds what an installed `kernels` 0.18.2 looks like to an importer."""
    site = tmp_path / "site"
    (site / "kernels").mkdir(parents=True)
    (site / "kernels" / "__init__.py").write_text(textwrap.dedent(FAKE_KERNELS))
    info = site / "kernels-0.18.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n")
    return site


def python(code: str, *, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Returns the output of `python -c code`; its `sys.path` begins with `cwd`, then `path`."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


IMPORT_BOTH = """
    import sys
    import kernels
    assert kernels.CUDAProperties.installed, kernels
    import draftwood.kernels
    assert draftwood.kernels is not kernels
    import transformers
    from transformers.integrations import hub_kernels
    from transformers.utils import import_utils
    assert import_utils.is_kernels_available()
    assert hub_kernels.CUDAProperties is kernels.CUDAProperties
    print(*draftwood.kernels.__path__)
"""


@pytest.mark.thorough
def test_an_installed_package_kernels_wins_over_the_folder(fake_kernels: Path) -> None:
    ours = python(IMPORT_BOTH, path=fake_kernels)
    assert Path(ours) == ROOT / "kernels"


@pytest.mark.thorough
def test_the_simulated_package_tells_the_two_apart(fake_kernels: Path, tmp_path: Path) -> None:
    # The same with an `__init__.py` in our folder fails; otherwise the test above shows nothing.
    checkout = tmp_path / "checkout"
    (checkout / "kernels").mkdir(parents=True)
    (checkout / "kernels" / "__init__.py").touch()
    with pytest.raises(AssertionError, match="CUDAProperties"):
        python("from transformers.integrations import hub_kernels", cwd=checkout, path=fake_kernels)


def test_every_layer_is_importable_from_anywhere(tmp_path: Path) -> None:
    names = ", ".join(LAYERS)
    printed = python(f"import {names}\nfor m in ({names}): print(*m.__path__)", cwd=tmp_path)
    for line, layer in zip(printed.splitlines(), LAYERS.values(), strict=True):
        assert str(ROOT / layer) in line.split()


def test_importing_draftwood_loads_no_heavy_package() -> None:
    loaded = python("import sys, draftwood; print(*sorted({m.split('.')[0] for m in sys.modules}))")
    heavy = {"transformers", "triton", "typer", "rich", "hypothesis", "scipy"}
    assert {"torch", "attrs"} <= set(loaded.split())
    assert not heavy & set(loaded.split())


GROUPS: dict[str, dict[str, str]] = CONFIG["project"]["entry-points"]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, names in GROUPS.items() for name in names]
)
def test_every_registered_name_resolves(group: str, name: str) -> None:
    found = [e for e in entry_points(group=group, name=name) if e.value == GROUPS[group][name]]
    assert found, "the installation is older than pyproject.toml; install again"
    loaded = found[0].load()
    assert callable(getattr(loaded, "pytest_configure", None) if group == "pytest11" else loaded)


def test_the_lock_pins_what_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and not set("@;+/ ") & set(line) for line in pins)
    locked = {line.split("==")[0] for line in pins}
    assert "torch==2.13.0" in pins
    project = CONFIG["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(item for extra in extras for item in extra)]
    names = {re.split(r"[^\w.-]", item)[0] for item in declared}
    assert names <= locked, f"constraints.txt lacks {sorted(names - locked)}"


def test_every_extra_is_explained_where_installing_is() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \S.+ \| \S.+ \|$", page, re.MULTILINE)
    work = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^These commands install the extras (.+)\.$", work, re.MULTILINE)
    rows += re.findall(r"`(\w+)`", sentence)
    assert sorted(rows) == sorted(CONFIG["project"]["optional-dependencies"])


def test_the_hooks_run_the_locked_versions() -> None:
    pins = set((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    used = {word.strip("[],") for word in hooks.split() if "==" in word}
    assert used
    assert used <= pins


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for layer in LAYERS.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / layer, source / layer, ignore=ignored, dirs_exist_ok=True)
    # A subfolder that came later is picked up without an entry anywhere.
    for late in ("strategies/late", "kernels/late"):
        (source / late).mkdir()
        (source / late / "module.py").touch()
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    expected = {"draftwood/strategies/late/module.py", "draftwood/kernels/late/module.py"}
    for name, layer in LAYERS.items():
        for path in (ROOT / layer).rglob("*.py"):
            expected.add(f"{name.replace('.', '/')}/{path.relative_to(ROOT / layer).as_posix()}")
    found = {name for name in wheel.namelist() if name.endswith(".py")}
    assert found == expected


def test_the_wheel_holds_the_llama_pair_alone(wheel: zipfile.ZipFile) -> None:
    data = [n for n in wheel.namelist() if not n.endswith(".py") and ".dist-info/" not in n]
    expected = {"draftwood/py.typed", "draftwood/kernels/README.md"}
    for folder in ZOO:
        files = [path for path in (ROOT / "zoo" / folder).iterdir() if path.is_file()]
        assert files
        expected |= {f"draftwood/zoo/{folder}/{path.name}" for path in files}
    sources = (ROOT / "apps" / "view").iterdir()
    viewer = {path.name for path in sources if path.suffix in (".html", ".css", ".js")}
    assert {"page.html", "page.css", "page.js"} <= viewer
    expected |= {f"draftwood/apps/view/{name}" for name in viewer}
    expected.add("draftwood/apps/bench/papers.toml")
    assert set(data) == expected
    assert any(name.endswith("LICENSE") for name in wheel.namelist())


def test_the_wheel_registers_the_strategies(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt")]
    written = configparser.ConfigParser(delimiters=("=",))
    written.optionxform = str  # type: ignore[assignment,method-assign]
    written.read_string(wheel.read(name).decode())
    assert written["console_scripts"]["draftwood"] == CONFIG["project"]["scripts"]["draftwood"]
    for group, names in GROUPS.items():
        if names:
            assert dict(written[group]) == names


def test_the_wheel_runs_on_its_own(wheel: zipfile.ZipFile, fake_kernels: Path, tmp_path: Path) -> None:
    site = tmp_path / "installed"
    wheel.extractall(site)
    assert python("import draftwood; print(draftwood.__file__)", cwd=tmp_path, path=site) == str(
        site / "draftwood" / "__init__.py"
    )
    shutil.copytree(fake_kernels, site, dirs_exist_ok=True)
    ours = python(IMPORT_BOTH, cwd=tmp_path, path=site)
    assert Path(ours) == site / "draftwood" / "kernels"
