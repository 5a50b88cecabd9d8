"""Affine and perspective warps: `affine`, `random_affine`, `random_perspective`.

Pixel centres lie at whole coordinates, x to the right and y down; every output pixel is looked up at its place in the
input ("inverse mapping"), and what lies outside the input counts as `fill`. OpenCV (5 or later: earlier releases
round places to 1/32 pixel) does nearest and bilinear. Its bicubic kernel has a = -0.75 where the rest of this package
has -0.5, so `_cubic_tile` builds that one from bilinear look-ups.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from ...engine.arguments import Positive, Probability, Range
from ...engine.errors import OpError
from ...engine.registry import register_check, register_kernel, register_op
from ..libraries import opencv
from .pixels import RGB, infer_rgb, require_pixels, stored

WarpInterp: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
Fill: TypeAlias = Annotated[int, Range(0, 255)]
NotNegative: TypeAlias = Annotated[float, Range(0.0)]

TIE_GRID = 1 << 30
"""Steps per pixel in which places in the middle between two pixels are told: coarser than the matrix's rounding noise."""
FLOAT32_WHOLE = 2**24
"""Up to here float32 holds every whole number; no image is larger."""
LIMIT = 1e300
"""Entries of a matrix stay below, so that no place overflows."""
TILE = 128
"""Edge of the output tiles of the bicubic warp: their float images stay in the processor's cache."""


def require_image(op: str, image: np.ndarray) -> None:
    """Refuse what is no RGB image with pixels.

    Raises:
        OpError: not uint8[h, w, 3], or h or w is 0.
    """
    require_pixels(op, image, (3,))
    if image.size == 0:
        raise OpError(f"{op} wants an image with pixels, got shape {image.shape}")


def inverse_affine(
    height: int, width: int, *, angle_deg: float, tx: float, ty: float, scale: float, shear_deg: float
) -> np.ndarray:
    """Where the pixels of a warped image come from.

    The forward map about the centre c = ((width - 1) / 2, (height - 1) / 2) is
    `p' = scale * R * S * (p - c) + c + (tx, ty)` with `R = [[cos, -sin], [sin, cos]]`, which turns clockwise on
    screen for positive angles, and `S = [[1, tan(shear)], [0, 1]]`.

    Returns:
        float64[2, 3], from output (x, y, 1) to input (x, y).

    Raises:
        OpError: `scale` is too small for its inverse to be a number.
    """
    angle, shear = math.radians(angle_deg), math.tan(math.radians(shear_deg))
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    linear = np.array([[cos + shear * sin, sin - shear * cos], [-sin, cos]])
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    matrix = about(centre, linear, shift=(tx, ty))
    if not (np.abs(matrix) < LIMIT).all():  # NaN is not less either
        raise OpError(f"affine(scale={scale:g}, tx={tx:g}, ty={ty:g}) leaves the range of numbers")
    return matrix


