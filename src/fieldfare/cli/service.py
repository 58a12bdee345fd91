"""``fieldfare serve``: run the service on this machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, Any

import typer

from fieldfare.cli.amounts import size_option, time_option
from fieldfare.cli.configuration import (
    CONFIG_VARIABLE,
    configuration_path,
    load_configuration,
    warn_of_unknown_variables,
)
from fieldfare.cli.output import EXIT_FAILED, fail, need_packages, report_warning
from fieldfare.runtimes.process.early_signals import early_signals
from fieldfare.runtimes.process.log_lines import FORMAT_VARIABLE, LogFormat, process_line

SERVER_PACKAGES = ("uvicorn", "starlette", "sqlalchemy", "pydantic_settings", "prometheus_client")
TOKEN_PACKAGES = ("jwt", "cryptography")
SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow", "numba")

CLIENT_SECRETS = ("FIELDFARE_SPACE_PASSPHRASE", "FIELDFARE_API_KEY")
"""Environment variables for clients, which the service's processes do not inherit."""


def _configure(named: Path | None) -> Path | None:
    """Apply a configuration file before the other options are read, which take precedence."""
    path = configuration_path(named)
    if path is None:
        return None
    missing = find_missing(SERVER_PACKAGES)
    if missing:
        need_packages("serve", "server", missing)
    load_configuration(path).apply(os.environ)
    return path


def _setting(option: str, metavar: str | None, help: str, **more: Any) -> Any:
    """Return an option that is also read from the environment variable of its name."""
    variable = f"FIELDFARE_{option.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(option, envvar=variable, metavar=metavar, help=help, **more)


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        callback=_configure,
        is_eager=True,
        help="A TOML file with settings. Default: fieldfare.toml in the current directory, if it exists."
        " Options and environment variables take precedence over it.",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar=FORMAT_VARIABLE,
        metavar="FORMAT",
        help="Format of log and console lines: text, or json (one object per line).",
    ),
]
LogUrl = Annotated[
    str | None,
    _setting(
        "--log",
        "URL",
        "Keep events and matches in Kafka: kafka://HOST:PORT/TOPIC?partitions=N. A data directory's log"
        " cannot be changed; later starts need not name it.",
    ),
]
Master = Annotated[
    str | None,
    _setting(
        "--master",
        "URL",
        "Match on a Spark cluster: spark://HOST:PORT, yarn, or k8s://https://HOST:PORT. Default: on this "
        "machine.",
    ),
]
IndexStoreUrl = Annotated[
    str | None,
    _setting(
        "--index-store",
        "URL",
        "Where the cluster's machines read the index: file:///PATH (shared by all), s3://BUCKET/PATH or"
        " hdfs://HOST:PORT/PATH. Later starts need not name it.",
    ),
]
SparkProperties = Annotated[
    Path | None,
    _setting(
        "--spark-properties",
        "FILE",
        "Spark settings, as in spark-defaults.conf; they override the service's.",
    ),
]
TlsCert = Annotated[str | None, _setting("--tls-cert", "FILE", "Certificate (PEM); listen with TLS.")]
TlsKey = Annotated[str | None, _setting("--tls-key", "FILE", "The certificate's private key.")]
TlsClientCa = Annotated[
    str | None,
    _setting(
        "--tls-client-ca", "FILE", "Require client certificates that these authorities (PEM) have signed."
    ),
]
JwtIssuer = Annotated[str | None, _setting("--jwt-issuer", "URL", "Accept tokens (JWT) of this issuer.")]
JwtAudience = Annotated[str | None, _setting("--jwt-audience", "NAME", "The audience that tokens must have.")]
JwtJwks = Annotated[str | None, _setting("--jwt-jwks", "FILE|URL", "The keys (JWKS) to verify tokens with.")]
Broker = Annotated[
    str | None, _setting("--broker", "NAME", "Join other sites as the broker of this name; see --peer.")
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME=URL",
        help="A neighbour of this broker, which must name this one, too; may be given several times. A broker"
        " of several clusters writes CLUSTER/NAME=URL.",
    ),
]
RoutingOption = Annotated[
    str | None,
    _setting(
        "--routing",
        "PROTOCOL",
        "How events go between brokers: ddbr (default), fbr or merc; the same for all brokers.",
    ),
]
ClustersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="A cluster of this broker, for --routing merc; an edge broker names several, one per option.",
    ),
]
PeerKeyFile = Annotated[
    str | None,
    _setting(
        "--peer-key-file", "FILE", "The API key for requests to neighbours; it needs the right broker there."
    ),
]
BalanceOption = Annotated[
    bool,
    _setting(
        "--balance",
        None,
        "Balance load with the other brokers that have this option: subscriptions move by themselves.",
    ),
]
PartitioningOption = Annotated[
    str,
    _setting(
        "--partitioning",
        "KIND",
        "How to partition spaces into slices for several matchers: auto, hash, attribute_space,"
        " single_attribute or replicated.",
    ),
]
MatchersOption = Annotated[
    int,
    _setting(
        "--matchers",
        "N",
        "Number of matchers to partition for. With 1, each task matches all filters of a space.",
        min=1,
        max=1000,
    ),
]
SlicesOption = Annotated[
    list[str] | None,
    _setting("--slices", "SPACE=KIND:N", "How to partition one space; may be given several times."),
]
MatcherMemory = Annotated[
    int | None,
    _setting(
        "--matcher-memory",
        "SIZE",
        "With auto, partition spaces that need more memory than this (8GiB). Default: half of this"
        " machine's memory.",
        parser=size_option(min=1),
    ),
]
ForwardingOption = Annotated[
    str,
    _setting(
        "--forwarding",
        "POLICY",
        "How to choose among several possible matchers for an event: adaptive, response_time,"
        " subscription_count, random or balanced.",
    ),
]
ElasticOption = Annotated[
    str | None,
    _setting(
        "--elastic",
        "MIN..MAX",
        "Scale the executors of a standalone cluster with the load; needs --master and several --matchers."
        " `fieldfare scale` shows the decisions.",
    ),
]
ElasticSchedule = Annotated[
    list[str] | None,
    _setting(
        "--elastic-schedule",
        "HH:MM-HH:MM=MIN..MAX",
        "Other bounds for this part of each day; may be given several times.",
    ),
]
ElasticDryRun = Annotated[
    bool, _setting("--elastic-dry-run", None, "Make and report scaling decisions, but do not carry them out.")
]
ElasticCalm = Annotated[
    float,
    _setting(
        "--elastic-calm",
        "TIME",
        "Minimum time between adding executors and releasing one; seconds, or with a unit, such as 10min.",
        parser=time_option(),
    ),
]


