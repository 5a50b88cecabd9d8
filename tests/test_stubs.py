"""Generated files are fresh, and what they describe is what happens at run time."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataio import namespaces
from dataio.engine import registry
from dataio.engine.calls import OpCall, Transform
from dataio.slot_methods import SlotMethods

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("script", ["scripts/make_stubs.py", "scripts/make_ops_table.py"])
def test_generated_files_are_fresh(script: str) -> None:
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrefresh with: make stubs"


class Recorder(SlotMethods):
    """Keeps the calls that slot methods append."""

    def __init__(self, transforms: tuple[OpCall, ...] = ()) -> None:
        self.output = "x"
        self.transforms = transforms

    def apply(self, *things: Any) -> Any:
        return Recorder((*self.transforms, *things))


@pytest.mark.parametrize("module", namespaces.NAMESPACES)
def test_namespace_holds_every_op_of_its_kind(module: str) -> None:
    import importlib

    holder = importlib.import_module(f"dataio.{module}")
    specs = list(registry.specs(namespaces.NAMESPACES[module]))
    assert dir(holder) == [spec.name for spec in specs]
    for spec in specs:
        made = getattr(holder, spec.name)
        assert made is getattr(holder, spec.name)
        assert made.__name__ == spec.name
        assert list(inspect.signature(made).parameters) == [p.name for p in spec.public_parameters]
        assert made.__doc__, f"{spec.name} has no documentation"


def test_factory_makes_a_checked_call() -> None:
    from dataio import transforms

    call = transforms.center_crop(h=3, w=4)
    assert isinstance(call, Transform)
    assert str(call) == "center_crop(h=3, w=4)"
    with pytest.raises(TypeError, match="by position"):
        transforms.center_crop(3, 4)  # type: ignore[misc]
    with pytest.raises(ValueError, match="h="):
        transforms.center_crop(h=0, w=4)


def test_unknown_names_suggest_the_closest() -> None:
    from dataio import transforms

    with pytest.raises(AttributeError, match="did you mean 'center_crop'"):
        transforms.centre_crop  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'center_crop'"):
        Recorder().centre_crop  # noqa: B018


def test_slot_methods_append_calls() -> None:
    made = Recorder().resize_short(256).center_crop(h=224, w=224)
    assert [call.name for call in made.transforms] == ["resize_short", "center_crop"]
    assert made.transforms[0].arguments["size"] == 256


def test_slot_methods_have_the_declared_signature() -> None:
    for name, spec in registry.slot_methods().items():
        method = getattr(Recorder(), name)
        assert list(inspect.signature(method).parameters) == list(spec.method_signature.parameters)
        assert method.__doc__
        assert name in dir(Recorder())


def test_slot_method_defaults_differ_from_the_factory() -> None:
    from dataio import decoders

    (call,) = Recorder().decode_image().transforms
    assert (call.arguments["normalize"], call.arguments["layout"]) == ("none", "hwc")
    factory = decoders.image().arguments
    assert (factory["normalize"], factory["layout"]) == ("symmetric", "chw")


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda slot: slot.center_crop(3, 4), "by position"),
        (lambda slot: slot.center_crop(h=3, width=4), "no argument 'width'"),
        (lambda slot: slot.center_crop(h=3), "needs the argument 'w'"),
        (lambda slot: slot.resize_short(3, size=4), "'size' twice"),
    ],
)
def test_wrong_slot_method_arguments(attempt: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        attempt(Recorder())


def test_decoder_after_a_transform_is_refused() -> None:
    with pytest.raises(ValueError, match="before the transforms"):
        Recorder().center_crop(h=1, w=1).decode_image()
