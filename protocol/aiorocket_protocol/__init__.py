"""RocketMQ's remoting protocol and record layout: bytes to values and back, nothing else.

No event loop, socket, clock, random number or log: every function can be called from anywhere, and gives the same
answer to the same bytes. Every public name of the modules below can be imported from here.
"""
# ruff: noqa: F403 - each module names what it exports in __all__, and this package is their sum

from aiorocket_protocol.batch import *
from aiorocket_protocol.bodies import *
from aiorocket_protocol.codec import *
from aiorocket_protocol.codes import *
from aiorocket_protocol.command import *
from aiorocket_protocol.compression import *
from aiorocket_protocol.configuration import *
from aiorocket_protocol.errors import *
from aiorocket_protocol.frame import *
from aiorocket_protocol.headers import *
from aiorocket_protocol.hosts import *
from aiorocket_protocol.ids import *
from aiorocket_protocol.limits import *
from aiorocket_protocol.long_bodies import *
from aiorocket_protocol.names import *
from aiorocket_protocol.pop import *
from aiorocket_protocol.properties import *
from aiorocket_protocol.pull import *
from aiorocket_protocol.record_layout import *
from aiorocket_protocol.record_writer import *
from aiorocket_protocol.records import *
from aiorocket_protocol.registration import *
from aiorocket_protocol.routes import *
from aiorocket_protocol.spec import *
