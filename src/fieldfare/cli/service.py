"""``fieldfare serve``: the whole service on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldfare.cli.output import EXIT_FAILED, err, fail, need_packages

SERVER_PACKAGES = ("uvicorn", "starlette", "sqlalchemy", "pydantic_settings", "prometheus_client")
TOKEN_PACKAGES = ("jwt", "cryptography")
SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow", "numba")

LogUrl = Annotated[
    str | None,
    typer.Option(
        "--log",
        envvar="FIELDFARE_LOG",
        metavar="URL",
        help="Keep events and matches in Kafka: kafka://HOST:PORT/TOPIC?partitions=N. A directory has one"
        " log for good; a later start need not name it.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="FIELDFARE_MASTER",
        metavar="URL",
        help="Match on a Spark cluster: spark://HOST:PORT. Default: on this machine.",
    ),
]
IndexStoreUrl = Annotated[
    str | None,
    typer.Option(
        "--index-store",
        envvar="FIELDFARE_INDEX_STORE",
        metavar="URL",
        help="Where the cluster's machines read the index: file:///PATH that all share, s3://BUCKET/PATH or"
        " hdfs://HOST:PORT/PATH. A later start need not name it.",
    ),
]
SparkProperties = Annotated[
    Path | None,
    typer.Option(
        "--spark-properties",
        envvar="FIELDFARE_SPARK_PROPERTIES",
        metavar="FILE",
        help="Spark's own settings, as in spark-defaults.conf; they go over the service's.",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option("--tls-cert", envvar="FIELDFARE_TLS_CERT", metavar="FILE", help="Listen with TLS."),
]
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", envvar="FIELDFARE_TLS_KEY", metavar="FILE", help="The certificate's key."),
]
TlsClientCa = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca",
        envvar="FIELDFARE_TLS_CLIENT_CA",
        metavar="FILE",
        help="Let in only who has a certificate of these authorities.",
    ),
]
JwtIssuer = Annotated[
    str | None,
    typer.Option(
        "--jwt-issuer", envvar="FIELDFARE_JWT_ISSUER", metavar="URL", help="Let in who has its tokens (JWT)."
    ),
]
JwtAudience = Annotated[
    str | None,
    typer.Option(
        "--jwt-audience", envvar="FIELDFARE_JWT_AUDIENCE", metavar="NAME", help="For whom tokens must be."
    ),
]
JwtJwks = Annotated[
    str | None,
    typer.Option(
        "--jwt-jwks",
        envvar="FIELDFARE_JWT_JWKS",
        metavar="FILE|URL",
        help="The keys that tokens are signed with (JWKS).",
    ),
]
PartitioningOption = Annotated[
    str,
    typer.Option(
        "--partitioning",
        envvar="FIELDFARE_PARTITIONING",
        metavar="KIND",
        help="How spaces are cut into slices for several matchers: auto, hash, attribute_space,"
        " single_attribute or replicated.",
    ),
]
MatchersOption = Annotated[
    int,
    typer.Option(
        "--matchers",
        envvar="FIELDFARE_MATCHERS",
        min=1,
        max=1000,
        metavar="N",
        help="Cut them for so many matchers. With 1 every task matches with all of a space.",
    ),
]
SlicesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slices",
        envvar="FIELDFARE_SLICES",
        metavar="SPACE=KIND:N",
        help="How one space is cut; may be given several times.",
    ),
]
MatcherMemory = Annotated[
    int | None,
    typer.Option(
        "--matcher-memory",
        envvar="FIELDFARE_MATCHER_MEMORY",
        min=1,
        metavar="BYTES",
        help="With auto, cut what needs more than this. Default: half of this machine's memory.",
    ),
]
ForwardingOption = Annotated[
    str,
    typer.Option(
        "--forwarding",
        envvar="FIELDFARE_FORWARDING",
        metavar="POLICY",
        help="Where an event may go to several matchers: adaptive, response_time, subscription_count, random"
        " or balanced.",
    ),
]
ElasticOption = Annotated[
    str | None,
    typer.Option(
        "--elastic",
        envvar="FIELDFARE_ELASTIC",
        metavar="MIN..MAX",
        help="Use as many executors of a standalone cluster as the load asks for; needs --master and several"
        " --matchers. `fieldfare scale` shows what is done and why.",
    ),
]
ElasticSchedule = Annotated[
    list[str] | None,
    typer.Option(
        "--elastic-schedule",
        envvar="FIELDFARE_ELASTIC_SCHEDULE",
        metavar="HH:MM-HH:MM=MIN..MAX",
        help="Other numbers in this part of each day; may be given several times.",
    ),
]
ElasticDryRun = Annotated[
    bool,
    typer.Option(
        "--elastic-dry-run",
        envvar="FIELDFARE_ELASTIC_DRY_RUN",
        help="Decide, and say what would be done, but do not do it.",
    ),
]
ElasticCalm = Annotated[
    float,
    typer.Option(
        "--elastic-calm",
        envvar="FIELDFARE_ELASTIC_CALM",
        min=0.0,
        metavar="SECONDS",
        help="Release no executor so soon after some were added.",
    ),
]
Data = Annotated[
    Path, typer.Option("--data", envvar="FIELDFARE_DATA", metavar="DIR", help="Where everything is kept.")
]
Host = Annotated[str, typer.Option("--host", envvar="FIELDFARE_HOST", help="The address to listen at.")]
Port = Annotated[
    int,
    typer.Option("--port", envvar="FIELDFARE_PORT", min=0, max=65535, help="The port; 0 takes a free one."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen at a public address without asking for API keys: all may do all."
    ),
]


def serve(
    data: Data = Path("fieldfare-data"),
    host: Host = "127.0.0.1",
    port: Port = 7737,
    log: LogUrl = None,
    master: Master = None,
    index_store: IndexStoreUrl = None,
    spark_properties: SparkProperties = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    jwt_issuer: JwtIssuer = None,
    jwt_audience: JwtAudience = None,
    jwt_jwks: JwtJwks = None,
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

    Everything it keeps is in one directory: SQLite files for the log and the subscriptions, files for the
    matches. Needs the server extra (pip install 'fieldfare[server]') and Java 17 or newer.

    Example:
    ```
    fieldfare serve --data ./fieldfare-data --port 7737
    ```
    """
    missing = find_missing(
        (*SERVER_PACKAGES, *SPARK_PACKAGES, *(TOKEN_PACKAGES if jwt_issuer is not None else ()))
    )
    if missing:
        need_packages("serve", "server", missing)
    from fieldfare.runtimes.service.serve import COMMANDS
    from fieldfare.runtimes.service.serve import serve as run_service

    given: dict[str, Any] = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca}
    given |= {"jwt_issuer": jwt_issuer, "jwt_audience": jwt_audience, "jwt_jwks": jwt_jwks}
    given = {name: value for name, value in given.items() if value is not None}
    if insecure:
        given["insecure"] = True
    stall_s = check_settings({"host": host, **given})
    arguments = slice_arguments(partitioning, matchers, slices or [], matcher_memory, forwarding)
    arguments["pipeline"] += check_spark(master, spark_properties)
    several = matchers > 1 or bool(slices)
    arguments["pipeline"] += elastic_arguments(
        elastic, elastic_schedule or [], elastic_dry_run, elastic_calm, master, has_several=several
    )
    code = run_service(
        data,
        host,
        port,
        log=log,
        index_store=index_store,
        is_tls=tls_cert is not None,
        gateway_environment={f"FIELDFARE_{name.upper()}": str(value) for name, value in given.items()},
        commands={name: (*command, *arguments.get(name, ())) for name, command in COMMANDS.items()},
        stall_s=stall_s,
        say=lambda line: err().print(f"fieldfare: {line}", markup=False),
    )
    raise typer.Exit(EXIT_FAILED if code else 0)


