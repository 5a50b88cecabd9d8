"""Boxes of one image: what moves with its pixels, the targets of anchors, suppression of duplicates.

A box is one row of float32: `"xyxy"` are corners (left, top, right, bottom), `"xywh"` the centre, width and height, all as
fractions of the image's width and height, up to `SLACK` outside of it. A fifth column holds a label or a score.
"""
