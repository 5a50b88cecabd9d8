"""Ops on whole batches: mixing records, padding to the longest one, normalising, shuffling.

Each takes a `FinishedBatch` and makes a new one; rows, keys and errors that it does not touch stay as they are. `slot` is a
slot's name or its number. Random ones draw from a stream of the run's seed, the op's own `seed`, the epoch and the batch's
number, which the engine makes: a resumed run continues as it would have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ..engine.arguments import Count, Positive, Size
from ..engine.batch import FinishedBatch, SlotColumn
from ..engine.errors import did_you_mean
from ..engine.registry import register_check, register_op
from .tensor import Fill, check_fill, fill_value

Slot: TypeAlias = str | Count
CHANNELS = (1, 3, 4)
CHUNK = 1 << 16
"""Elements worked on at a time, so that the second pass over them finds them in the cache."""


def _check_slots(op: str, given: dict[str, Any]) -> dict[str, Any]:
    for name in ("slot", "label_slot"):
        if given.get(name) == "":
            raise ValueError(f"{op}({name}=) must not be empty")
    return given


def _column(op: str, batch: FinishedBatch, slot: Slot) -> tuple[str, SlotColumn]:
    """The slot's name and what it holds.

    Raises:
        KeyError, IndexError: no such slot.
        ValueError: a slot of Python values.
    """
    names = list(batch.slots)
    if isinstance(slot, int):
        if slot >= len(names):
            raise IndexError(f"{op}: slot {slot} is out of range; the batch has {len(names)}: {', '.join(names)}")
        slot = names[slot]
    if slot not in batch.slots:
        raise KeyError(f"{op}: no slot is called {slot!r}{did_you_mean(slot, names)}; the batch has: {', '.join(names)}")
    column = batch.slots[slot]
    if column.objects:
        raise ValueError(f"{op}: slot {slot!r} holds Python values; it takes a slot of arrays")
    return slot, column


def _dense(op: str, batch: FinishedBatch, slot: Slot) -> tuple[str, np.ndarray]:
    """The slot's name and its array [B, ...].

    Raises:
        ValueError: rows of different shapes.
    """
    name, column = _column(op, batch, slot)
    if column.dense is None:
        raise ValueError(
            f"{op}: slot {name!r} is ragged; bring its rows to one shape first: resize, crop or pad_axis, "
            "or pad_to_longest before this"
        )
    return name, column.dense


def _check_float(op: str, name: str, dense: np.ndarray) -> None:
    if dense.dtype != np.float32:
        raise ValueError(
            f"{op}: slot {name!r} holds {dense.dtype}, it takes float32: end the slot with normalize, unit_chw or "
            "cast(dtype='float32')"
        )


def _labels(op: str, batch: FinishedBatch, slot: Slot | None) -> tuple[str, np.ndarray] | None:
    """The labels' slot and their array, float32[B] or [B, K]."""
    if slot is None:
        return None
    name, labels = _dense(op, batch, slot)
    if labels.dtype != np.float32:
        raise ValueError(
            f"{op}: labels in slot {name!r} are {labels.dtype} and cannot be mixed: make them one-hot first, "
            "float32[classes] per record"
        )
    if labels.ndim > 2:
        raise ValueError(f"{op}: labels in slot {name!r} have shape {labels.shape}, it takes float32[B] or [B, K]")
    return name, labels


def _partners(count: int, rng: np.random.Generator) -> np.ndarray:
    """For each record another one: a permutation in a single cycle, each of these equally likely.

    Source: Sattolo 1986, "An algorithm to generate a random cyclic permutation", has the same distribution.
    """
    order = rng.permutation(count)
    partner = np.empty_like(order)
    partner[order] = np.roll(order, -1)
    return partner


