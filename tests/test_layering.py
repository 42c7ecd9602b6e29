"""An arrow never points up: which layer may import which, and what must not load on import.

The imports are read from the source, so nothing here is run, and nothing needs to be installed.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "framework": "draftwood",
    "apps": "draftwood.apps",
    "backends": "draftwood.backends",
    "kernels": "draftwood.kernels",
    "strategies": "draftwood.strategies",
    "zoo": "draftwood.zoo",
}

# Files of `framework/` that only repeat public names of a layer, so that its files may move.
DOORS = ("drafters", "policies", "verifiers")

TYPE_CHECKING = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}

# What a part may import of the project, by the longest matching prefix of its name.
MAY_IMPORT: dict[str, set[str]] = {
    "draftwood": {"framework"},
    **{f"draftwood.{door}": {"strategies"} for door in DOORS},
    "draftwood.apps": {"framework", "apps", "zoo"},
    "draftwood.backends": {"framework", "kernels", "backends"},
    "draftwood.kernels": {"kernels"},
    "draftwood.distributions.filters": {"framework", "kernels"},
    "draftwood.laws.ordered_draws": {"framework", "kernels"},
    "draftwood.laws.randomness": {"framework", "kernels"},
    "draftwood.trees.row_trees": {"framework", "kernels"},
    "draftwood.strategies": {"framework", "strategies"},
    "draftwood.strategies.verifiers": {"framework", "strategies", "kernels"},
    "draftwood.strategies.acceptance_history": {"framework", "strategies", "kernels"},
    "draftwood.strategies.layer_choice": {"framework", "strategies", "kernels"},
    "draftwood.zoo": {"framework", "strategies", "zoo"},
}

# The rooms of a layer, lowest first: a file imports from its own room and from lower ones.
ROOMS: dict[str, tuple[str, ...]] = {
    "draftwood": (
        "base",
        "laws",
        "trees",
        "distributions",
        "protocols",
        "decoding",
        "methods",
        "integrations",
    ),
    "draftwood.testing": ("diagnosis", "models", "proofs", "checks", "samplers"),
    "draftwood.backends": (
        "weights",
        "structure",
        "nodes",
        "attention",
        "recurrent",
        "model",
        "passes",
        "openvino",
        "gguf",
        "kinds",
        "loading",
    ),
    "draftwood.apps": (
        "terminal",
        "files",
        "models",
        "view",
        "generate",
        "distil",
        "heads",
        "proof",
        "bench",
        "train",
        "tune",
        "demo",
    ),
}

# What a part may not import at all, and what it may import only where it is used.
NEVER: dict[str, set[str]] = {"draftwood.kernels": {"transformers", "typer", "rich"}}
NOT_ON_IMPORT: dict[str, set[str]] = {
    "draftwood": {"transformers", "triton", "typer", "rich", "hypothesis", "pytest", "scipy", "numba"},
    "draftwood.apps": {"triton", "numba"},
    "draftwood.backends": {"triton", "typer", "rich", "numba"},
    "draftwood.kernels": {"numba"},
    "draftwood.strategies": {"triton", "typer", "rich", "numba"},
    "draftwood.testing": {"transformers", "triton", "typer", "rich", "numba"},
    "draftwood.zoo": {"triton", "numba"},
}


class Import(NamedTuple):
    module: str
    line: int
    on_import: bool  # runs when the file is imported: not in a function, not for type checkers only


def longest(table: Mapping[str, T], name: str, default: T) -> T:
    """The entry of `table` whose key is the longest prefix of the dotted `name`."""
    fitting = [key for key in table if f"{name}.".startswith(f"{key}.")]
    return table[max(fitting, key=len)] if fitting else default


def layer_of(module: str) -> str:
    """The root folder that holds `module`, a dotted name that starts with `draftwood`."""
    return longest({package: folder for folder, package in LAYERS.items()}, module, "framework")


def imports(source: str, name: str, is_package: bool) -> Iterator[Import]:
    """Every import in `source`, the text of the module `name`, relative ones resolved."""

    def visit(node: ast.AST, on_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, on_import)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if is_package else name.split(".")[:-1]
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                # `from draftwood import strategies` names a module by its last part.
                yield Import(f"{module}.{alias.name}", node.lineno, on_import)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and node.args:
                target = node.args[0]
                if isinstance(target, ast.Constant) and isinstance(target.value, str):
                    yield Import(target.value, node.lineno, on_import)
        if isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING:
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, on_import)
            return
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.iter_child_nodes(node):
            yield from visit(inner, on_import and not inside)

    yield from visit(ast.parse(source), True)


def violations(source: str, name: str, is_package: bool = False) -> list[str]:
    """One sentence for every import in the module `name` that the layers do not allow."""
    found = []
    for module, line, on_import in imports(source, name, is_package):
        top = module.split(".")[0]
        where = f"{name}, line {line}: imports {module}"
        if top in LAYERS:
            found.append(f"{where}; its name is {LAYERS[top]}")
        elif top == "draftwood" and layer_of(module) not in longest(MAY_IMPORT, name, set()):
            found.append(f"{where}; only {sorted(longest(MAY_IMPORT, name, set()))} may be")
        elif top in longest(NEVER, name, set()):
            found.append(f"{where}, which this layer may not")
        elif on_import and top in longest(NOT_ON_IMPORT, name, set()):
            found.append(f"{where}; import it where it is used")
    return found


def room_of(module: str) -> tuple[str, int | None]:
    """The layer with rooms that holds `module`, and the floor of its room there; None outside all rooms."""
    layer = max((name for name in ROOMS if f"{module}.".startswith(f"{name}.")), key=len, default="")
    room = module.removeprefix(layer).strip(".").split(".")[0]
    rooms = ROOMS.get(layer, ())
    return layer, rooms.index(room) if room in rooms else None


def upward(graph: Mapping[str, Set[str]]) -> list[str]:
    """One sentence for every import from a higher room of the same layer."""
    found = []
    for name, used in graph.items():
        layer, floor = room_of(name)
        for module in used:
            above, there = room_of(module)
            if floor is not None and there is not None and layer == above and there > floor:
                found.append(f"{name} imports {module}, whose room is above")
    return sorted(found)


def modules() -> Iterator[tuple[Path, str, bool]]:
    for folder, package in LAYERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((package, *(parts[:-1] if is_package else parts)))
            yield path, name, is_package


def imported(source: str, name: str, is_package: bool, known: Set[str]) -> set[str]:
    """The modules of `known` that the module `name` imports, at whatever time and for whatever purpose.

    `from draftwood import SpeculativeDecoder` imports the root package, `... import tree` a module.
    """
    chosen = set()
    for module, _, _ in imports(source, name, is_package):
        prefixes = {key for key in known if f"{module}.".startswith(f"{key}.")}
        if prefixes:
            chosen.add(max(prefixes, key=len))
    return chosen


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next and the last is the first; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def import_graph(sources: Iterable[tuple[str, str, bool]]) -> dict[str, set[str]]:
    """Returns the imports of each module, given modules as (source, name, whether it is a package)."""
    sources = list(sources)
    known = {name for _, name, _ in sources}
    return {name: imported(source, name, is_package, known) for source, name, is_package in sources}


def test_no_import_circle() -> None:
    graph = import_graph(
        (path.read_text(encoding="utf-8"), name, is_package) for path, name, is_package in modules()
    )
    assert len(graph) > 100
    assert " -> ".join(circle(graph)) == ""
    # The root package is the public names, for the layers above; it may come to import any of these modules.
    users = sorted(
        name for name, used in graph.items() if "draftwood" in used and layer_of(name) == "framework"
    )
    assert users == []


def test_rooms_import_downwards_only() -> None:
    graph = import_graph(
        (path.read_text(encoding="utf-8"), name, is_package) for path, name, is_package in modules()
    )
    assert upward(graph) == []
    # Every room is there, and nothing lies beside the rooms but what is named here.
    outside = {
        "draftwood": {"errors", "testing", *DOORS},
        "draftwood.testing": {"backends", "pytest_plugin"},
        "draftwood.backends": set[str](),
        "draftwood.apps": {"cli", "index", "strategies"},
    }
    for layer, rooms in ROOMS.items():
        folder = layer_of(layer)
        inside = {
            name.removeprefix(f"{layer}.").split(".")[0]
            for name in graph
            if name.startswith(f"{layer}.") and layer_of(name) == folder
        }
        assert inside == {*rooms, *outside[layer]}


def test_layers_do_not_go_through_doors() -> None:
    # They load a whole layer.
    graph = import_graph(
        (path.read_text(encoding="utf-8"), name, is_package) for path, name, is_package in modules()
    )
    doors = {*(f"draftwood.{door}" for door in DOORS), "draftwood.backends"}
    assert sorted(name for name, used in graph.items() if used & doors) == []


@pytest.mark.parametrize(
    ("name", "used", "wrong"),
    [
        ("draftwood.trees.tree", "draftwood.decoding.loop", True),
        ("draftwood.decoding.loop", "draftwood.trees.tree", False),
        ("draftwood.testing.models.toy", "draftwood.testing.proofs.lossless", True),
        ("draftwood.testing.models.toy", "draftwood.decoding.loop", False),
        ("draftwood.backends.nodes.region", "draftwood.backends.loading", True),
    ],
)
def test_an_import_from_a_higher_room_is_seen(name: str, used: str, wrong: bool) -> None:
    assert bool(upward({name: {used}})) is wrong


@pytest.mark.parametrize(
    "back",
    [
        "from draftwood.decoding.loop import Loop",
        "from .loop import Loop",
        "import draftwood.decoding.loop",
        "def f():\n    from draftwood import loop",
        "if TYPE_CHECKING:\n    from draftwood.decoding.loop import Loop",
        "def f():\n    importlib.import_module('draftwood.decoding.loop')",
        "from draftwood import SpeculativeDecoder",
    ],
)
def test_a_circle_is_seen(back: str) -> None:
    root = ("from draftwood.decoding.loop import SpeculativeDecoder", "draftwood", True)
    loop = ("from draftwood.trees.tree import TokenTree", "draftwood.decoding.loop", False)
    assert circle(import_graph([root, loop, ("import torch", "draftwood.trees.tree", False)])) == []
    seen = circle(import_graph([root, loop, (back, "draftwood.trees.tree", False)]))
    assert seen[0] == seen[-1]
    assert {"draftwood.decoding.loop", "draftwood.trees.tree"} <= set(seen)


def test_layers_keep_to_themselves() -> None:
    found, count = [], 0
    for path, name, is_package in modules():
        found += violations(path.read_text(encoding="utf-8"), name, is_package)
        count += 1
    assert count > 10
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("draftwood.decoding.loop", "import draftwood.strategies.policies.chain"),
        ("draftwood.decoding.loop", "from draftwood import backends"),
        ("draftwood.decoding.loop", "from ..strategies import recipes"),
        ("draftwood.decoding.loop", "def f():\n    from draftwood.backends.kinds.transformer import load"),
        ("draftwood.decoding.loop", "importlib.import_module('draftwood.strategies')"),
        ("draftwood.decoding.loop", "from draftwood.kernels import x"),
        ("draftwood.decoding.loop", "import transformers"),
        ("draftwood.decoding.loop", "class A:\n    from transformers.cache_utils import Cache"),
        ("draftwood.decoding.loop", "try:\n    import triton\nexcept ImportError:\n    pass"),
        ("draftwood.decoding.loop", "if not TYPE_CHECKING:\n    import rich"),
        ("draftwood.decoding.loop", "if TYPE_CHECKING:\n    pass\nelse:\n    import rich"),
        ("draftwood.decoding.loop", "import typer as t"),
        ("draftwood.apps.demo.command", "from draftwood.strategies.policies.chain import Chain"),
        ("draftwood.testing.models.toy", "from ...backends import transformer"),
        ("draftwood.strategies.policies.chain", "from draftwood.backends import kv"),
        ("draftwood.strategies.policies.chain", "from draftwood.kernels import tree_attention"),
        ("draftwood.strategies.policies.chain", "from strategies import laws"),
        ("draftwood.backends.attention.kv", "from draftwood.strategies import laws"),
        ("draftwood.backends.attention.kv", "from kernels.tree_attention import reference"),
        ("draftwood.kernels.op.dispatch", "from draftwood.base.errors import DraftwoodError"),
        ("draftwood.kernels.op.dispatch", "import draftwood"),
        ("draftwood.kernels.op.dispatch", "import transformers"),
    ],
)
def test_a_violation_is_seen(name: str, source: str) -> None:
    assert violations(source, name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("draftwood.decoding.loop", "from draftwood.trees.tree import TokenTree\nimport torch, attrs"),
        ("draftwood.decoding.loop", "from ..trees.tree import TokenTree"),
        ("draftwood.decoding.loop", "def f():\n    import transformers"),
        ("draftwood.decoding.loop", "if TYPE_CHECKING:\n    from transformers import Cache"),
        ("draftwood.apps.demo.command", "import rich\nfrom draftwood.zoo import widen"),
        ("draftwood.strategies.verifiers.block", "from draftwood.kernels.verify import dispatch"),
        ("draftwood.backends.attention.kv", "import transformers\nfrom draftwood.kernels import op"),
        ("draftwood.kernels.op.dispatch", "import triton\nfrom .reference import op"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    assert not violations(source, name)


def test_relative_imports_of_a_package_resolve() -> None:
    assert not violations("from .verifiers import greedy", "draftwood.strategies", True)
    assert violations("from ..backends import kv", "draftwood.strategies", True)


def test_nothing_shadows_the_package_kernels() -> None:
    # Hugging Face's `kernels` must win over these folders; see kernels/README.md.
    assert (ROOT / "kernels").is_dir()
    for folder in (ROOT / "kernels", ROOT / "tests" / "kernels"):
        assert not (folder / "__init__.py").exists()
    assert not (ROOT / "kernels.py").exists()


def test_an_editor_finds_every_part_of_the_package() -> None:
    # `.editor/draftwood` is the package as it is installed, for tools that read no import hooks.
    parts = {path.name for path in (ROOT / "framework").iterdir()} - {"__pycache__"}
    links = {path.name: path.resolve() for path in (ROOT / ".editor" / "draftwood").iterdir()}
    layers = set(LAYERS) - {"framework"}
    assert set(links) == parts | layers
    assert all(links[name] == ROOT / "framework" / name for name in parts)
    assert all(links[name] == ROOT / name for name in layers)
