"""The gateway's knobs. Each can be set by an environment variable ``FIELDFARE_<NAME>``."""

from __future__ import annotations

import ipaddress
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fieldfare.storage.folder import DataFolder

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

ANY = "*"


def _listed(value: Any) -> Any:
    """A list as an environment variable gives it: parts with commas between them."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class GatewaySettings(BaseSettings):
    """What one gateway process is run with: each knob's unit, default, and what goes up and down."""

    model_config = SettingsConfigDict(env_prefix="FIELDFARE_", extra="ignore", frozen=True)

    data: Path = Field(
        Path("fieldfare-data"), description="The data directory: log, registry, matches, logs, run files."
    )
    host: str = Field("127.0.0.1", description="The address to listen on. 0.0.0.0 opens it to the network.")
    port: int = Field(7737, ge=0, le=65535, description="The TCP port; 0 takes a free one.")

    admin_key_file: Path | None = Field(
        None,
        description="A file with the first admin key, one line of 32 characters or more. With it every "
        "request needs an API key; without, whoever reaches the port may do everything.",
    )
    jwt_issuer: str | None = Field(
        None,
        min_length=1,
        description="Whose tokens (JWT) are taken beside API keys: what their claim iss says, to the letter.",
    )
    jwt_audience: str | None = Field(
        None, min_length=1, description="What is to be in the claim aud of a token for this service."
    )
    jwt_jwks: str | None = Field(
        None,
        min_length=1,
        description="The keys that tokens are signed with, as a JSON Web Key Set: a file, read again when it "
        "has changed, or an https URL.",
    )
    jwt_claim: str = Field(
        "scope",
        min_length=1,
        description="The claim with the rights: publish:SPACE, subscribe:SPACE, manage:SPACE, watch, admin, "
        "with spaces between them or as a list.",
    )
    jwt_leeway_s: float = Field(
        30.0,
        ge=0,
        le=600,
        description="Seconds that the issuer's clock and this machine's may be apart. Up: patience with "
        "wrong clocks, tokens last longer. Down: tokens end on time.",
    )
    jwt_refresh_s: float = Field(
        300.0,
        ge=5,
        description="Seconds between looks at the keys, where they are at a URL. Up: fewer requests, a key "
        "that was withdrawn counts for longer. Down: the opposite.",
    )
    insecure: bool = Field(
        False, description="Listen on other addresses than loopback although no key is asked for."
    )

    tls_cert: Path | None = Field(
        None, description="A file with the certificate (PEM, with its chain): HTTPS instead of HTTP."
    )
    tls_key: Path | None = Field(
        None, description="A file with the certificate's key, if that is not in the same file."
    )
    tls_client_ca: Path | None = Field(
        None,
        description="A file with certificates of authorities: only clients with a certificate of one of them "
        "are let in.",
    )

    allowed_hosts: Names = Field(
        (),
        description="Names, with commas between them, that requests may give as Host beside localhost, "
        "addresses and the machine's own name; * is any. A stranger can have a name of his lead to this "
        "service, and his web page then reads all.",
    )
    cors_origins: Names = Field(
        (),
        description="Origins, with commas between them, whose web pages may use the service (CORS), such as "
        "https://app.example.com; * is any page that the service's users visit.",
    )
    connections_max: int = Field(
        10_000,
        ge=1,
        description="Connections at a time; the process's limit of open files may allow fewer. Up: more "
        "streams, more memory. Down: the longest idle are closed sooner, then new ones are refused.",
    )
    bodies_max_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Bytes of all bodies that are being received or decoded before clients get 429; spaces "
        "that have less than their share are let in all the same. Up: more large requests at a time, more "
        "memory. Down: clients are told sooner.",
    )
    head_max_bytes: int = Field(
        64 * KIB,
        ge=KIB,
        description="Bytes of a request's line and headers. Up: longer attributes in binary mode, more "
        "memory for each connection. Down: refused sooner.",
    )
    headers_max: int = Field(
        200,
        ge=16,
        description="Headers of one request. Up: more attributes in binary mode. Down: refused sooner.",
    )
    head_timeout_s: float = Field(
        20.0,
        gt=0,
        description="Seconds in which a request's head must come, and the first of a connection begin. "
        "Up: patience with slow links. Down: connections that are only held are gone sooner.",
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Seconds in which a request's body must come after its head. Up: large bodies over slow "
        "links. Down: bodies that trickle hold memory for less time.",
    )
    send_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that a client may leave its answer or stream unread before it is cut off. "
        "Up: readers may pause longer. Down: what was sent to dead ones is free sooner.",
    )
    keep_alive_s: float = Field(
        75.0,
        gt=0,
        description="Seconds that a connection stays open without a request. Up: clients connect less often. "
        "Down: fewer idle connections; clients that keep theirs longer find them closed.",
    )

    event_max_bytes: int = Field(
        MIB,
        ge=KIB,
        description="Bytes of one event. Up: bigger events, more memory everywhere. Down: refused sooner.",
    )
    body_max_bytes: int = Field(
        8 * MIB,
        ge=KIB,
        description="Bytes of one request body. Up: bigger batches, more memory. Down: more requests.",
    )
    batch_max_events: int = Field(
        10_000,
        ge=1,
        le=10_000,
        description="Events of one publish request. Down: smaller records, shorter stalls for others.",
    )
    filter_max_bytes: int = Field(
        64 * KIB,
        ge=64,
        description="UTF-8 bytes of one filter; encrypted ones may have eight times as many. "
        "Up: longer filters, longer stalls while one is compiled.",
    )
    bulk_max_subscriptions: int = Field(
        10_000,
        ge=1,
        description="Subscriptions of one bulk request. Up: fewer requests, longer waits for appends.",
    )

    quota_events_per_s: float = Field(
        0,
        ge=0,
        description="Events that each space may publish in a second, on average; 0 is no bound. "
        "Down: one space's flood leaves more to the others, its publishers get 429.",
    )
    quota_bytes_per_s: float = Field(
        0,
        ge=0,
        description="The same for bytes of events, as the log keeps them.",
    )
    quota_changes_per_s: float = Field(
        0,
        ge=0,
        description="Subscriptions that each space may create, change or delete in a second, on average; 0 "
        "is no bound.",
    )
    quota_delivered_bytes_per_s: float = Field(
        0,
        ge=0,
        description="Bytes of messages that the readers of each space may be sent in a second, on average: "
        "what is more waits. 0 is no bound. Down: one space's readers wait, and leave more to the others.",
    )
    quota_subscriptions: int = Field(
        0,
        ge=0,
        description="Subscriptions that each space may have; 0 is no bound.",
    )
    quota_filter_cost: int = Field(
        0,
        ge=0,
        description="What the filters of each space may cost together, in predicates, as "
        "/v1/filters:explain says; 0 is no bound. Down: one space's filters take less of the matching.",
    )
    quota_stored_event_bytes: int = Field(
        0,
        ge=0,
        description="Bytes of events that each space may have in the log; with more nothing is published "
        "until retention has removed some. 0 is no bound.",
    )
    quota_stored_match_bytes: int = Field(
        0,
        ge=0,
        description="Bytes of matches that each space may have on disk; with more nothing is published, and "
        "no subscription begins in the past, until retention has removed some. 0 is no bound.",
    )
    quota_connections: int = Field(
        0,
        ge=0,
        description="Streams, WebSockets and pulls that each space may have open at a time; 0 is no bound.",
    )

    queue_max_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        description="Bytes of events waiting for the log's disk before publishers get 429. "
        "Up: longer bursts are taken, more memory. Down: publishers are told sooner.",
    )
    lag_max_events: int = Field(
        5_000_000,
        ge=1,
        description="Events not yet matched before publishers get 429. Up: longer bursts, later matches. "
        "Down: matches stay fresh, publishers wait more.",
    )
    disk_free_min_bytes: int = Field(
        512 * MIB,
        ge=0,
        description="Free disk below which publishers get 429. Up: safer for the machine's other users.",
    )
    retry_after_s: int = Field(
        1, ge=1, description="Seconds a refused publisher is asked to wait. Up: calmer, slower recovery."
    )

    ack_deadline_s: float = Field(
        30.0,
        gt=0,
        description="Seconds until an unacked message comes again, where the subscriber names none. "
        "Up: slow handlers see fewer repeats. Down: a dead handler's messages move on sooner.",
    )
    window_default: int = Field(
        1000,
        ge=1,
        description="Messages of a stream that may be unacked. Up: faster, more repeats after a cut.",
    )
    window_max: int = Field(
        20_000, ge=1, description="The largest window (and pull) that a subscriber may ask for."
    )
    dead_letters_max: int = Field(
        100_000,
        ge=1,
        description="Dead letters of a subscription; with more nothing of it is given up, but comes again"
        " after a minute. Up: more is kept for somebody to look at, in the registry.",
    )
    pasts_max: int = Field(
        100,
        ge=0,
        description="Subscriptions of a space that began in the past and are not matched up to now, at once."
        " Up: more may wait, and each waits longer. 0: none may begin in the past.",
    )
    wait_max_s: float = Field(60.0, gt=0, description="The longest wait of one pull, in seconds.")
    heartbeat_s: float = Field(
        10.0,
        gt=0,
        description="Seconds between comments on an idle stream. Down: cut connections are noticed sooner.",
    )
    poll_ms: float = Field(
        2.5,
        gt=0,
        description="Milliseconds between looks for new matches while a subscriber waits for them; up to 20 "
        "when none have come for longer; with a log in Kafka at least 10. Up: less CPU, later delivery. "
        "Down: the opposite.",
    )
    record_cache_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Memory for the newest records' bytes. Up: fewer reads of the log for live subscribers.",
    )

    webhook_requests_max: int = Field(
        256,
        ge=0,
        le=4096,
        description="Requests to push addresses under way at a time; one space has a quarter of them at "
        "most. 0: no subscription may have a push address. Up: more slow receivers beside each other, more "
        "memory.",
    )
    webhook_timeout_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="Seconds that a receiver may take to answer, where the subscription's ack_deadline_s "
        "is not less. Up: slow handlers see fewer repeats. Down: hung receivers hold less.",
    )
    webhook_allow: Names = Field(
        (),
        description="Networks, with commas between them, whose addresses subscriptions may name though "
        "they are not public, without TLS too, such as 10.2.0.0/16. Others that are not public are refused.",
    )
    webhook_handshake: bool = Field(
        True,
        description="Ask each address first, by CloudEvents' OPTIONS handshake, whether it wants messages. "
        "Off: receivers need not know it, and a subscriber can have any public address called.",
    )
    webhook_origin: str = Field(
        "fieldfare",
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?$",
        description="As whom the service asks receivers for permission: a name as of a host, sent as "
        "WebHook-Request-Origin.",
    )
    webhook_requests_per_min: int = Field(
        0,
        ge=0,
        le=999_999,
        description="Requests a minute for which each address is asked, and which it gets at most; 0 is no "
        "bound. What an address allows is kept to in any case.",
    )
    webhook_ca_file: Path | None = Field(
        None,
        description="A file with certificates of authorities that receivers' certificates may be of, "
        "besides the system's.",
    )

    retention_s: float = Field(
        7 * 86400.0,
        gt=0,
        description="Seconds of the service's running time that events and matches are kept. "
        "Up: longer absences, more disk.",
    )
    retention_bytes: int = Field(
        32 * GIB,
        ge=MIB,
        description="Bytes of the event log above which its oldest matched records go, whatever their age.",
    )
    delay_max_s: int = Field(
        30 * 86400,
        ge=0,
        le=3650 * 86400,
        description="Seconds for which events may wait for their time, at most.",
    )
    delayed_max_bytes: int = Field(
        4 * GIB,
        ge=0,
        description="Bytes of events that wait for their time, of all spaces together; 0: none are taken.",
    )
    maintenance_s: float = Field(
        10.0,
        gt=0,
        description="Seconds between rounds of retention, match log compaction and lazy saving of cursors.",
    )
    stats_s: float = Field(
        0.25,
        gt=0,
        description="Seconds between looks at the match log's end when nobody waits. Up: staler figures.",
    )
    predecessor_wait_s: float = Field(
        20.0,
        ge=0,
        description="Seconds a starting gateway waits for another one on its data directory to end. "
        "Up: patience with one that ends slowly after its supervisor was killed.",
    )
    pipeline_stale_s: float = Field(
        10.0,
        gt=0,
        description="Seconds without the pipeline's or the indexer's heartbeat, or without a record matched "
        "while some wait, after which /readyz says not ready. Up: fewer false alarms on a busy machine.",
    )
    pipeline_stall_s: float = Field(
        60.0,
        gt=0,
        description="Seconds without progress, though events wait, after which the pipeline is ended and "
        "started again, and any process without a sign of life. Up: more patience with slow batches. "
        "Down: one that hangs is noticed sooner.",
    )

    @cached_property
    def folder(self) -> DataFolder:
        """Where in the data directory everything lies."""
        return DataFolder.at(self.data)

    @property
    def callable_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of ``webhook_allow``."""
        return tuple(map(ipaddress.ip_network, self.webhook_allow))

    @field_validator("webhook_allow")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise ValueError(f"{network!r} is no network such as 10.2.0.0/16 or fd00::/8") from None
        return networks

    @model_validator(mode="after")
    def _is_open_to_itself_only(self) -> Self:
        asks = self.admin_key_file is not None or self.jwt_issuer is not None
        if not (is_loopback(self.host) or asks or self.insecure):
            raise ValueError(
                f"at {self.host} others than this machine reach the service, and may do everything: name a"
                " file with an admin key in FIELDFARE_ADMIN_KEY_FILE, an issuer of tokens, or say --insecure"
                " (FIELDFARE_INSECURE=1)"
            )
        return self

    @model_validator(mode="after")
    def _says_all_of_tokens(self) -> Self:
        given = (self.jwt_issuer, self.jwt_audience, self.jwt_jwks)
        if any(given) and not all(given):
            raise ValueError("--jwt-issuer, --jwt-audience and --jwt-jwks go together: one is missing")
        return self

    @field_validator("jwt_jwks")
    @classmethod
    def _is_trusted(cls, place: str | None) -> str | None:
        """Who is on the way to a URL without TLS could have the service believe any token."""
        parts = urlsplit(place or "")
        if parts.scheme in ("http", "https") and (parts.username or not parts.hostname):
            raise ValueError("that is no URL such as https://login.example.com/keys.json")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("keys are read from https, or from this machine")
        return place

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != ANY and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s,*]+", origin.lower()):
                raise ValueError(f"{origin!r} is no origin such as https://app.example.com, nor *")
        return tuple(origin.lower() for origin in origins)


class UnusableFile(ValueError):
    """What a setting names cannot be used; the text names it, and holds nothing of what is in it."""


def wrong_setting(error: ValidationError) -> str:
    """What is wrong with the first setting that is wrong, for a person."""
    wrong = error.errors()[0]
    message = wrong["msg"].removeprefix("Value error, ")
    return (
        f"FIELDFARE_{str(wrong['loc'][0]).upper()}={wrong['input']}: {message}" if wrong["loc"] else message
    )
