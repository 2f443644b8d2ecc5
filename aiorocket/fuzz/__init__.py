"""Fuzz a running RocketMQ server: ours, Apache's, one's own. ``aiorocket fuzz`` on the command line."""

from aiorocket.fuzz.compared import Compared
from aiorocket.fuzz.differences import Rule, differences, said
from aiorocket.fuzz.differential import compare
from aiorocket.fuzz.findings import Finding, Sample
from aiorocket.fuzz.run import Fuzzing, Report, fuzz, role_of
from aiorocket.fuzz.shrinking import replay, shrink

__all__ = (
    "Compared",
    "Finding",
    "Fuzzing",
    "Report",
    "Rule",
    "Sample",
    "compare",
    "differences",
    "fuzz",
    "replay",
    "role_of",
    "said",
    "shrink",
)