def check_spark(master: str | None, properties: Path | None) -> list[str]:
    """End the command where Spark could not start with these; else the options of the pipeline's program."""
    from fieldfare.runtimes.spark.master import check_master, read_properties

    options: list[str] = []
    try:
        if master is not None:
            check_master(master)
            options += ["--master", master]
        if properties is not None:
            read_properties(properties)
            options += ["--spark-properties", str(properties.absolute())]
    except (OSError, ValueError) as error:
        fail(str(error))
    return options


def slice_arguments(
    partitioning: str, matchers: int, slices: list[str], memory_bytes: int | None, forwarding: str
) -> dict[str, list[str]]:
    """What indexer and pipeline are told of slices; ends the command where they could not begin with it."""
    from fieldfare.forwarding import POLICIES
    from fieldfare.planning.cuts import CutSettings

    try:
        CutSettings.parsed(partitioning, matchers, slices, memory_bytes or 0)
    except ValueError as error:
        fail(str(error))
    if forwarding not in POLICIES:
        fail(f"no forwarding policy is called {forwarding!r}: there are {', '.join(POLICIES)}")
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
    """What the pipeline is told of growing and shrinking; ends the command where it could not do so."""
    from fieldfare.elasticity.bounds import HostSchedule

    if bounds is None:
        if schedule or dry_run:
            fail("--elastic-schedule and --elastic-dry-run are about --elastic, which is not given")
        return []
    try:
        HostSchedule.parsed(bounds, schedule)
    except ValueError as error:
        fail(str(error))
    if master is None or not master.startswith("spark://"):
        fail(
            "--elastic adds and releases executors of a standalone cluster: name it with --master spark://..."
        )
    if not has_several:
        fail("--elastic moves the slices of several matchers: say how many with --matchers N, several a host")
    options = ["--elastic", bounds, *(f"--elastic-schedule={each}" for each in schedule)]
    options.append(f"--elastic-calm={calm_s}")
    return [*options, "--elastic-dry-run"] if dry_run else options


def check_settings(given: dict[str, Any]) -> float:
    """End the command where the gateway could not start with its settings; else what the supervisor needs."""
    from pydantic import ValidationError

    from fieldfare.gateway.admission.keyring import read_admin_key
    from fieldfare.gateway.admission.tls import server_context
    from fieldfare.gateway.settings import GatewaySettings, UnusableFile, wrong_setting

    try:
        settings = GatewaySettings(**given)
        server_context(settings)
        if settings.admin_key_file is not None:
            read_admin_key(settings.admin_key_file)
        if settings.jwt_jwks is not None:
            from fieldfare.gateway.admission.token_keys import is_url, open_source

            if not is_url(settings.jwt_jwks):
                open_source(settings.jwt_jwks, settings.jwt_refresh_s).read()
    except ValidationError as error:
        fail(wrong_setting(error))
    except UnusableFile as error:
        fail(str(error))
    return settings.pipeline_stall_s


def find_missing(packages: tuple[str, ...]) -> list[str]:
    """Which of these packages are not installed; none of them is imported."""
    return [name for name in packages if find_spec(name) is None]
