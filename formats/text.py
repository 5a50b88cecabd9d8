"""Text and JSON documents, kept as UTF-8 bytes or as Python objects."""

from __future__ import annotations

import codecs
import json
from typing import Any, Literal, TypeAlias

import numpy as np

from ..engine.errors import OpError
from ..engine.registry import register_op
from ..engine.schema import OBJECT, TensorType
from .raw import BytesLike, as_view, decode_bytes

Encoding: TypeAlias = Literal["utf-8", "utf8", "utf-8-lossy"]


def _infer(given: TensorType, *, as_object: bool = False, **_: Any) -> TensorType:
    return TensorType(None, OBJECT) if as_object else TensorType((None,), "uint8")


def _decode(data: BytesLike, encoding: str, strip_bom: bool) -> tuple[BytesLike, str]:
    """The document's bytes and its text, both without the byte order mark when `strip_bom`."""
    view, before = as_view(data), 0
    if strip_bom and bytes(view[:3]) == codecs.BOM_UTF8:
        data = view = view[3:]
        before = 3
    try:
        return data, str(view, "utf-8")
    except UnicodeDecodeError as error:
        if encoding != "utf-8-lossy":
            at = before + error.start
            raise OpError(f"not valid UTF-8 at byte {at}; encoding='utf-8-lossy' would replace it", offset=at) from error
    text = str(view, "utf-8", "replace")
    return text.encode(), text


@register_op("text", kind="decoder", infer=_infer, method_hides=("strip_bom", "as_object"))
def decode_text(
    data: BytesLike, *, encoding: Encoding = "utf-8", strip_bom: bool = True, as_object: bool = False
) -> np.ndarray | str:
    """Check that the bytes are UTF-8.

    Args:
        data: the document.
        encoding: "utf-8" (or "utf8"), or "utf-8-lossy", which replaces what is invalid by U+FFFD.
        strip_bom: drop a leading byte order mark.
        as_object: give a str instead of its bytes.

    Returns:
        uint8[n], or str.

    Raises:
        OpError: invalid UTF-8.
    """
    raw, text = _decode(data, encoding, strip_bom)
    return text if as_object else decode_bytes(raw)


_WHITE_SPACE = " \t\n\r"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)  # making one takes as long as a small document


@register_op("json", kind="decoder", infer=_infer, method_hides=("encoding", "strip_bom", "as_object"))
def decode_json(
    data: BytesLike,
    *,
    field: str | None = None,
    encoding: Encoding = "utf-8",
    strip_bom: bool = True,
    as_object: bool = False,
) -> Any:
    """Check one JSON document (RFC 8259) and hand on its bytes, white space kept.

    Args:
        data: the document.
        field: take this top-level member: a string, whose UTF-8 text is the result (any kind with `as_object`).
        encoding, strip_bom: as for `text`.
        as_object: give the parsed Python object instead of bytes.

    Returns:
        uint8[n], or a Python object.

    Raises:
        OpError: not UTF-8, not one JSON document, nested too deep, or the field is missing or no string.
    """
    raw, text = _decode(data, encoding, strip_bom)
    if not text.strip(_WHITE_SPACE):
        raise OpError(f"not valid JSON: {'no data' if not text else 'nothing but white space'}")
    try:
        document = _JSON.decode(text)
    except RecursionError as error:
        raise OpError("not usable JSON: nested too deep") from error
    except ValueError as error:
        raise OpError(f"not valid JSON: {error}") from error
    if field is None:
        return document if as_object else decode_bytes(raw)
    if not isinstance(document, dict) or field not in document:
        found = f"an object with {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else type(document).__name__
        raise OpError(f"json(field={field!r}) finds no such member; the document is {found}")
    member = document[field]
    if as_object:
        return member
    if not isinstance(member, str):
        raise OpError(f"json(field={field!r}) wants a string, found {type(member).__name__}; use as_object=True")
    try:
        return decode_bytes(member.encode())
    except UnicodeEncodeError as error:  # "\ud800" alone
        raise OpError(f"json(field={field!r}) holds a lone surrogate, which has no UTF-8 form") from error
