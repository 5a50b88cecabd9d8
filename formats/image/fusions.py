"""Rewrites of neighbouring image ops that do the same with less work."""

from __future__ import annotations

from typing import Any

from ...engine.calls import OpCall, Transform
from ...engine.registry import lookup, register_fusion

RESIZES = ("resize", "resize_short", "resize_long", "fit_to_bucket")


def _sizes(call: OpCall) -> tuple[Any, Any]:
    """Arguments h and w of a resize in the form of `resized_shape`."""
    a = call.arguments
    return (a["h"], a["w"]) if call.name in ("resize", "fit_to_bucket") else (a["size"], a["size"])


def _call(name: str, **arguments: Any) -> OpCall:
    return lookup(name, "transform", load=False).call(**arguments)


def _is(call: OpCall, *names: str) -> bool:
    return isinstance(call, Transform) and call.name in names


@register_fusion("crop_before_resize")
def crop_before_resize(first: OpCall, second: OpCall) -> tuple[OpCall, ...] | None:
    """resize*(x), center_crop -> resize_center_crop(x): only surviving pixels are computed, within 1 level."""
    if not (_is(first, *RESIZES) and _is(second, "center_crop")):
        return None
    if first.arguments["interp"] == "lanczos":  # computed whole anyway
        return None
    h, w = _sizes(first)
    crop = second.arguments
    return (
        _call(
            "resize_center_crop",
            how=first.name,
            h=h,
            w=w,
            interp=first.arguments["interp"],
            crop_h=crop["h"],
            crop_w=crop["w"],
        ),
    )


@register_fusion("normalize_fusion")
def normalize_fusion(first: OpCall, second: OpCall) -> tuple[OpCall, ...] | None:
    """Scaling to float CHW and then normalising is one pass over the pixels, within 1e-6 of the values' scale.

    unit_chw | symmetric_chw | pack_chw_f32, normalize -> normalize_chw_from_hwc_u8
    decode_image(normalize="unit" | "symmetric"), normalize -> decode_image(normalize="none"), normalize_chw_from_hwc_u8
    """
    if not _is(second, "normalize"):
        return None
    mean, std = second.arguments["mean"], second.arguments["std"]
    if _is(first, "unit_chw", "symmetric_chw"):
        base = first.name.removesuffix("_chw")
        return (_call("normalize_chw_from_hwc_u8", mean=mean, std=std, base=base),)
    if _is(first, "pack_chw_f32"):
        scale, bias = first.arguments["scale"], first.arguments["bias"]
        if scale <= 0:
            return None
        # (x * scale + bias - mean) / std, written as (x / 255 - mean') / std'
        unit = 255.0 * scale
        return (
            _call(
                "normalize_chw_from_hwc_u8",
                mean=tuple((m - bias) / unit for m in mean),
                std=tuple(s / unit for s in std),
                base="unit",
            ),
        )
    if first.kind == "decoder" and first.name == "image":
        given = first.arguments
        if given["layout"] == "chw" and given["normalize"] != "none":
            decode = first.spec.call(**{**given, "layout": "hwc", "normalize": "none"})
            return decode, _call("normalize_chw_from_hwc_u8", mean=mean, std=std, base=given["normalize"])
    return None


@register_fusion("reduced_scale_jpeg")
def reduced_scale_jpeg(first: OpCall, second: OpCall) -> tuple[OpCall, ...] | None:
    """decode_image(dct_scale=True), resize* -> the decoder learns the size that is needed (changes pixels slightly)."""
    if not (first.kind == "decoder" and first.name == "image"):
        return None
    given = first.arguments
    if not given["dct_scale"] or given["shrink_to"] is not None:
        return None
    if given["normalize"] != "none" or given["layout"] != "hwc":
        return None
    if _is(second, *RESIZES):
        how, (h, w) = second.name, _sizes(second)
    elif _is(second, "resize_center_crop"):
        a = second.arguments
        how, h, w = a["how"], a["h"], a["w"]
    else:
        return None
    if not (isinstance(h, int) and isinstance(w, int)):  # read from the record: not known here
        return None
    return first.spec.call(**{**given, "shrink_to": (how, h, w)}), second
