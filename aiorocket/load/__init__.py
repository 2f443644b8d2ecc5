"""Load for any RocketMQ, measured so that the figures mean something. ``aiorocket bench`` on the command line."""

from aiorocket.load.compare import Difference, compare
from aiorocket.load.report import html
from aiorocket.load.run import measure
from aiorocket.load.scenario import Scenario
from aiorocket.load.verdict import Verdict, verdict

__all__ = ("Difference", "Scenario", "Verdict", "compare", "html", "measure", "verdict")
