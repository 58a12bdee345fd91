"""``fieldfare relay``: pass on what other sites send, with neither Spark nor Java."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldfare.cli.configuration import warn_of_unknown_variables
from fieldfare.cli.output import fail, need_packages
from fieldfare.cli.service import (
    SERVER_PACKAGES,
    Broker,
    ConfigFile,
    Data,
    Host,
    Insecure,
    LogFormatOption,
    PeerKeyFile,
    Peers,
    Port,
    TlsCert,
    TlsClientCa,
    TlsKey,
    find_missing,
    set_environment,
)
from fieldfare.runtimes.process.early_signals import early_signals
from fieldfare.runtimes.process.log_lines import LogFormat


@early_signals()
def relay(
    config: ConfigFile = None,
    data: Data = Path("fieldfare-data"),
    host: Host = "127.0.0.1",
    port: Port = 7737,
    log_format: LogFormatOption = LogFormat.TEXT,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    broker: Broker = None,
    peer: Peers = None,
    peer_key_file: PeerKeyFile = None,
    insecure: Insecure = False,
) -> None:
    """Run a relay until Ctrl-C: a broker between sites that only passes their events on.

    It has links, as `serve` has, but no spaces: nothing is published or subscribed to there.

    Example:
    ```
    fieldfare relay --data ./relay-data --broker hub --peer oslo=http://oslo:7737 --peer rome=http://rome:7737
    ```
    """
    missing = find_missing(SERVER_PACKAGES)
    if missing:
        need_packages("relay", "server", missing)
    set_environment(log_format, config)
    from pydantic import ValidationError

    from fieldfare.gateway.relay import run_relay
    from fieldfare.gateway.settings import GatewaySettings, wrong_setting

    warn_of_unknown_variables()
    given: dict[str, Any] = {"data": data, "host": host, "port": port, "broker": broker}
    given |= {"tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca}
    given |= {"peer_key_file": peer_key_file, "insecure": insecure or None}
    given |= {"peers": tuple(peer) if peer else None}
    try:
        settings = GatewaySettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        fail(wrong_setting(error))
    reason = run_relay(settings)
    if reason is not None:
        fail(reason)
