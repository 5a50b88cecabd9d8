"""Suppression of boxes that overlap better ones."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np

from ...engine.arguments import Positive, Probability, Range, Size
from ...engine.registry import register_op
from .rows import BOXES, BoxFormat, Corners, check_table, infer_some, overlaps, refuse

Threshold: TypeAlias = Annotated[float, Range(0.0)]

NMS_BLOCK = 128
"""Boxes that nms and soft_nms look at together, best first: the bits of two integers."""


def _candidates(boxes: np.ndarray, score_thresh: float, form: BoxFormat) -> np.ndarray:
    """float32[n, 5], a new array: corners and score of the boxes that score enough, the best first."""
    check_table(boxes, 5)
    if not (finite := np.isfinite(boxes)).all():
        refuse(boxes, ~finite.all(axis=1), "finite numbers")
    enough = boxes[boxes[:, 4] >= np.float32(score_thresh)]
    found = enough[np.argsort(-enough[:, 4], kind="stable")]
    if form == "xywh":
        half = found[:, 2:4] / 2
        found[:, 2:4] = found[:, :2] + half
        found[:, :2] -= half
    return found


@register_op("nms", takes=BOXES, infer=infer_some)
def nms(
    boxes: np.ndarray,
    *,
    iou_thresh: Probability = 0.5,
    score_thresh: Threshold = 0.05,
    top_k: Size | None = None,
    box_format: BoxFormat = "xyxy",
) -> np.ndarray:
    """Keep the best of boxes that overlap (non-maximum suppression).

    Args:
        boxes: float32[n, 5], corners (in any unit) and a score.
        iou_thresh: a box goes when its intersection over union with a better, kept one is larger.
        score_thresh: a box goes when its score is smaller.
        top_k: keep at most so many.
        box_format: "xywh" reads centres and sizes; corners come out all the same.

    Returns:
        float32[k, 5], a new array: corners and score, the best first, equal scores in the order they came.

    Raises:
        OpError: another dtype or shape, or a number that is not finite.

    Source: the rule of torchvision.ops.nms, except that the threshold is a float32 as overlaps are: one of 3/10 is not
        larger than 0.3.
    """
    found = _candidates(boxes, score_thresh, box_format)
    corners, limit = Corners.of(found), np.float32(iou_thresh)
    kept = np.empty(0, np.intp)
    for start in range(0, len(found), NMS_BLOCK):
        rows = np.arange(start, min(start + NMS_BLOCK, len(found)))
        if len(kept):
            rows = rows[~(overlaps(corners.take(kept), corners.take(rows)) > limit).any(axis=0)]
        some = corners.take(rows)
        kept = np.concatenate([kept, rows[_best(overlaps(some, some) > limit)]])
        if top_k is not None and len(kept) >= top_k:
            break
    return found[kept[:top_k]]


def _best(suppresses: np.ndarray) -> list[int]:
    """The rows of bool[n, n], best first, that no earlier one of these suppresses."""
    table = np.zeros((len(suppresses), NMS_BLOCK // 8), np.uint8)
    packed = np.packbits(suppresses, axis=1, bitorder="little")
    table[:, : packed.shape[1]] = packed
    suppressed, kept = 0, []
    for row, (low, high) in enumerate(table.view("<u8").tolist()):  # two integers hold a row: a step takes 0.1 us
        if not suppressed >> row & 1:
            kept.append(row)
            suppressed |= low | high << 64
    return kept


@register_op("soft_nms", takes=BOXES, infer=infer_some)
def soft_nms(
    boxes: np.ndarray,
    *,
    iou_thresh: Probability = 0.3,
    sigma: Positive = 0.5,
    score_thresh: Threshold = 0.001,
    top_k: Size | None = None,
    box_format: BoxFormat = "xyxy",
) -> np.ndarray:
    """Lower the scores of boxes that overlap better ones, instead of dropping them at once.

    The best box is taken; the score of each other box that overlaps it by more than `iou_thresh` is multiplied by
    exp(-iou**2 / sigma); again with the best of those that are left.

    Args:
        boxes: float32[n, 5], corners (in any unit) and a score.
        iou_thresh: intersection over union up to which scores stay.
        sigma: the smaller, the faster scores fall.
        score_thresh: a box goes when its score, after all, is smaller.
        top_k: keep at most so many.
        box_format: "xywh" reads centres and sizes; corners come out all the same.

    Returns:
        float32[k, 5], a new array: corners and lowered score, the best first. Scores are within 1e-6 of taking one box
        after the other in float64.

    Raises:
        OpError: another dtype or shape, or a number that is not finite.

    Source: Bodla et al. 2017, "Soft-NMS: improving object detection with one line of code", equation 3.
    """
    found = _candidates(boxes, score_thresh, box_format)
    corners, scores = Corners.of(found), found[:, 4].copy()
    waiting = np.arange(len(found))
    while len(waiting):
        block, rest = waiting[:NMS_BLOCK], waiting[NMS_BLOCK:]
        floor = float(scores[rest[0]]) if len(rest) else -1.0
        near, marks = corners.take(block), scores[block]
        taken = _decay_in_block(near, marks, floor, iou_thresh, sigma)
        scores[block] = marks
        if not len(rest):
            break  # all of the block were taken
        scores[rest] *= _decay(overlaps(near.take(taken), corners.take(rest)), iou_thresh, sigma)
        waiting = np.concatenate([block[~taken], rest])
        waiting = waiting[scores[waiting] >= np.float32(score_thresh)]
        waiting = waiting[np.lexsort((waiting, -scores[waiting]))]
    found[:, 4] = scores
    order = np.argsort(-scores, kind="stable")[:top_k]
    return found[order[scores[order] >= np.float32(score_thresh)]]


def _decay(shared: np.ndarray, iou_thresh: float, sigma: float) -> np.ndarray:
    """float32[m]: what the scores of m boxes are multiplied by, for float32[n, m] overlaps with better ones."""
    np.copyto(shared, 0, where=~(shared > np.float32(iou_thresh)))  # that of two boxes without area is NaN
    shared *= shared
    power: np.ndarray = shared.sum(axis=0)
    power /= np.float32(-sigma)
    np.exp(power, out=power)
    return power


def _decay_in_block(
    corners: Corners, scores: np.ndarray, floor: float, iou_thresh: float, sigma: float
) -> np.ndarray:
    """Lower `scores`, best first, while they are above `floor`; bool[n]: the boxes that were taken.

    All boxes that beat every box they overlap are taken in one round: a score only falls, so such a box is taken before
    all those, and what it does not overlap cannot change its score.

    Args:
        scores: float32[n], falling.
        floor: the best score of the boxes that are not here: one of those may come before a box that fell below.
    """
    shared = np.triu(overlaps(corners, corners), 1)
    a, b = np.divmod(np.flatnonzero(shared > np.float32(iou_thresh)), len(scores))
    strength = np.square(shared[a, b]) / np.float32(sigma)
    taken = np.zeros(len(scores), np.bool_)
    while True:
        first_wins = scores[a] >= scores[b]
        loser, winner = np.where(first_wins, b, a), np.where(first_wins, a, b)
        beaten = taken.copy()
        beaten[loser] = True
        ready = ~beaten & (scores > floor)
        ready[0] |= not taken[0]
        taken |= ready
        falls = np.flatnonzero(ready[winner])
        if not len(falls):
            return taken
        scores *= np.exp(-np.bincount(loser[falls], strength[falls], len(scores)))
        left = np.flatnonzero(~taken[a] & ~taken[b])
        a, b, strength = a[left], b[left], strength[left]
