"""A relay: a process that passes on what other sites send, with neither spaces nor Spark.

It is a broker with the service's own links and outboxes (`federation.relay`), and has the few routes that
links and operators need. All other routes are answered with the problem `relay`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fieldfare.files import make_folder
from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.callers import Right, caller_of
from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.admission.keyring import Keyring, read_admin_key
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.request_guard import Identified, RequestGuard
from fieldfare.gateway.admission.tickets import Tickets
from fieldfare.gateway.admission.tls import Certificates
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.linking import clusters_of, links_of
from fieldfare.gateway.federation.relay import Relay
from fieldfare.gateway.middleware import EXCEPTION_HANDLERS, Audited, Timed
from fieldfare.gateway.peers import DDBR
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.request_metrics import RequestMetrics
from fieldfare.gateway.routes.brokers import receive_entries
from fieldfare.gateway.routes.guarded import GuardedRoute, KeyRoute, OpenRoute
from fieldfare.gateway.routes.keys import KeyRoutes
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.server import SHUTDOWN_S, Server
from fieldfare.gateway.settings import GatewaySettings, UnusableFile
from fieldfare.runtimes.process.listening import CannotListen, listening_socket
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.runtimes.process.log_lines import configure_logging
from fieldfare.runtimes.process.logs import reopen_log
from fieldfare.runtimes.process.notify import ServiceManager
from fieldfare.storage import open_keys, open_links
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.private import keep_private
from fieldfare.storage.sqlite.rebuild import mend_databases

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class RelayGateway:
    """The parts of a relay, on one data directory.

    Raises
    ------
    FormatError
        A setting does not fit a relay, or the directory is that of a site.
    UnusableFile
        A file with a key or a certificate cannot be used.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        _check(settings)
        self.settings = settings
        self.certificates = Certificates.open(settings)
        folder = settings.folder
        for path in (folder.root, folder.run, folder.logs):
            make_folder(path)
        store = open_links(folder.links_url)
        known = store.correspondents()
        if any(each.messages or each.events for each in known.values()):
            raise FormatError(
                f"{folder.root} is the data directory of a site, whose subscriptions other sites know: give"
                " the relay a directory and a name of its own"
            )
        clusters = clusters_of(settings.broker_settings, store, folder.root, is_relay=True)
        links = links_of(settings, clusters, store, Correspondence(known, (), ()))
        self.relay = Relay(clusters, store, known, links)
        admin = settings.admin_key_file
        self._keys = open_keys(folder.registry_url)
        self.keyring = Keyring(self._keys, None if admin is None else read_admin_key(admin))
        self.tickets = Tickets()
        self.audit = Audit(folder.audit_log)
        self.metrics = RequestMetrics()
        self.bodies = Bodies(settings.body_max_bytes, settings.bodies_max_bytes, Load(settings, self.metrics))
        self._renewing: asyncio.Task[None] | None = None
        labels: dict[str, Any] = {"labelnames": ["peer"], "registry": self.metrics.collection}
        self._up = Gauge("fieldfare_link_up", "Whether the link to a neighbour is up.", **labels)
        waiting = "Entries that wait for a neighbour."
        self._waiting = Gauge("fieldfare_link_outbox_entries", waiting, **labels)

    async def start(self) -> None:
        """Start all parts on the running event loop."""
        self.audit.start()
        self.relay.start()
        if self.certificates is not None:
            self._renewing = asyncio.create_task(self.certificates.keep_renewed())

    async def close(self) -> None:
        """Stop; entries that wait are sent after the next start."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self.relay.close()
        self._keys.close()
        self.audit.close()

    def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus' text format; it reads files: call it on a thread."""
        for link in self.relay.document().links:
            self._up.labels(link.peer).set(link.is_up)
            self._waiting.labels(link.peer).set(link.outbox_entries)
        return generate_latest(self.metrics.collection)

    def stop_requests(self) -> None:
        """End everything that keeps requests open: there is nothing."""

    def reload(self) -> None:
        """Reread the admin key and the certificates, and reopen the log files; call this on a thread."""
        self.keyring.reread_admin(self.settings.admin_key_file)
        if self.certificates is not None:
            self.certificates.renew()
        reopen_log()
        self.audit.reopen()


def _check(settings: GatewaySettings) -> None:
    if settings.broker is None or not settings.peers:
        raise FormatError("a relay needs --broker, its name, and a --peer for each neighbour")
    if settings.routing != DDBR:
        raise FormatError(
            f"a relay needs --routing {DDBR}, not {settings.routing}: between clusters events are matched"
        )
    if settings.balance or settings.jwt_issuer is not None:
        raise FormatError(
            "a relay accepts only API keys, and has no load to balance: leave out --jwt-issuer and --balance"
        )


