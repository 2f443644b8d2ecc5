"""Messages and a database that agree (extra ``sql``): rows that become messages, effects that happen once."""

from aiorocket.sql.outbox import Outbox
from aiorocket.sql.processed import Processed

__all__ = ("Outbox", "Processed")
