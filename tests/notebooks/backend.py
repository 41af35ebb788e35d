"""Backend of matplotlib for `tests.notebooks.kernel`: `plt.show()` shows figures in a notebook."""

import io
from collections.abc import Callable

from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "on_figure", "show"]


def _ignored(_png: bytes) -> None:
    """Nobody looks."""


on_figure: Callable[[bytes], None] = _ignored
"""Gets each figure as a PNG."""


def show(*_: object, **__: object) -> None:
    """Show all figures, and close them."""
    for number in pyplot.get_fignums():
        png = io.BytesIO()
        pyplot.figure(number).savefig(png, format="png", dpi=72, bbox_inches="tight")
        on_figure(png.getvalue())
    pyplot.close("all")
