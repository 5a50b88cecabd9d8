"""Settings of Hugging Face image processors as chains of a slot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .aliases import Interp
from .stages import SlotStage, chain

Builder: TypeAlias = Callable[[Any], SlotStage]

_INTERP: dict[int, Interp] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of the filters that there are."""
_WARP_FROM = 384
"""Short edge from which ConvNeXt resizes without cropping."""
_SIZES = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
_BACKENDS = ("Fast", "Pil")
"""Endings of class names that name a backend: they change nothing of what is computed."""


def default_chain_builder(hf: Any) -> SlotStage:
    """The chain that computes what an image processor of `transformers` does, from the settings that it has as attributes.

    It begins with a decoded image, uint8[h, w, 3], and holds no decoder:
    `dataio.slot("image").decode_image().apply(dataio.default_chain_builder(processor))`. Pixels are within 1 level of those of
    the processor's Pillow backend; where an image is smaller than the crop by an odd number, the spare row of zeros is at the bottom and
    right, as the torchvision backend has it.

    Args:
        hf: anything with these attributes, each with a default: `do_resize` (True), `size`, `default_to_square` (True),
            `resample`, `do_center_crop` (False), `crop_size`, `do_rescale` (True), `rescale_factor` (1/255), `do_normalize` (True),
            `image_mean` and `image_std` (0.5), `do_pad` (False), `crop_pct`.

    Returns:
        A chain that gives float32[3, h, w], or uint8[3, h, w] where the processor neither rescales nor normalises.

    Raises:
        NotImplementedError: settings by which each image gets another shape (`longest_edge`, `max_height`), that pad, or that
            have no op here. Nothing is left out silently.
    """
    if getattr(hf, "do_pad", None):
        raise NotImplementedError("do_pad pads each batch to its largest image: call the processor itself, or register a chain builder")
    made = chain()
    if setting(hf, "do_resize", True):
        made = _resized(made, hf)
    if setting(hf, "do_center_crop", False):
        height, width = _crop_size(getattr(hf, "crop_size", None))
        made = made.center_crop(h=height, w=width)
    return _scaled(made, hf)


def setting(hf: Any, name: str, default: Any) -> Any:
    """An attribute; one that is missing or None has its default."""
    found = getattr(hf, name, None)
    return default if found is None else found


def _sizes(size: Any) -> dict[str, int]:
    """The edges that a size names; it is a mapping or, since transformers 5, an object with attributes."""
    found = {name: size.get(name) if isinstance(size, Mapping) else getattr(size, name, None) for name in _SIZES}
    return {name: int(value) for name, value in found.items() if value is not None}


def _resized(made: SlotStage, hf: Any) -> SlotStage:
    interp = interp_of(getattr(hf, "resample", None))
    size = getattr(hf, "size", None)
    if isinstance(size, int) and not isinstance(size, bool):
        if setting(hf, "default_to_square", True):
            return made.resize(h=size, w=size, interp=interp)
        sizes = {"shortest_edge": size}
    else:
        sizes = {} if size is None else _sizes(size)
    if sizes.keys() == {"height", "width"}:
        return made.resize(h=sizes["height"], w=sizes["width"], interp=interp)
    if sizes.keys() != {"shortest_edge"}:
        raise NotImplementedError(f"size={size!r} gives each image another shape, or none; sizes are a number, height and width, or shortest_edge")
    edge, crop_pct = sizes["shortest_edge"], getattr(hf, "crop_pct", None)
    if crop_pct is None:
        return made.resize_short(size=edge, interp=interp)
    if edge >= _WARP_FROM:
        return made.resize(h=edge, w=edge, interp=interp)
    return made.resize_short(size=int(edge / crop_pct), interp=interp).center_crop(h=edge, w=edge)


def interp_of(resample: Any) -> Interp:
    """The name of one of Pillow's filters."""
    if resample is None:
        return "bilinear"
    if isinstance(resample, bool) or not hasattr(resample, "__index__") or int(resample) not in _INTERP:
        raise NotImplementedError(f"resample={resample!r} has no op here; there are 0 (nearest), 1 (Lanczos), 2 (bilinear) and 3 (bicubic)")
    return _INTERP[int(resample)]


def _crop_size(size: Any) -> tuple[int, int]:
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    sizes = {} if size is None else _sizes(size)
    if sizes.keys() != {"height", "width"}:
        raise NotImplementedError(f"crop_size={size!r}: it is a number, or height and width")
    return sizes["height"], sizes["width"]


def _scaled(made: SlotStage, hf: Any) -> SlotStage:
    rescale = setting(hf, "do_rescale", True)
    factor = setting(hf, "rescale_factor", 1 / 255)
    if rescale and (not isinstance(factor, (int, float)) or isinstance(factor, bool) or not math.isfinite(factor) or factor <= 0):
        raise NotImplementedError(f"rescale_factor={factor!r}: it is one number above 0")
    if setting(hf, "do_normalize", True):
        # (x f - mean) / std = (x / 255 - mean k) / (std k) with k = 1 / (255 f)
        k = 1 / (255 * (factor if rescale else 1))
        mean, std = ([value * k for value in channels_of(hf, name)] for name in ("image_mean", "image_std"))
        return made.apply(_transform("normalize_chw_from_hwc_u8", mean=mean, std=std, base="unit"))
    if rescale:
        return made.apply(_transform("pack_chw_f32", scale=float(factor)))
    return made.permute(axes=[2, 0, 1])


def channels_of(hf: Any, name: str) -> list[float]:
    """A mean or deviation, a number for each of 3 channels."""
    found = setting(hf, name, 0.5)
    values = [float(found)] * 3 if isinstance(found, (int, float)) else [float(value) for value in found]
    if len(values) == 1:
        values *= 3
    if len(values) != 3:
        raise NotImplementedError(f"{name} has {len(values)} values; chains are for images of 3 channels")
    return values


def _transform(name: str, **arguments: Any) -> Any:
    from . import transforms

    return getattr(transforms, name)(**arguments)


# ------------------------------------------------------------------------- by class

BUILDERS: dict[str, Builder] = {
    f"{name}ImageProcessor": default_chain_builder for name in ("CLIP", "Siglip", "ViT", "ConvNext", "DeiT", "Beit", "ResNet")
}


def register_chain_builder(hf_class_name: str, builder: Builder) -> None:
    """Say how the image processors of a class become chains; an earlier builder of that name is replaced.

    Args:
        hf_class_name: of the class, such as "OwlViTImageProcessor"; an ending Fast or Pil is ignored. It counts for classes derived from
            it too.
        builder: takes the processor, gives an unbound chain, such as `default_chain_builder` does.

    Raises:
        TypeError: an empty name or one that is no str, a builder that cannot be called.
    """
    BUILDERS[checked_name(hf_class_name, builder)] = builder


def checked_name(name: Any, function: Any) -> str:
    """The name of a class under which a function is registered."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a class is a str that is not empty, got {name!r}")
    if not callable(function):
        raise TypeError(f"for {name} a function is wanted, got {function!r}")
    return without_backend(name)


def without_backend(name: str) -> str:
    """The name of a class without the ending that names its backend."""
    for ending in _BACKENDS:
        name = name.removesuffix(ending) or name
    return name


def found_for(hf: Any, registered: Mapping[str, Any]) -> Any:
    """What is registered for the class of a processor, or for the nearest one that it derives from; None for nothing."""
    for base in type(hf).__mro__:
        if (found := registered.get(without_backend(base.__name__))) is not None:
            return found
    return None
