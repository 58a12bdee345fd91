"""The gateway's settings. Each can be set by an environment variable ``FIELDFARE_<NAME>``."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from fieldfare.gateway.peers import BrokerSettings
from fieldfare.gateway.setting_values import (
    RATIOS,
    KeysPlace,
    Names,
    Networks,
    Origins,
    Ratios,
    amount_of,
    is_loopback,
)
from fieldfare.storage.folder import DataFolder

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
WINDOW_MAX = 1_000_000
"""Maximum of the settings for windows; a larger value is refused."""


def message_of(wrong: Mapping[str, Any]) -> str:
    """Return what is wrong with a setting, from one of a ValidationError's errors."""
    return str(wrong["msg"]).removeprefix("Value error, ")


class GatewaySettings(BaseSettings):
    """The settings of one gateway process: units, defaults, and the effects of higher and lower values."""

    model_config = SettingsConfigDict(
        env_prefix="FIELDFARE_", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    data: Path = Path("fieldfare-data")
    """The data directory: log, registry, matches, logs, run files."""
    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 opens it to the network."""
    port: int = Field(7737, ge=0, le=65535)
    """The TCP port; 0 takes a free one."""

    admin_key_file: Path | None = None
    """A file with the first admin key, one line of 32 characters or more. With it every request needs an API
    key; without, every program that reaches the port may do everything."""
    jwt_issuer: str | None = Field(None, min_length=1)
    """Issuer whose tokens (JWT) are accepted in addition to API keys: the exact value of the claim iss."""
    jwt_audience: str | None = Field(None, min_length=1)
    """The value that a token's claim aud must contain."""
    jwt_jwks: KeysPlace | None = Field(None, min_length=1)
    """The issuer's signing keys as a JSON Web Key Set: a file, or an https URL."""
    jwt_claim: str = Field("scope", min_length=1)
    """The claim that lists the rights: publish:SPACE, subscribe:SPACE, manage:SPACE, watch, admin, separated
    by spaces or as a JSON list."""
    jwt_leeway_s: float = Field(30.0, ge=0, le=600)
    """Maximum difference between the issuer's clock and this machine's, in seconds. Up: wrong clocks are
    tolerated, tokens last longer. Down: tokens expire on time."""
    jwt_refresh_s: float = Field(300.0, ge=5)
    """Interval of reloading the signing keys from a URL, in seconds. Up: fewer requests, a withdrawn key is
    accepted for longer. Down: the opposite."""
    insecure: bool = False
    """Allow listening on addresses other than loopback without API keys or tokens."""

    broker: str | None = Field(None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,127}$")
    """The name of this service among others that it is linked to; every one needs another name, which must
    never change. None: it has no links."""
    peers: Names = ()
    """The neighbours of this broker, as NAME=URL, separated by commas; a broker of several clusters writes
    CLUSTER/NAME=URL. Each of them must name this broker as a neighbour, too."""
    public_url: str | None = Field(None, pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", max_length=2_000)
    """The URL at which readers of subscriptions that move here reach this broker. None: that of --peer."""
    output_bytes_per_s: float = Field(125e6, ge=1, le=1e15)
    """The broker's output bandwidth, for balancing load."""
    balance: bool = False
    """Move subscriptions to other brokers that also do so, by itself, where this one is overloaded or has
    more load than they. It needs the routing ddbr."""
    balance_interval_s: float = Field(10.0, ge=0.1, le=600)
    """Seconds between two measurements of the load; the times of balancing are in proportion to it: after a
    move a broker waits for three of them. Up: fewer decisions, on longer means. Down: loads that change come
    into balance sooner."""
    balance_moves_per_min: int = Field(30, ge=1, le=1_000)
    """Maximum subscriptions that balancing by itself moves away from this broker in a minute. Up: balanced
    sooner. Down: wrong figures of another broker move less."""
    balance_overload: Ratios = RATIOS
    """The ratios that count as overload above 0.9: input, output, cpu, memory. Leave out cpu and memory where
    the machine has other work."""
    routing: Literal["ddbr", "fbr", "merc"] = "ddbr"
    """How events go between brokers: ddbr by destination, fbr by filter, which is matched again at each
    broker, merc by destination within clusters. All linked brokers have the same."""
    clusters: Names = ()
    """The clusters of this broker, separated by commas; for the routing merc only."""
    peer_bytes_per_s: float = Field(0, ge=0)
    """Maximum bytes per second that this broker sends over each of its links, on average, compressed; 0: no
    limit. Down: a link leaves more to others, entries wait in links.db."""
    peer_catch_up_bytes_per_s: float = Field(0, ge=0)
    """Maximum bytes per second of full batches over each of its links, of which there are many after an
    interruption; 0: no limit. Down: a link that is back takes less at once, and longer to catch up."""
    peer_filter_file: Path | None = None
    """A file with a neighbour's name and a filter a line: it is sent matching events only."""
    peer_key_file: Path | None = None
    """A file with the API key, one line, for requests to neighbours; it needs the right broker there."""
    peer_ca_file: Path | None = None
    """A file with certificates of further authorities, besides the system's, for neighbours' certificates."""

    tls_cert: Path | None = None
    """A file with the certificate (PEM, with its chain): HTTPS instead of HTTP."""
    tls_key: Path | None = None
    """A file with the certificate's private key, if it is not in the certificate's file."""
    tls_client_ca: Path | None = None
    """A file with certificates of authorities: clients must present a certificate of one of them."""

    allowed_hosts: Names = ()
    """Host names, separated by commas, that requests may use in addition to localhost, IP addresses and the
    machine's own name; * allows all. Otherwise a stranger's domain that resolves to this service would let
    the stranger's web page read everything."""
    cors_origins: Origins = ()
    """Origins, separated by commas, whose web pages may call the service (CORS), such as
    https://app.example.com; * allows every page that the service's users visit."""
    connections_max: int = Field(10_000, ge=1)
    """Maximum open connections; the process's limit of open files may allow fewer. Up: more streams, more
    memory. Down: connections without a complete request are closed sooner for new ones; new ones are refused
    when all others have a request."""
    trusted_proxies: Networks = ()
    """Networks, separated by commas, of proxies in front of the service, such as 127.0.0.1. When connections
    run out, an unfinished request of such a proxy counts for the last address in its X-Forwarded-For. Others'
    X-Forwarded-For is ignored."""
    bodies_max_bytes: int = Field(256 * MIB, ge=MIB)
    """Maximum bytes of all request bodies that are being received or decoded; beyond it clients get 429,
    except in spaces below their fair share. Up: more large requests at a time, more memory. Down: clients are
    refused sooner."""
    head_max_bytes: int = Field(64 * KIB, ge=KIB)
    """Maximum bytes of a request's line and headers. Up: longer attributes in binary mode, more memory for
    each connection. Down: such requests are refused sooner."""
    headers_max: int = Field(200, ge=16)
    """Maximum headers of a request. Up: more attributes in binary mode. Down: such requests are refused
    sooner."""
    head_timeout_s: float = Field(20.0, gt=0)
    """Maximum seconds until a request's headers are complete, and until a connection's first request begins.
    Up: slow links are tolerated. Down: idle connections are closed sooner."""
    body_timeout_s: float = Field(60.0, gt=0)
    """Maximum seconds until a request's body is complete, after its headers. Up: large bodies over slow
    links. Down: slow bodies hold memory for less time."""
    send_timeout_s: float = Field(120.0, gt=0)
    """Maximum seconds that a client may leave a response or stream unread; then its connection is closed. Up:
    readers may pause longer. Down: memory of dead readers is freed sooner."""
    keep_alive_s: float = Field(75.0, gt=0)
    """Seconds that an idle connection stays open. Up: clients connect less often. Down: fewer idle
    connections; clients that reuse them later find them closed."""

    event_max_bytes: int = Field(MIB, ge=KIB)
    """Maximum bytes of an event. Up: bigger events, more memory everywhere. Down: such events are refused
    sooner."""
    body_max_bytes: int = Field(8 * MIB, ge=KIB)
    """Maximum bytes of a request body. Up: bigger batches, more memory. Down: more requests."""
    batch_max_events: int = Field(10_000, ge=1, le=10_000)
    """Maximum events of a publish request. Down: smaller records, shorter stalls for others."""
    filter_max_bytes: int = Field(64 * KIB, ge=64)
    """Maximum UTF-8 bytes of a filter; an encrypted filter may have eight times as many. Up: longer filters,
    longer stalls while one is compiled."""
    bulk_max_subscriptions: int = Field(10_000, ge=1)
    """Maximum subscriptions of a bulk request. Up: fewer requests, longer waits for appends."""

    quota_events_per_s: float = Field(0, ge=0)
    """Maximum events that a space may publish per second, on average; 0: no limit. Down: a space's flood
    leaves more to the others, its publishers get 429."""
    quota_bytes_per_s: float = Field(0, ge=0)
    """Maximum bytes of events, as stored in the log, that a space may publish per second, on average; 0: no
    limit."""
    quota_matching_ms_per_s: float = Field(0, ge=0)
    """Maximum milliseconds of processor time per second, on average, for matching a space's events; 0: no
    limit. Down: a space's costly filters leave more to the others, its publishers get 429."""
    quota_changes_per_s: float = Field(0, ge=0)
    """Maximum subscriptions that a space may create, change or delete per second, on average; 0: no limit."""
    quota_delivered_bytes_per_s: float = Field(0, ge=0)
    """Maximum bytes of messages per second, on average, that are sent to a space's readers; further messages
    wait. 0: no limit. Down: a space's readers wait, and leave more to the others."""
    quota_subscriptions: int = Field(0, ge=0)
    """Maximum subscriptions of a space; 0: no limit."""
    quota_filter_cost: int = Field(0, ge=0)
    """Maximum total cost of a space's filters, in predicates as /v1/filters:explain counts them; 0: no limit.
    Down: a space's filters take less of the matching."""
    quota_stored_event_bytes: int = Field(0, ge=0)
    """Maximum bytes of a space's events in the log; beyond it publishing is refused until retention has
    removed some. 0: no limit."""
    quota_stored_match_bytes: int = Field(0, ge=0)
    """Maximum bytes of a space's matches on disk; beyond it publishing, and subscriptions that begin in the
    past, are refused until retention has removed some. 0: no limit."""
    quota_connections: int = Field(0, ge=0)
    """Maximum open streams, WebSockets and pulls of a space; 0: no limit."""

    queue_max_bytes: int = Field(64 * MIB, ge=MIB)
    """Maximum bytes of events that wait to be written to the log; beyond it publishers get 429. Up: longer
    bursts, more memory. Down: publishers are refused sooner."""
    lag_max_events: int = Field(5_000_000, ge=1)
    """Maximum events that wait to be matched; beyond it publishers get 429. Up: longer bursts, later matches.
    Down: matches stay fresh, publishers wait more."""
    disk_free_min_bytes: int = Field(512 * MIB, ge=0)
    """Minimum free disk space; below it publishers get 429. Up: safer for the machine's other users."""
    retry_after_s: int = Field(1, ge=1)
    """Seconds after which a refused publisher should retry (Retry-After). Up: calmer, slower recovery."""

    ack_deadline_s: float = Field(30.0, gt=0)
    """Seconds until an unacked message is redelivered, unless the subscriber names another time. Up: slow
    handlers see fewer repeats. Down: a dead handler's messages move on sooner."""
    window_default: int = Field(1000, ge=1, le=WINDOW_MAX)
    """Default maximum of unacked messages of a stream. Up: faster, more repeats after a broken connection."""
    window_max: int = Field(20_000, ge=1, le=WINDOW_MAX)
    """Maximum window of a stream, and maximum messages of a pull, that a subscriber may ask for; at most
    1,000,000."""
    dead_letters_max: int = Field(100_000, ge=1)
    """Maximum dead letters of a subscription; at the maximum, further messages are redelivered after a minute
    instead. Up: more is kept to look at, in the registry."""
    pasts_max: int = Field(100, ge=0)
    """Maximum subscriptions of a space that began in the past and whose replay is unfinished. Up: more may
    wait, and each waits longer. 0: subscriptions cannot begin in the past."""
    wait_max_s: float = Field(60.0, gt=0)
    """Maximum wait of a pull, in seconds."""
    heartbeat_s: float = Field(10.0, gt=0)
    """Interval of comments on an idle stream, in seconds. Down: broken connections are noticed sooner."""
    poll_ms: float = Field(2.5, gt=0)
    """Interval of looking for new matches while a subscriber waits, in milliseconds; it grows to 20 when none
    come, and is at least 10 for a log in Kafka. Up: less CPU, later delivery. Down: the opposite."""
    record_cache_bytes: int = Field(64 * MIB, ge=0)
    """Maximum bytes of the newest records kept in memory. Up: fewer reads of the log for live subscribers."""

    webhook_requests_max: int = Field(256, ge=0, le=4096)
    """Maximum requests to push addresses under way; a space has at most a quarter of them. 0: push addresses
    are refused. Up: more slow receivers at a time, more memory."""
    webhook_timeout_s: float = Field(30.0, gt=0, le=600)
    """Maximum seconds for a receiver's answer; a shorter ack_deadline_s of the subscription applies instead.
    Up: slow handlers see fewer repeats. Down: hung receivers hold less."""
    webhook_allow: Networks = ()
    """Networks, separated by commas, whose addresses may be push addresses although they are not public, also
    without TLS, such as 10.2.0.0/16. Other addresses that are not public are refused."""
    webhook_handshake: bool = True
    """Ask each receiver for permission first, by CloudEvents' OPTIONS handshake. Off: receivers need not
    support it, and a subscriber can have any public address called."""
    webhook_origin: str = Field("fieldfare", pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?$")
    """The name in which the service asks receivers for permission, sent as WebHook-Request-Origin; it has the
    form of a host name."""
    webhook_requests_per_min: int = Field(0, ge=0, le=999_999)
    """Requests per minute for which a receiver is asked, and maximum requests per minute that it gets; 0: no
    limit. The rate that a receiver allows is kept in any case."""
    webhook_ca_file: Path | None = None
    """A file with certificates of further authorities, besides the system's, for receivers' certificates."""

    retention_s: float = Field(7 * 86400.0, gt=0, le=36500 * 86400)
    """Seconds of running time for which events are kept. Up: longer absences, more disk."""
    retention_bytes: int = Field(32 * GIB, ge=MIB)
    """Maximum bytes of the event log; beyond it the oldest matched records are removed, whatever their
    age."""
    delay_max_s: int = Field(30 * 86400, ge=0, le=3650 * 86400)
    """Maximum delay of an event, in seconds."""
    delayed_max_bytes: int = Field(4 * GIB, ge=0)
    """Maximum bytes of delayed events, of all spaces together; 0: delayed events are refused."""
    maintenance_s: float = Field(10.0, gt=0)
    """Interval of retention, compaction of the match log, and saving of cursors that are not urgent, in
    seconds."""
    stats_s: float = Field(0.25, gt=0)
    """Seconds between looks at the match log's end while no subscriber waits. Up: staler figures."""
    predecessor_wait_s: float = Field(20.0, ge=0)
    """Maximum seconds that a starting gateway waits until another one on its data directory has ended. Up: a
    gateway that ends slowly after its supervisor was killed is tolerated."""
    pipeline_stale_s: float = Field(10.0, gt=0)
    """Seconds without a heartbeat of the pipeline or the indexer, or without a matched record while some
    wait, after which /readyz answers not ready. Up: fewer false alarms on a busy machine."""
    pipeline_stall_s: float = Field(60.0, gt=0)
    """Seconds without progress while events wait after which the pipeline is restarted, and seconds without a
    heartbeat after which any process is. Up: slow batches are tolerated. Down: a hung process is noticed
    sooner."""

    @cached_property
    def folder(self) -> DataFolder:
        """The layout of the data directory."""
        return DataFolder.at(self.data)

    @property
    def callable_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of ``webhook_allow``."""
        return tuple(map(ipaddress.ip_network, self.webhook_allow))

    @field_validator("*", mode="wrap")
    @classmethod
    def _has_a_unit(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Parse a size or a time with its unit; an error shows the value as it was written."""
        try:
            return validate(amount_of(str(info.field_name), value))
        except ValidationError as error:
            raise ValueError("; ".join(map(message_of, error.errors()))) from None

    @property
    def broker_settings(self) -> BrokerSettings:
        """The settings that make this service a broker."""
        return BrokerSettings(self.broker, self.peers, self.routing, self.clusters)

    @model_validator(mode="after")
    def _can_be_a_broker(self) -> Self:
        self.broker_settings.check(self.body_max_bytes, self.event_max_bytes, balances=self.balance)
        return self

    @model_validator(mode="after")
    def _is_open_to_itself_only(self) -> Self:
        asks = self.admin_key_file is not None or self.jwt_issuer is not None
        if not (is_loopback(self.host) or asks or self.insecure):
            raise ValueError(
                f"listening on {self.host} without keys would let everyone on the network do everything: set"
                " FIELDFARE_ADMIN_KEY_FILE to the path of a file that contains an admin key, or name a token"
                " issuer with --jwt-issuer, or allow this with --insecure (or FIELDFARE_INSECURE=1)"
            )
        return self

    @model_validator(mode="after")
    def _requires_all_token_settings(self) -> Self:
        given = (self.jwt_issuer, self.jwt_audience, self.jwt_jwks)
        if any(given) and not all(given):
            raise ValueError(
                "--jwt-issuer, --jwt-audience and --jwt-jwks must be given together: one is missing"
            )
        return self


SETTING_VARIABLES = frozenset(f"FIELDFARE_{name.upper()}" for name in GatewaySettings.model_fields)


class UnusableFile(ValueError):
    """A file that a setting names cannot be used; the message has its name but none of its contents."""


def wrong_setting(error: ValidationError) -> str:
    """Return a line of text for each invalid setting, with its value and what is wrong."""
    lines = []
    for wrong in error.errors():
        message = message_of(wrong)
        name = f"FIELDFARE_{str(wrong['loc'][0]).upper()}={wrong['input']}: " if wrong["loc"] else ""
        lines.append(f"{name}{message}")
    return "\n".join(lines)
