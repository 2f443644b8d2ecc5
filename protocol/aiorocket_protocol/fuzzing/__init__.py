"""A kit for fuzz tests of whatever speaks the protocol: requests, bodies, records and streams that are drawn, golden
vectors, seeds, targets for a fuzzing engine. (For hypothesis: ``aiorocket_protocol.fuzzing.strategies``.)

Nothing here draws a number by itself: a ``Draw`` is given, ``random.Random(seed)`` or one of hypothesis.
"""
# ruff: noqa: F403 - as in the package above

from aiorocket_protocol.fuzzing.chance import *
from aiorocket_protocol.fuzzing.draws import *
from aiorocket_protocol.fuzzing.seeds import *
from aiorocket_protocol.fuzzing.targets import *
from aiorocket_protocol.fuzzing.words import *
