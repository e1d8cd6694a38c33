"""What all handles of one engine share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daf.quant.saved.decoded_cache import DecodedCache

if TYPE_CHECKING:
    from daf.quant.measure.gradient import Monitor
    from daf.quant.saved.ledger import Ledger


@dataclass(slots=True, eq=False)
class Context:
    """The ledger that counts their bytes, the cache of decoded values, and the monitor that may want exact contents."""

    ledger: Ledger
    monitor: Monitor
    decoded: DecodedCache = field(default_factory=DecodedCache)