def _directory(text: str) -> Path:
    """Return the path; an empty text, as of a variable that is not set, would be the current directory."""
    if not text:
        raise typer.BadParameter("it is empty: name a directory")
    return Path(text)


Data = Annotated[Path, _setting("--data", "DIR", "The data directory.", parser=_directory)]
Host = Annotated[str, _setting("--host", None, "The address to listen on.")]
Port = Annotated[
    int, _setting("--port", None, "The port to listen on; 0 chooses a free one.", min=0, max=65535)
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen on a public address without API keys: everyone may do everything."
    ),
]


@early_signals()
def serve(
    config: ConfigFile = None,
    data: Data = Path("fieldfare-data"),
    host: Host = "127.0.0.1",
    port: Port = 7737,
    log: LogUrl = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    master: Master = None,
    index_store: IndexStoreUrl = None,
    spark_properties: SparkProperties = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    jwt_issuer: JwtIssuer = None,
    jwt_audience: JwtAudience = None,
    jwt_jwks: JwtJwks = None,
    broker: Broker = None,
    peer: Peers = None,
    peer_key_file: PeerKeyFile = None,
    routing: RoutingOption = None,
    cluster: ClustersOption = None,
    balance: BalanceOption = False,
    partitioning: PartitioningOption = "auto",
    matchers: MatchersOption = 1,
    slices: SlicesOption = None,
    matcher_memory: MatcherMemory = None,
    forwarding: ForwardingOption = "adaptive",
    elastic: ElasticOption = None,
    elastic_schedule: ElasticSchedule = None,
    elastic_dry_run: ElasticDryRun = False,
    elastic_calm: ElasticCalm = 600.0,
    insecure: Insecure = False,
) -> None:
    """Run the service: the HTTP gateway and the Spark pipeline, until Ctrl-C.

    All data is in one directory. It needs the extra server (pip install 'fieldfare[server]') and Java 17+.

    Example:
    ```
    fieldfare serve --data ./fieldfare-data --port 7737
    ```
    """
    _need_server_packages(has_tokens=jwt_issuer is not None)
    set_environment(log_format, config)
    use_folder(data)
    from fieldfare.runtimes.service import serve as runtime

    given: dict[str, Any] = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca}
    given |= {"jwt_issuer": jwt_issuer, "jwt_audience": jwt_audience, "jwt_jwks": jwt_jwks}
    given |= {"insecure": insecure or None, "balance": balance or None}
    several = matchers > 1 or bool(slices)
    given |= broker_settings(broker, peer, peer_key_file, routing, cluster, has_several=several)
    stall_s = check_settings({"data": data, "host": host, **(given := _set_values(given))})
    arguments = slice_arguments(partitioning, matchers, slices or [], matcher_memory, forwarding)
    arguments["pipeline"] += check_spark(master, spark_properties) + elastic_arguments(
        elastic, elastic_schedule or [], elastic_dry_run, elastic_calm, master, has_several=several
    )
    code = runtime.serve(
        data,
        host,
        port,
        log=log,
        index_store=index_store,
        is_tls=tls_cert is not None,
        gateway_environment={f"FIELDFARE_{name.upper()}": str(value) for name, value in given.items()},
        commands={name: (*command, *arguments.get(name, ())) for name, command in runtime.COMMANDS.items()},
        stall_s=stall_s,
        say=_print_plainly,
    )
    raise typer.Exit(EXIT_FAILED if code else 0)