def _chunks(dense: np.ndarray) -> list[slice]:
    """Runs of rows of about `CHUNK` elements."""
    step = max(1, CHUNK * len(dense) // max(dense.size, 1))
    return [slice(start, start + step) for start in range(0, len(dense), step)]


def _mixed(batch: FinishedBatch, dense: np.ndarray, partner: np.ndarray, weight: float) -> SlotColumn:
    """`weight` * row + (1 - `weight`) * its partner, in float32."""
    own, other = np.float32(weight), np.float32(1 - weight)
    out = batch.allocate(dense.shape, dense.dtype)
    chunks = _chunks(dense)
    spare = np.empty_like(dense[chunks[0]])
    for rows in chunks:
        here, mine = out[rows], dense[rows]
        theirs = dense[partner[rows]] if len(mine) > 1 else dense[partner[rows.start]]  # of one row no copy
        np.multiply(theirs, other, out=here)
        part = np.multiply(mine, own, out=spare[: len(mine)])
        np.add(here, part, out=here)
    return SlotColumn(dense=out)


@register_op("mixup", kind="batch_transform", random=True)
def mixup(
    batch: FinishedBatch,
    *,
    alpha: Positive = 0.2,
    slot: Slot,
    label_slot: Slot | None = None,
    seed: Count | None = None,
    rng: np.random.Generator,
) -> FinishedBatch:
    """Blend every record with another one of the batch.

    One weight w is drawn from Beta(alpha, alpha) for the batch, and one partner for each record: a permutation that is
    a single random cycle, so nobody is their own partner. A record becomes w * itself + (1 - w) * its partner, and its
    label alike. A batch of one record stays as it is.

    Args:
        slot: float32[B, ...].
        label_slot: float32[B] or [B, K], one-hot or soft labels; None leaves labels alone.
        seed: mixed into the run's seed.

    Returns:
        The batch with these slots replaced, within 1e-6 of float64 for values in [-1, 1].

    Raises:
        KeyError, IndexError: no such slot.
        ValueError: a ragged slot, or another dtype.

    Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization".
    """
    name, dense = _dense("mixup", batch, slot)
    _check_float("mixup", name, dense)
    labels = _labels("mixup", batch, label_slot)
    if batch.length < 2:
        return batch
    weight, partner = float(rng.beta(alpha, alpha)), _partners(batch.length, rng)
    return _replaced(batch, name, _mixed(batch, dense, partner, weight), labels, partner, weight)


def _replaced(
    batch: FinishedBatch,
    name: str,
    column: SlotColumn,
    labels: tuple[str, np.ndarray] | None,
    partner: np.ndarray,
    weight: float,
) -> FinishedBatch:
    """The batch with a mixed slot, and with labels mixed by the same weight."""
    columns = {name: replace(batch.slots[name], dense=column.dense)}
    if labels is not None:
        columns[labels[0]] = replace(batch.slots[labels[0]], dense=_mixed(batch, labels[1], partner, weight).dense)
    return batch.with_slots(columns)


def _window(shape: tuple[int, ...]) -> tuple[int, int]:
    """The axes of rows and columns of images [B, ...].

    Channels are last when there are 1, 3 or 4 there, else first when there are so many there, else on the shorter axis.

    Raises:
        ValueError: no telling.
    """
    first, last = shape[1], shape[3]
    if last in CHANNELS or (first not in CHANNELS and last < first):
        return 1, 2
    if first in CHANNELS or first < last:
        return 2, 3
    raise ValueError(f"cutmix: cannot tell the channels of images {shape}: neither the second nor the last axis is short")


@register_op("cutmix", kind="batch_transform", random=True)
def cutmix(
    batch: FinishedBatch,
    *,
    alpha: Positive = 1.0,
    slot: Slot,
    label_slot: Slot | None = None,
    seed: Count | None = None,
    rng: np.random.Generator,
) -> FinishedBatch:
    """Paste the same rectangle of another record of the batch into every image.

    A weight w is drawn from Beta(alpha, alpha), partners as for `mixup`, and the rectangle's centre uniformly; its
    edges are sqrt(1 - w) of the image's, rounded down, and clipped to the image. A label becomes share * itself +
    (1 - share) * its partner, where share is the part of the image that was kept. A batch of one record stays as it is.

    Args:
        slot: images of any dtype, [B, c, h, w] or [B, h, w, c].
        label_slot: float32[B] or [B, K], one-hot or soft labels; None leaves labels alone.
        seed: mixed into the run's seed.

    Returns:
        The batch with these slots replaced.

    Raises:
        KeyError, IndexError: no such slot.
        ValueError: a ragged slot, no images, images without pixels, or labels of another dtype.

    Source: Yun et al. 2019, "CutMix"; the rectangle is that of torchvision.transforms.v2.CutMix.
    """
    name, dense = _dense("cutmix", batch, slot)
    if dense.ndim != 4:
        raise ValueError(f"cutmix: slot {name!r} has shape {dense.shape}, it takes [B, c, h, w] or [B, h, w, c]")
    rows, columns = _window(dense.shape)
    height, width = dense.shape[rows], dense.shape[columns]
    if height == 0 or width == 0:
        raise ValueError(f"cutmix: slot {name!r} has images without pixels, shape {dense.shape}")
    labels = _labels("cutmix", batch, label_slot)
    if batch.length < 2:
        return batch
    edge, partner = float(np.sqrt(1 - rng.beta(alpha, alpha))), _partners(batch.length, rng)
    y0, y1 = _span(height, edge, rng)
    x0, x1 = _span(width, edge, rng)
    place = [slice(None)] * 4
    place[rows], place[columns] = slice(y0, y1), slice(x0, x1)
    out = batch.allocate(dense.shape, dense.dtype)
    np.copyto(out, dense)
    out[tuple(place)] = dense[tuple(place)][partner]
    share = 1 - (y1 - y0) * (x1 - x0) / (height * width)
    return _replaced(batch, name, SlotColumn(dense=out), labels, partner, share)


def _span(size: int, edge: float, rng: np.random.Generator) -> tuple[int, int]:
    """Start and end of an interval of `edge` times `size` pixels around a drawn pixel, clipped."""
    centre, half = int(rng.integers(size)), int(edge * size) // 2
    return max(centre - half, 0), min(centre - half + int(edge * size), size)


def _rows_to_pad(name: str, column: SlotColumn) -> list[np.ndarray] | np.ndarray:
    """The rows, of one dtype and, but for axis 0, one shape.

    Raises:
        ValueError: they differ otherwise.
    """
    rows: list[np.ndarray] | np.ndarray = column.rows or [] if column.dense is None else column.dense
    first = rows[0]
    if first.ndim == 0:
        raise ValueError(f"pad_to_longest: slot {name!r} holds scalars, it takes rows with at least one axis")
    for i, row in enumerate(rows if column.dense is None else ()):
        if row.dtype != first.dtype or row.shape[1:] != first.shape[1:] or row.ndim != first.ndim:
            raise ValueError(
                f"pad_to_longest: slot {name!r} takes rows of one dtype that differ along axis 0 only; row 0 is "
                f"{first.dtype}{list(first.shape)}, row {i} {row.dtype}{list(row.shape)}"
            )
    return rows


@register_op("pad_to_longest", kind="batch_transform")
def pad_to_longest(
    batch: FinishedBatch, *, slot: Slot, pad_value: Fill = 0.0, pad_to_multiple_of: Size | None = None
) -> FinishedBatch:
    """Append `pad_value` along axis 0 of every record's array, up to the longest one of the batch.

    Args:
        slot: arrays of one dtype that differ along axis 0 only.
        pad_value: cast to their dtype: fractions are cut off, integers saturate, NaN is 0 in an integer.
        pad_to_multiple_of: rounds the length up, so that fewer different lengths occur.

    Returns:
        The batch with this slot stacked, [B, length, ...]. A slot that is stacked already, and long enough, stays.

    Raises:
        KeyError, IndexError: no such slot.
        ValueError: arrays that differ otherwise, scalars, or Python values.
    """
    name, column = _column("pad_to_longest", batch, slot)
    rows = _rows_to_pad(name, column)
    longest = max(len(row) for row in rows)
    if pad_to_multiple_of is not None:
        longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    if column.dense is not None and column.dense.shape[1] == longest:
        return batch
    first = rows[0]
    out = batch.allocate((len(rows), longest, *first.shape[1:]), first.dtype)
    fill = fill_value(pad_value, first.dtype)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
        place[len(row) :] = fill
    return batch.with_slots({name: replace(column, dense=out, rows=None)})


@register_check("pad_to_longest", kind="batch_transform")
def _check_padding(**given: Any) -> dict[str, Any]:
    _check_slots("pad_to_longest", given)
    return {**given, "pad_value": check_fill("pad_to_longest(pad_value=)", given["pad_value"])}


@register_op("batch_normalize", kind="batch_transform")
def batch_normalize(
    batch: FinishedBatch, *, slot: Slot, mean: tuple[float, ...], std: tuple[Positive, ...]
) -> FinishedBatch:
    """(x - mean) / std for each channel.

    Args:
        slot: float32[B, h, w, c] or [B, c, h, w], where c is the length of `mean`; the former when both fit.
        mean, std: one value per channel.

    Returns:
        The batch with this slot replaced, within 1e-6 of float64 relative to the largest of |x|, |mean|, by std.

    Raises:
        KeyError, IndexError: no such slot.
        ValueError: a ragged slot, another dtype or rank, or another number of channels.
    """
    name, dense = _dense("batch_normalize", batch, slot)
    _check_float("batch_normalize", name, dense)
    if dense.ndim != 4 or len(mean) not in (dense.shape[1], dense.shape[3]):
        raise ValueError(
            f"batch_normalize: slot {name!r} has shape {dense.shape}, it takes [B, c, h, w] or [B, h, w, c] with "
            f"{len(mean)} channels, one for each mean"
        )
    shift, scale = np.array(mean, np.float32), (1 / np.array(std)).astype(np.float32)
    count, first, second, last = dense.shape
    lines = (count * first, second * last)  # of pixels or, channels first, whole planes: NumPy wants a long inner axis
    if last == len(mean):
        shift, scale = (np.broadcast_to(np.tile(v, second), lines) for v in (shift, scale))
    else:
        shift, scale = (np.tile(v, count)[:, None] for v in (shift, scale))
    out = batch.allocate(dense.shape, dense.dtype)
    source, target = dense.reshape(lines), out.reshape(lines)
    for rows in _chunks(source):
        np.subtract(source[rows], shift[rows], out=target[rows])
        np.multiply(target[rows], scale[rows], out=target[rows])
    return batch.with_slots({name: replace(batch.slots[name], dense=out)})


@register_check("batch_normalize", kind="batch_transform")
def _check_normalize(**given: Any) -> dict[str, Any]:
    if len(given["mean"]) != len(given["std"]):
        raise ValueError(
            f"batch_normalize takes one mean and one std per channel, got {len(given['mean'])} and {len(given['std'])}"
        )
    return _check_slots("batch_normalize", given)


@register_op("batch_shuffle", kind="batch_transform", random=True)
def batch_shuffle(
    batch: FinishedBatch, *, seed: Count | None = None, batch_axis: Slot | None = None, rng: np.random.Generator
) -> FinishedBatch:
    """Put the records of the batch into a random order, every slot alike, with their keys and indices.

    Args:
        seed: mixed into the run's seed.
        batch_axis: accepted and without effect: records lie along axis 0.

    Returns:
        The batch in another order; its errors stay as they are.
    """
    return batch.permuted(rng.permutation(batch.length).tolist())


@register_check("mixup", kind="batch_transform")
def _check_mixup(**given: Any) -> dict[str, Any]:
    return _check_slots("mixup", given)


@register_check("cutmix", kind="batch_transform")
def _check_cutmix(**given: Any) -> dict[str, Any]:
    return _check_slots("cutmix", given)
