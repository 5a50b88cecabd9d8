"""The methods of a query that look at its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .text import SIZE

if TYPE_CHECKING:
    from ..query import Query
    from .describe import Description
    from .preview import Preview


class LookMethods:
    """What `Query` has besides; the work is done in this package's own modules."""

    def preview(self: Query, n: int = 16, *, size: int = SIZE) -> Preview:  # type: ignore[misc]
        """Run the query for its first rows and show them: contact sheets of images and sounds, a table of text and numbers, and for each
        column its types, shapes, range and nulls.

        Encoded images, sounds and .npy arrays are decoded, wherever bytes hold one; files are read where all values of a column are
        names of images or sounds. What cannot be decoded is shown as a red cross and listed in `failures`.

        Args:
            n: rows, 1 to 1,000.
            size: pixels of the longer side of a picture, 8 to 1,024.

        Returns:
            shown in notebooks; `save("x.html")` and `save("x.png")` write it to any URI.

        Raises:
            TypeError, ValueError: arguments out of range. And whatever the query raises.
        """
        from .rows import preview

        return preview(self, n, size)

    def describe(self: Query) -> Description:  # type: ignore[misc]
        """Run the query and give figures for each column, in one pass and bounded memory.

        Returns:
            by column: rows, nulls, distinct values (up to 10,000), least, greatest, mean, standard deviation, quartiles; of text and lists
            their lengths, of tensors their elements, of bytes their sizes; of encoded images, and of files that a scan lists, width, height, aspect and format.
            Quantiles are exact up to 65,536 values, behind that those of as many drawn at random, the same ones each time.
            `to_polars()` has them as a frame; notebooks show histograms.

        Raises:
            whatever the query raises.
        """
        from .describe import describe

        return describe(self)

    def _repr_html_(self: Query) -> str:  # type: ignore[misc]
        from .rows import glance

        return glance(self)._repr_html_()
