"""The package as installed: the folders it lists, what importing it loads, and which way imports point."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE_DIR: dict[str, str] = SETTINGS["tool"]["setuptools"]["package-dir"]

HEAVY = {
    "cv2",
    "datasets",
    "fsspec",
    "h5py",
    "huggingface_hub",
    "jax",
    "obstore",
    "pandas",
    "PIL",
    "polars",
    "pyarrow",
    "safetensors",
    "simplejpeg",
    "torch",
    "tqdm",
}
LAYERS = {  # layer: the parts of the project it may import, as prefixes of module names
    "dataio": ("dataio",),
    "dataio.formats": ("dataio.formats", "dataio.io", "dataio.engine"),
    "dataio.io": ("dataio.io", "dataio.engine.errors", "dataio.engine.source", "dataio.engine.forks", "dataio.engine.settings"),
    "dataio.engine": ("dataio.engine",),
}
ENGINE_MAY_IMPORT = {"numpy", "pyarrow", "polars", "cloudpickle"}


def folders_with_python() -> Iterator[tuple[str, str]]:
    """(package, folder) of every folder that holds a module, with the names that the mapping gives them."""
    for package, top in (("dataio", "dataio"), *((f"dataio.{t}", t) for t in ("engine", "io", "formats"))):
        for folder in sorted({path.parent for path in (ROOT / top).rglob("*.py")} | {ROOT / top}):
            inner = folder.relative_to(ROOT / top).parts
            if "__pycache__" not in inner:
                yield ".".join((package, *inner)), "/".join((top, *inner))


def modules() -> Iterator[tuple[str, Path]]:
    """(module name, file) of every module of the project."""
    for package, folder in folders_with_python():
        for path in sorted((ROOT / folder).glob("*.py")):
            yield (package if path.stem == "__init__" else f"{package}.{path.stem}"), path


def layer_of(module: str) -> str:
    return max((layer for layer in LAYERS if within(module, layer)), key=len)


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """(absolute module name, line) of each import, wherever in the file it stands."""
    is_package = path.stem == "__init__"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                here = parts[: len(parts) - node.level + is_package]
                base = ".".join([*here, base] if base else here)
            if base in ("dataio", *LAYERS):  # `from ..engine import registry` names a module
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield base, node.lineno


def test_pyproject_lists_every_folder() -> None:
    found = dict(folders_with_python())
    assert sorted(SETTINGS["tool"]["setuptools"]["packages"]) == sorted(found)
    assert found == PACKAGE_DIR


def test_imports_point_one_way() -> None:
    wrong = []
    for module, path in modules():
        layer = layer_of(module)
        for target, line in imports(module, path):
            where = f"{path.relative_to(ROOT)}:{line} imports {target}"
            if within(target, "dataio"):
                if not any(within(target, allowed) for allowed in LAYERS[layer]):
                    wrong.append(where)
            elif layer == "dataio.engine":
                top = target.split(".")[0]
                if top not in sys.stdlib_module_names and top not in ENGINE_MAY_IMPORT:
                    wrong.append(where)
    assert not wrong, "\n".join(wrong)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(out.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import dataio", id="package"),
        pytest.param("import dataio; dir(dataio)", id="dir"),
        pytest.param("import dataio; dataio.pipeline; dataio.slot; dataio.batch; dataio.map", id="dsl"),
        pytest.param("import dataio.cli; dataio.cli.parser()", id="cli"),
    ],
)
def test_import_is_light(statement: str) -> None:
    assert not loaded_by(statement) & (HEAVY - {"pyarrow"} if "pipeline" in statement else HEAVY)


def test_standard_io_is_not_shadowed() -> None:
    """The repository root holds a folder `io`; from the root, `import io` must still be the standard library's."""
    code = "import io, dataio.io; print(io.BytesIO.__module__, dataio.io is io)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["_io", "False"]


def test_doctests() -> None:
    failures = 0
    for package, _ in folders_with_python():
        holder = importlib.import_module(package)
        for info in pkgutil.iter_modules(holder.__path__, f"{package}."):
            if info.name == "dataio.__main__" or not info.name.startswith("dataio."):
                continue
            failures += doctest.testmod(importlib.import_module(info.name)).failed
    assert failures == 0


def test_every_setting_is_read_somewhere() -> None:
    """A variable that is listed but that nothing reads would mislead."""
    from dataio.engine import settings

    text = "\n".join(path.read_text(encoding="utf-8") for _, path in modules() if path.stem != "settings")
    accessors = {
        settings.CPU_WORKERS: "cpu_workers(",
        settings.IO_WORKERS: "io_workers()",
        settings.EXECUTOR: "default_executor()",
        settings.DRAIN_TIMEOUT: "drain_timeout()",
        settings.DETAILED_STATS: "detailed_stats",
        settings.PIPELINE_TRACE: "pipeline_trace()",
        settings.AGREEMENT_TIMEOUT: "agreement_timeout()",
    }
    assert set(accessors) == set(settings.SETTINGS)
    assert [s.name for s, accessor in accessors.items() if accessor not in text] == []


def test_every_setting_of_the_bytes_layer_is_read_somewhere() -> None:
    from dataio.io import settings

    own = {s for s in settings.IO_SETTINGS if s.name.startswith("DATAIO_")}
    names = {name: value for name, value in vars(settings).items() if name.isupper() and value in own}
    assert set(names.values()) == own
    text = "\n".join(path.read_text(encoding="utf-8") for _, path in modules() if path.stem != "settings")
    assert [name for name in names if f"{name}.get()" not in text] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DATAIO_CPU_WORKERS", "0"),
        ("DATAIO_CPU_WORKERS", "two"),
        ("DATAIO_EXECUTOR", "ray"),
        ("DATAIO_DRAIN_TIMEOUT_MS", "-1"),
    ],
)
def test_unusable_setting_names_the_variable(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio.engine import settings

    monkeypatch.setenv(name, text)
    setting = next(s for s in settings.SETTINGS if s.name == name)
    with pytest.raises(settings.SettingError, match=f"{name}='{text}'"):
        setting.get()


def test_settings_defaults_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataio import settings

    for variable in settings.env_vars():
        monkeypatch.delenv(variable["name"], raising=False)
    assert settings.cpu_workers() >= 2
    assert (settings.default_executor(), settings.drain_timeout()) == ("auto", 5.0)
    monkeypatch.setenv("DATAIO_CPU_WORKERS", "1")
    monkeypatch.setenv("DATAIO_EXECUTOR", "Process")
    monkeypatch.setenv("DATAIO_DRAIN_TIMEOUT_MS", "250")
    assert settings.cpu_workers() == 1
    assert (settings.default_executor(), settings.drain_timeout()) == ("process", 0.25)
    listed = {v["name"]: v["current"] for v in settings.env_vars()}
    assert listed["DATAIO_CPU_WORKERS"] == "1"
    assert listed["DATAIO_DRAIN_TIMEOUT_MS"] == "250"
