"""Print cheap Yahoo quotes as they are published, until Ctrl-C or until COUNT have arrived.

python examples/subscribe.py [COUNT]  # in one terminal, then
python examples/publish.py            # in another
"""

from __future__ import annotations

import sys
from itertools import islice

from fieldfare import Client

FILTER = "data.symbol = 'YHOO' AND data.price < 18.5"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None
    # The subscription has a name, so events that match while no subscriber runs are kept for the next run.
    with Client() as client, client.subscribe("cheap-yahoo", FILTER) as messages:
        print(f"following {FILTER}", flush=True)
        for message in islice(messages, count):
            print(message.position, message.event["data"], flush=True)
            message.ack()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
