"""Sizes that are checked before memory is allocated; bytes unless the name says otherwise. Java's defaults where it has
one."""

from __future__ import annotations

__all__ = (
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "INT64_MIN",
    "MAX_ACKS",
    "MAX_BODY",
    "MAX_CONTROL_BODY",
    "MAX_DECOMPRESSED",
    "MAX_EXT_FIELDS",
    "MAX_FRAME",
    "MAX_GROUP",
    "MAX_HEADER",
    "MAX_HEADER_FIELDS",
    "MAX_LENIENT",
    "MAX_NESTING",
    "MAX_PROPERTIES",
    "MAX_TOPIC",
)

#: Whole frame, the length word included (Java's com.rocketmq.remoting.frameMaxLength).
MAX_FRAME = 16 * 1024 * 1024
#: Header of one frame. The answer to a batch of 8,192 has as many ids, which are 56 characters where hosts are IPv6; a
#: property string of MAX_PROPERTIES takes six times as much in JSON at worst.
MAX_HEADER = 512 * 1024
#: Body of a request to a server that holds neither messages nor a broker's registration: it is read in one piece, and
#: 1 MiB of JSON takes some 25 ms.
MAX_CONTROL_BODY = 1024 * 1024
#: Values of such a body in JSON that is not standard: it is read in Python, at 2 to 3 ms for a thousand, and under
#: access control twice in a turn.
MAX_LENIENT = 4_096
#: Acknowledged pops in one batch (200151); Java's proxy sends at most one for each message of a pop.
MAX_ACKS = 1_024
#: Message body a broker accepts (maxMessageSize). Not applied to frames: a pull answer is larger.
MAX_BODY = 4 * 1024 * 1024
#: What a compressed body may unfold to. Far above MAX_BODY because the sender's limit is on the compressed form.
MAX_DECOMPRESSED = 64 * 1024 * 1024
#: Property string of one message: its length is a signed 16-bit number in the stored record.
MAX_PROPERTIES = 32767
#: Characters of a topic name; longer ones exist only as records of magic V2 written by others.
MAX_TOPIC = 127
#: Characters of a group name.
MAX_GROUP = 255
#: Entries of extFields in one header.
MAX_EXT_FIELDS = 1024
#: Positional fields in one msgpack header.
MAX_HEADER_FIELDS = 256
#: Objects and arrays inside one another in a body.
MAX_NESTING = 64

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