def _need_server_packages(*, has_tokens: bool) -> None:
    missing = find_missing((*SERVER_PACKAGES, *SPARK_PACKAGES, *(TOKEN_PACKAGES if has_tokens else ())))
    if missing:
        need_packages("serve", "server", missing)


def _set_values(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def broker_settings(
    broker: str | None,
    peers: list[str] | None,
    key_file: str | None,
    routing: str | None,
    clusters: list[str] | None,
    *,
    has_several: bool,
) -> dict[str, str | None]:
    """Return the gateway's settings for links to other sites; exit with an error for several matchers."""
    if broker is not None and has_several:
        fail("a broker matches with one matcher: leave out --matchers and --slices, or --broker")
    names = {"peers": peers, "clusters": clusters}
    lists = {name: ",".join(values) if values else None for name, values in names.items()}
    return {"broker": broker, "peer_key_file": key_file, "routing": routing, **lists}


def set_environment(log_format: LogFormat, config: Path | None) -> None:
    """Set what the service's processes inherit: the format of their logs, and no secrets of clients."""
    os.environ[FORMAT_VARIABLE] = log_format
    for name in CLIENT_SECRETS:
        os.environ.pop(name, None)
    if config is not None:
        _print_plainly(f"settings from {config.absolute()}")


def _print_plainly(line: str) -> None:
    """Write a line to standard error without rich, which exits the program on a closed pipe."""
    print(process_line("", line), file=sys.stderr, flush=True)


def use_folder(data: Path) -> None:
    """Make new files private, and choose the cache of compiled kernels before any kernel is loaded.

    The cache is in the data directory if there is no other place for it.
    """
    from fieldfare.runtimes.process.kernels import choose_kernel_cache
    from fieldfare.storage.folder import DataFolder
    from fieldfare.storage.private import keep_private

    keep_private()
    choose_kernel_cache(DataFolder(data.absolute()).kernels)


def check_spark(master: str | None, properties: Path | None) -> list[str]:
    """Return the pipeline's options for Spark; exit with an error if Spark could not start with them."""
    from fieldfare.runtimes.spark.java import check_java
    from fieldfare.runtimes.spark.master import check_master, read_properties

    options: list[str] = []
    try:
        check_java()
        if master is not None:
            check_master(master)
            options += ["--master", master]
        if properties is not None:
            read_properties(properties)
            options += ["--spark-properties", str(properties.absolute())]
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        fail(str(error))
    return options


def slice_arguments(
    partitioning: str, matchers: int, slices: list[str], memory_bytes: int | None, forwarding: str
) -> dict[str, list[str]]:
    """Return the options of indexer and pipeline for slices; exit with an error if one is not valid."""
    # These modules take 50 MB, which a supervisor of a service with one matcher need not hold.
    if (partitioning, matchers, slices, memory_bytes, forwarding) != ("auto", 1, [], None, "adaptive"):
        from fieldfare.forwarding import POLICIES
        from fieldfare.planning.cuts import CutSettings

        try:
            CutSettings.parsed(partitioning, matchers, slices, memory_bytes or 0)
        except ValueError as error:
            fail(str(error))
        if forwarding not in POLICIES:
            fail(f"{forwarding!r} is not a forwarding policy; policies are {', '.join(POLICIES)}")
    indexer = ["--partitioning", partitioning, "--matchers", str(matchers)]
    indexer += [f"--slices={each}" for each in slices]
    if memory_bytes is not None:
        indexer += ["--matcher-memory", str(memory_bytes)]
    return {"indexer": indexer, "pipeline": ["--forwarding", forwarding]}


def elastic_arguments(
    bounds: str | None,
    schedule: list[str],
    dry_run: bool,
    calm_s: float,
    master: str | None,
    *,
    has_several: bool,
) -> list[str]:
    """Return the pipeline's options for elastic scaling; exit with an error if one is not valid."""
    from fieldfare.elasticity.bounds import HostSchedule

    if bounds is None:
        if schedule or dry_run:
            fail("--elastic-schedule and --elastic-dry-run need --elastic MIN..MAX")
        return []
    try:
        HostSchedule.parsed(bounds, schedule)
    except ValueError as error:
        fail(str(error))
    if master is None or not master.startswith("spark://"):
        fail("--elastic adds and releases executors of a standalone cluster: add --master spark://HOST:PORT")
    if not has_several:
        fail("--elastic needs several matchers, more than one per host: add --matchers N")
    options = ["--elastic", bounds, *(f"--elastic-schedule={each}" for each in schedule)]
    options.append(f"--elastic-calm={calm_s}")
    return [*options, "--elastic-dry-run"] if dry_run else options


def check_settings(given: dict[str, Any]) -> float:
    """Exit with an error if the gateway could not start with its settings; return ``pipeline_stall_s``."""
    from pydantic import ValidationError

    from fieldfare.gateway.admission.keyring import read_admin_key, read_peer_key
    from fieldfare.gateway.admission.tls import server_context
    from fieldfare.gateway.settings import GatewaySettings, UnusableFile, wrong_setting

    warn_of_unknown_variables()
    try:
        settings = GatewaySettings(**given)
        server_context(settings)
        if settings.admin_key_file is not None:
            read_admin_key(settings.admin_key_file)
        if settings.peer_key_file is not None:
            read_peer_key(settings.peer_key_file)
        if settings.jwt_jwks is not None:
            from fieldfare.gateway.admission.token_keys import is_url, open_source

            if not is_url(settings.jwt_jwks):
                open_source(settings.jwt_jwks, settings.jwt_refresh_s).read()
    except ValidationError as error:
        fail(wrong_setting(error))
    except UnusableFile as error:
        fail(str(error))
    _warn_of_full_disk(settings.data, settings.disk_free_min_bytes)
    return settings.pipeline_stall_s


def _warn_of_full_disk(data: Path, least_bytes: int) -> None:
    folder = next(each for each in (data.absolute(), *data.absolute().parents) if each.is_dir())
    free_bytes = disk_usage(folder).free
    if free_bytes < least_bytes:
        report_warning(
            f"{free_bytes >> 20} MiB are free on the disk of {data}, and {least_bytes >> 20} MiB are needed"
            " (FIELDFARE_DISK_FREE_MIN_BYTES): publishers will get 429"
        )


def find_missing(packages: tuple[str, ...]) -> list[str]:
    """Return those of the packages that are not installed, without importing any."""
    return [name for name in packages if find_spec(name) is None]