@dataclass(frozen=True, slots=True)
class RelayRoutes:
    """The routes of a relay."""

    gateway: RelayGateway

    async def post_entries(self, request: Request) -> Response:
        """Store a batch of a neighbour's entries; the answer acknowledges what is stored."""
        return await receive_entries(request, self.gateway.bodies, self.gateway.relay.links)

    async def get_brokers(self, request: Request) -> Response:
        """Return the topology and the links."""
        return json_response(await asyncio.to_thread(self.gateway.relay.document))

    async def remove_broker(self, request: Request) -> Response:
        """Remove a broker that is gone for good."""
        await drain(request, 0)
        await self.gateway.relay.custody.remove(request.path_params["broker"])
        return Response(status_code=204)

    async def healthz(self, request: Request) -> Response:
        """Report liveness: the process answers."""
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """Report readiness: a link is up, so that something can be passed on.

        It reads no file: many look at it. Callers with the right to watch also get the state of each link.
        """
        links = self.gateway.relay.links_up
        is_ready = any(links.values())
        document: dict[str, Any] = {"status": "ready" if is_ready else "not ready"}
        if caller_of(request).may(Right.WATCH):
            document["checks"] = {name: "ready" if is_up else "down" for name, is_up in links.items()}
        return JSONResponse(document, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Return all metrics in Prometheus' text format."""
        text = await asyncio.to_thread(self.gateway.metrics_text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def missing(self, request: Request) -> Response:
        """Say that a relay has no such route."""
        await drain(request, 0)
        raise _no_site()


def _no_space(name: str) -> str:
    raise _no_site()


def _no_site() -> HttpProblem:
    detail = "This is a relay: it passes events on between sites, and has no spaces and subscriptions."
    return HttpProblem(501, "relay", detail, hint="Send it to a site: GET /v1/brokers names them.")


def create_relay_app(gateway: RelayGateway) -> Starlette:
    """Create the ASGI application of a relay; its lifespan starts and closes the relay."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.close()

    routes, keys = RelayRoutes(gateway), KeyRoutes(gateway.keyring, _no_space, gateway.bodies)
    app = Starlette(
        routes=[
            GuardedRoute("/v1/brokers/{broker}/entries", routes.post_entries, ["POST"], Right.BROKER),
            GuardedRoute("/v1/brokers", routes.get_brokers, ["GET"], Right.WATCH),
            GuardedRoute("/v1/brokers/{broker}", routes.remove_broker, ["DELETE"], Right.ADMIN),
            KeyRoute("/v1/keys", keys.list_keys, methods=["GET"]),
            KeyRoute("/v1/keys", keys.create_key, methods=["POST"]),
            KeyRoute("/v1/keys/{key}", keys.revoke_key, methods=["DELETE"]),
            GuardedRoute("/metrics", routes.metrics, ["GET"], Right.WATCH),
            OpenRoute("/healthz", routes.healthz, methods=["GET"]),
            OpenRoute("/readyz", routes.readyz, methods=["GET"]),
            OpenRoute("/{path:path}", routes.missing, methods=METHODS),
        ],
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    app.add_middleware(Timed, metrics=gateway.metrics, bodies=gateway.bodies)
    app.add_middleware(Audited, audit=gateway.audit)
    app.add_middleware(Identified, keyring=gateway.keyring, key_watch=None, tickets=gateway.tickets)
    app.add_middleware(RequestGuard, settings=gateway.settings)
    return app


class _RelayServer(Server):
    """A server that tells the service manager when it is ready."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            ServiceManager(os.environ).ready()


def run_relay(settings: GatewaySettings) -> str | None:
    """Run a relay until SIGTERM or SIGINT; return why it cannot start, None after a clean stop."""
    configure_logging("relay")
    keep_private()
    folder = settings.folder
    try:
        folder.run.mkdir(parents=True, exist_ok=True)
        locks = [FileLock(folder.lock_of(name), 0.0) for name in ("serve", "gateway")]
        for lock in locks:
            lock.acquire()
        mend_databases(folder.databases, print)
        listener = listening_socket(settings.host, settings.port)
        gateway = RelayGateway(settings)
    except LockTimeoutError:
        return f"another fieldfare process uses {folder.root}: stop it, or name another --data"
    except (CannotListen, UnusableFile, StorageError, OSError) as error:
        return str(error)
    host, port = listener.getsockname()[:2]
    tls = gateway.certificates
    # Batches are stored on threads: none should wait long for the interpreter.
    sys.setswitchinterval(0.001)
    config = server_config(create_relay_app(gateway), settings, tls, timeout_graceful_shutdown=SHUTDOWN_S)
    scheme = "http" if tls is None else "https"
    server = _RelayServer(config, gateway, f"{scheme}://{host}:{port}", "relay")
    server.run(sockets=[listener])
    return None if server.started else "the server did not start: see the log"
