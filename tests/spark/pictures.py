"""Whether a picture is one that a person would frame, as far as its texts go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiorocket.spark.steps.functions.plot_style import save


def framed(figure: Any, path: Path) -> Path:
    """Saves it, and looks whether each text is whole and clear of the others; of two that are turned it cannot say."""
    from matplotlib.text import Text  # here: every worker of a run imports this module, and one draws

    save(figure, path)
    beyond = {
        label
        for panel in figure.axes
        for axis in (panel.xaxis, panel.yaxis)
        for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        if not min(axis.get_view_interval()) <= place <= max(axis.get_view_interval())
    }
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text() and each not in beyond]
    boxes = [(each.get_text(), each.get_rotation() % 90, each.get_window_extent()) for each in texts]
    width, height = figure.canvas.get_width_height(physical=True)
    for place, (text, angle, box) in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, f"{text!r} is cut in {path.name}"
        for other, turned, there in boxes[:place]:
            assert (angle and turned) or not box.overlaps(there), f"{text!r} is on {other!r} in {path.name}"
    return path