def about(centre: np.ndarray, linear: np.ndarray, shift: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """The inverse map `p = linear * (p' - centre - shift) + centre` as float64[2, 3]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.column_stack([linear, centre - linear @ (centre + np.array(shift))])


def warp_affine(image: np.ndarray, out: np.ndarray, matrix: np.ndarray, *, fill: int, interp: str) -> None:
    """Look up every pixel of `out` in `image`.

    Args:
        image: uint8[h, w, 3], any strides.
        out: uint8[h, w, 3], C-contiguous.
        matrix: float64[2, 3] from output (x, y, 1) to input (x, y).
        fill: 0 to 255, for every channel; what the kernel sees outside of `image`.
        interp: "nearest" rounds half away from zero; "bilinear"; "bicubic" is the cubic convolution with a = -0.5.

    Matches the formula in float64 within 1 level (nearest: exactly, but for about 1 pixel in 1,000 whose place lies
    within float32 rounding of the middle between two pixels).
    """
    if interp == "bicubic":
        _warp_cubic(image, out, matrix, fill)
        return
    cv2 = opencv()
    height, width = out.shape[:2]
    kernel = cv2.INTER_NEAREST if interp == "nearest" else cv2.INTER_LINEAR
    flags = kernel | cv2.WARP_INVERSE_MAP
    stored(cv2.warpAffine(image, matrix, (width, height), dst=out, flags=flags, **_outside(fill)), out)
    if interp == "nearest":
        _break_ties(image, out, matrix, fill)


def _outside(fill: int) -> dict[str, Any]:
    """OpenCV's arguments for a constant around the image."""
    return {"borderMode": opencv().BORDER_CONSTANT, "borderValue": (fill,) * 4}


def _break_ties(image: np.ndarray, out: np.ndarray, matrix: np.ndarray, fill: int) -> None:
    """Do anew the rows of a nearest warp with places in the middle between two pixels: OpenCV rounds those to even."""
    height, width = out.shape[:2]
    across = matrix[:, :1] * np.arange(width)
    down = matrix[:, 1:2] * np.arange(height) + matrix[:, 2:]
    # A place across + down is in the middle where the fraction of `across` completes that of `down` to a half.
    found, wanted = _grid_fractions(across), _grid_fractions(0.5 - down)
    if set(found.ravel().tolist()).isdisjoint(wanted.ravel().tolist()):  # nearly always, and far quicker than isin
        return
    rows = np.flatnonzero(np.isin(wanted, found).any(axis=0))
    places = np.add(down[:, rows, None], across[:, None, :])
    places = np.trunc(places + np.copysign(0.5 + 1 / TIE_GRID, places)).clip(-1, FLOAT32_WHOLE).astype(np.float32)
    out[rows] = opencv().remap(image, *places, opencv().INTER_NEAREST, **_outside(fill))


def _grid_fractions(coordinates: np.ndarray) -> np.ndarray:
    """Fractional parts in steps of 1 / TIE_GRID, int64[2, n]; those of y lie TIE_GRID above those of x."""
    steps: np.ndarray = np.rint((coordinates - np.floor(coordinates)) * TIE_GRID).astype(np.int64)
    steps &= TIE_GRID - 1
    steps[1] += TIE_GRID
    return steps


def _warp_cubic(image: np.ndarray, out: np.ndarray, matrix: np.ndarray, fill: int) -> None:
    height, width = out.shape[:2]
    limits = np.array([image.shape[1], image.shape[0]])
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            tile = out[top : top + TILE, left : left + TILE]
            origin = matrix @ (left, top, 1)
            edges = matrix[:, :2] * (tile.shape[1] - 1, tile.shape[0] - 1)
            # The four taps of a place start one pixel before it and end two after it.
            first = np.floor(np.clip(origin + np.minimum(edges, 0).sum(axis=1) - 1, 0, limits)).astype(int)
            last = np.ceil(np.clip(origin + np.maximum(edges, 0).sum(axis=1) + 3, 0, limits)).astype(int)
            if (first >= last).any():
                tile[...] = fill
                continue
            window = image[first[1] : last[1], first[0] : last[0]]
            _cubic_tile(window, tile, np.column_stack([matrix[:, :2], origin - first]), fill)


def _cubic_tile(image: np.ndarray, out: np.ndarray, matrix: np.ndarray, fill: int) -> None:
    """Cubic convolution with a = -0.5 from four bilinear look-ups.

    In one dimension that kernel is the Hermite spline through p0 and p1 with the slopes m_i = (p_i+1 - p_i-1) / 2: at
    t between them, `(1 - s) p0 + s p1 + t (1 - t) ((1 - t) m0 - t m1)` with `s = t^2 (3 - 2 t)`. The first part is
    linear interpolation at s. So is the second, at t, once every other slope has changed its sign. Two dimensions
    apply this to rows and columns, which makes four images: pixels, slopes along x, along y, and along both.

    Source: Keys 1981, "Cubic convolution interpolation for digital image processing".
    """
    cv2 = opencv()
    h, w = image.shape[0] + 4, image.shape[1] + 4  # two pixels of fill around: a slope reaches one further than a pixel
    planes = np.zeros((4, h, w * 4), np.float32)  # four channels: OpenCV is fastest there; less fill, so outside is 0
    pixels, slope_x, slope_y, slope_xy = planes
    four = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA)
    cv2.subtract(four, (fill,) * 4, dst=pixels.reshape(h, w, 4)[2:-2, 2:-2], dtype=cv2.CV_32F)
    _slopes(pixels, 4, _half_signs(w).repeat(4), slope_x)
    _slopes(pixels.T, 1, _half_signs(h), slope_y.T)
    _slopes(slope_x.T, 1, _half_signs(h), slope_xy.T)

    height, width = out.shape[:2]
    x, smooth_x, weight_x = _cubic_places(matrix[0], height, width, w)
    y, smooth_y, weight_y = _cubic_places(matrix[1], height, width, h)

    def look_up(plane: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found: np.ndarray = cv2.remap(plane.reshape(h, w, 4), x, y, cv2.INTER_LINEAR, **_outside(0))
        return found

    result = look_up(slope_xy, x, y)
    result *= weight_x
    result += look_up(slope_y, smooth_x, y)
    result *= weight_y
    along_x = look_up(slope_x, x, smooth_y)
    along_x *= weight_x
    result += along_x
    result += look_up(pixels, smooth_x, smooth_y)
    levels = cv2.add(result, (fill,) * 4, dtype=cv2.CV_8U)
    cv2.cvtColor(levels, cv2.COLOR_RGBA2RGB, dst=out)


def _half_signs(size: int) -> np.ndarray:
    signs = np.full(size, 0.5, np.float32)
    signs[1::2] = -0.5
    return signs


def _slopes(values: np.ndarray, step: int, factors: np.ndarray, out: np.ndarray) -> None:
    """Differences of the two neighbours along the last axis, `step` apart, by `factors`; `out` starts as zeros."""
    inner = out[:, step:-step]
    np.subtract(values[:, 2 * step :], values[:, : -2 * step], out=inner)
    inner *= factors[step:-step]


def _cubic_places(
    row: np.ndarray, height: int, width: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One coordinate of every pixel's place in the padded image, its smoothed form, and the weight of the slopes.

    Returns:
        float32[height, width], float32[height, width], float32[height, width, 4].
    """
    cv2 = opencv()
    down, across = row[1] * np.arange(height) + (row[2] + 2), row[0] * np.arange(width)
    place = np.add.outer(down, across)
    place = np.clip(place, 0, size - 1, out=place).astype(np.float32)  # the padding is zero, and so is all beyond
    whole = np.floor(place)
    part = place - whole
    weight = part * (1 - part)
    weight *= 1 - 2 * (whole.astype(np.int32) & 1).astype(np.float32)
    whole += part * part * (3 - 2 * part)
    return place, whole, cv2.cvtColor(weight, cv2.COLOR_GRAY2RGBA)


@register_op("affine", takes=RGB, infer=infer_rgb)
def affine(
    image: np.ndarray,
    *,
    angle_deg: float = 0.0,
    tx: float = 0.0,
    ty: float = 0.0,
    scale: Positive = 1.0,
    shear_deg: float = 0.0,
    fill: Fill = 0,
    interp: WarpInterp = "bilinear",
) -> np.ndarray:
    """Turn, shift, scale and shear the image about its centre; the map is that of `inverse_affine`.

    Args:
        image: uint8[h, w, 3].
        angle_deg: clockwise on screen.
        tx, ty: pixels to the right and down.
        scale: above 1 enlarges.
        shear_deg: pixels move along x by tan(shear_deg) times their distance below the centre.
        fill: 0 to 255, what lies outside the image.
        interp: as `warp_affine`.

    Returns:
        uint8[h, w, 3], a new array, within 1 level of the formula in float64.

    Raises:
        OpError: another dtype or shape, no pixels, or a scale whose inverse is no number.
    """
    out = np.empty(image.shape, np.uint8)
    affine_out(
        image,
        out,
        angle_deg=angle_deg,
        tx=tx,
        ty=ty,
        scale=scale,
        shear_deg=shear_deg,
        fill=fill,
        interp=interp,
    )
    return out


@register_kernel("affine", "out")
def affine_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    angle_deg: float = 0.0,
    tx: float = 0.0,
    ty: float = 0.0,
    scale: Positive = 1.0,
    shear_deg: float = 0.0,
    fill: Fill = 0,
    interp: WarpInterp = "bilinear",
) -> None:
    """`affine` into `out`, uint8[h, w, 3]."""
    require_image("affine", image)
    height, width = image.shape[:2]
    matrix = inverse_affine(
        height, width, angle_deg=angle_deg, tx=tx, ty=ty, scale=scale, shear_deg=shear_deg
    )
    warp_affine(image, out, matrix, fill=fill, interp=interp)


@register_check("random_affine")
def _check_scale_range(**given: Any) -> dict[str, Any]:
    low, high = given["scale_range"]
    if low > high:
        raise ValueError(f"random_affine wants scale_range=(lo, hi) with 0 < lo <= hi, got {given['scale_range']}")
    return given


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between `low` and `high`; nothing is drawn where they are equal."""
    return low if low == high else low + (high - low) * rng.random()


@register_op("random_affine", takes=RGB, infer=infer_rgb, random=True)
def random_affine(
    image: np.ndarray,
    *,
    degrees: NotNegative = 0.0,
    translate: tuple[NotNegative, NotNegative] = (0.0, 0.0),
    scale_range: tuple[Positive, Positive] = (1.0, 1.0),
    shear_deg: NotNegative = 0.0,
    fill: Fill = 0,
    interp: WarpInterp = "bilinear",
    rng: np.random.Generator,
) -> np.ndarray:
    """`affine` with uniformly drawn arguments.

    Args:
        image: uint8[h, w, 3].
        degrees: the angle lies in +-degrees.
        translate: the shifts lie in +-translate[0] * w and +-translate[1] * h, in pixels and fractions of them.
        scale_range: lowest and highest scale.
        shear_deg: the shear lies in +-shear_deg.
        fill, interp: as for `affine`.
        rng: draws angle, x shift, y shift, scale, shear, in this order; a range of one value draws nothing.

    Returns:
        uint8[h, w, 3], a new array.

    Raises:
        OpError: as `affine`.
    """
    out = np.empty(image.shape, np.uint8)
    random_affine_out(
        image,
        out,
        degrees=degrees,
        translate=translate,
        scale_range=scale_range,
        shear_deg=shear_deg,
        fill=fill,
        interp=interp,
        rng=rng,
    )
    return out


@register_kernel("random_affine", "out")
def random_affine_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    degrees: NotNegative = 0.0,
    translate: tuple[NotNegative, NotNegative] = (0.0, 0.0),
    scale_range: tuple[Positive, Positive] = (1.0, 1.0),
    shear_deg: NotNegative = 0.0,
    fill: Fill = 0,
    interp: WarpInterp = "bilinear",
    rng: np.random.Generator,
) -> None:
    """`random_affine` into `out`, uint8[h, w, 3]."""
    require_image("random_affine", image)
    reach_x, reach_y = translate[0] * image.shape[1], translate[1] * image.shape[0]
    affine_out(
        image,
        out,
        angle_deg=_uniform(rng, -degrees, degrees),
        tx=_uniform(rng, -reach_x, reach_x),
        ty=_uniform(rng, -reach_y, reach_y),
        scale=_uniform(rng, *scale_range),
        shear_deg=_uniform(rng, -shear_deg, shear_deg),
        fill=fill,
        interp=interp,
    )

CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
"""Top left, top right, bottom right, bottom left, as shares of (w, h)."""


def inverse_perspective(height: int, width: int, inwards: np.ndarray) -> np.ndarray:
    """Where the pixels come from when each corner of the image has moved towards the middle.

    Args:
        height, width: pixels; the corners are the outer ones of the corner pixels, at -0.5 and `width` - 0.5.
        inwards: float64[4, 2], x and y in pixels of the corners in the order of `CORNERS`.

    Returns:
        float64[3, 3], from output (x, y, 1) to input (x, y, 1) up to a factor.
    """
    corners = CORNERS * (width, height) - 0.5
    moved = corners + inwards * (1 - 2 * CORNERS)
    matrix: np.ndarray = opencv().getPerspectiveTransform(moved.astype(np.float32), corners.astype(np.float32))
    return matrix


@register_op("random_perspective", takes=RGB, infer=infer_rgb, random=True)
def random_perspective(
    image: np.ndarray,
    *,
    distortion: Probability = 0.5,
    prob: Probability = 0.5,
    fill: Fill = 0,
    rng: np.random.Generator,
) -> np.ndarray:
    """With probability `prob`, move each corner of the image inwards; pixels in between follow, bilinearly.

    Args:
        image: uint8[h, w, 3].
        distortion: a corner moves by up to distortion * w / 2 and distortion * h / 2 pixels, uniformly.
        prob: of doing it at all.
        fill: 0 to 255, what lies outside the image.
        rng: draws the coin, then x and y for the corners top left, top right, bottom right, bottom left.

    Returns:
        `image` itself, or uint8[h, w, 3], a new array. Distortion 0 gives the same pixels.

    Raises:
        OpError: another dtype or shape, or no pixels.
    """
    require_image("random_perspective", image)
    if rng.random() >= prob:
        return image
    out = np.empty(image.shape, np.uint8)
    _move_corners(image, out, distortion, fill, rng)
    return out


@register_kernel("random_perspective", "out")
def random_perspective_out(
    image: np.ndarray,
    out: np.ndarray,
    *,
    distortion: Probability = 0.5,
    prob: Probability = 0.5,
    fill: Fill = 0,
    rng: np.random.Generator,
) -> None:
    """`random_perspective` into `out`, uint8[h, w, 3]."""
    require_image("random_perspective", image)
    if rng.random() < prob:
        _move_corners(image, out, distortion, fill, rng)
    else:
        np.copyto(out, image)


def _move_corners(
    image: np.ndarray, out: np.ndarray, distortion: float, fill: int, rng: np.random.Generator
) -> None:
    height, width = image.shape[:2]
    inwards = rng.random((4, 2)) * (distortion * width / 2, distortion * height / 2)
    cv2 = opencv()
    matrix = inverse_perspective(height, width, inwards)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    stored(cv2.warpPerspective(image, matrix, (width, height), dst=out, flags=flags, **_outside(fill)), out)
