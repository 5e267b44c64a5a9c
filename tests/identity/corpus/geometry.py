"""Points, boxes and transforms of images. Points are rows (x, y), boxes (left, top, right, bottom)."""

from functools import partial, reduce

import numpy as np

EPSILON = 1e-9
MIRRORED_JOINTS = [(0, 1), (2, 3)]  # left and right eye, left and right hand
ANCHORS = {"center": (0.5, 0.5), "corner": (0.0, 0.0)}


def translation(dx, dy):
    matrix = np.eye(3)
    matrix[:2, 2] = dx, dy
    return matrix


def scaling(factor):
    return np.diag([factor, factor, 1.0])


def rotation(degrees):
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def about(matrix, center):
    """The same transform with `center` as its fixed point."""
    x, y = center
    return compose(translation(-x, -y), matrix, translation(x, y))


def compose(*matrices):
    """One matrix that applies `matrices` from left to right."""
    return reduce(lambda first, second: second @ first, matrices)


def apply(matrix, points):
    points = np.asarray(points, dtype=float)
    homogeneous = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    return homogeneous[:, :2] / (homogeneous[:, 2:] + EPSILON)


def rotate_points(points, degrees=30.0, anchor="center", size=(8, 8)):
    horizontal, vertical = ANCHORS[anchor]
    center = horizontal * (size[1] - 1), vertical * (size[0] - 1)
    return apply(about(rotation(degrees), center), points)


def fit_affine(source, target):
    """Least-squares affine transform from `source` to `target` points."""
    design = np.column_stack([source, np.ones(len(source))])
    solution, *_ = np.linalg.lstsq(design, target, rcond=None)
    matrix = np.eye(3)
    matrix[:2] = solution.T
    return np.round(matrix, 6)


def area(boxes):
    sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None)
    return sides[:, 0] * sides[:, 1]


def clip_boxes(boxes, width, height, smallest=1.0):
    """Cut boxes at the border of the image; drop those with less than `smallest` pixels left."""
    clipped = np.clip(boxes, 0, [width, height, width, height])
    return clipped[area(clipped) >= smallest]


def iou(first, second):
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    overlap = np.prod(np.clip(high - low, 0, None), axis=-1)
    union = area(first)[:, None] + area(second)[None] - overlap
    return overlap / np.maximum(union, EPSILON)


def suppress(boxes, scores, threshold=0.5, most=3):
    """Indices of boxes after non-maximum suppression, best score first."""
    order = list(np.argsort(-scores, kind="stable"))
    overlaps = iou(boxes, boxes)
    kept = []
    while order and len(kept) < most:
        best = order.pop(0)
        kept.append(best)
        order = [other for other in order if overlaps[best, other] <= threshold]
    return np.array(kept)


def flip_joints(joints, width):
    """Mirror joints at the vertical axis; left and right exchange their places."""
    flipped = joints.copy()
    flipped[:, 0] = width - 1 - flipped[:, 0]
    for left, right in MIRRORED_JOINTS:
        flipped[[left, right]] = flipped[[right, left]]
    return flipped


def bilinear(image, rows, columns, fill=0.0):
    """Values of a grey image at fractional places; `fill` outside."""
    height, width = image.shape
    inside = (rows >= 0) & (rows <= height - 1) & (columns >= 0) & (columns <= width - 1)
    rows, columns = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, along = rows - top, columns - left
    upper = image[top, left] * (1 - along) + image[top, right] * along
    lower = image[bottom, left] * (1 - along) + image[bottom, right] * along
    return np.where(inside, upper * (1 - down) + lower * down, fill)


def warp(image, matrix, fill=0.0):
    """Move the pixels of a grey image by `matrix`."""
    height, width = image.shape
    rows, columns = np.mgrid[:height, :width]
    places = apply(np.linalg.inv(matrix), np.column_stack([columns.ravel(), rows.ravel()]))
    return bilinear(image, places[:, 1], places[:, 0], fill).reshape(height, width)


def entries():
    return {
        "rotate_points": rotate_points,
        "rotate_about_corner": partial(rotate_points, anchor="corner", degrees=-45.0),
        "fit_affine": fit_affine,
        "clip_boxes": partial(clip_boxes, width=9, height=7),
        "suppress": suppress,
        "flip_joints": partial(flip_joints, width=12),
        "warp": partial(warp, matrix=about(rotation(20.0), (3.5, 3.5)), fill=-1.0),
        "zoom": partial(warp, matrix=compose(scaling(1.5), translation(-1.0, 0.5))),
    }


def examples():
    points = np.array([[0.0, 0.0], [3.0, 1.0], [5.0, 6.0], [2.0, 7.0]])
    boxes = np.array([[0, 0, 4, 4], [1, 1, 5, 5], [6, 2, 12, 9], [6, 3, 11, 9], [8, 6, 9.5, 7.5]], dtype=float)
    image = np.arange(64.0).reshape(8, 8) % 11
    return {
        "rotate_points": (points,),
        "rotate_about_corner": (points,),
        "fit_affine": (points, points[::-1] * 2 + 1),
        "clip_boxes": (boxes,),
        "suppress": (boxes, np.array([0.4, 0.9, 0.8, 0.85, 0.1])),
        "flip_joints": (points,),
        "warp": (image,),
        "zoom": (image,),
    }
