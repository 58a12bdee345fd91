"""A stand-in for Kubernetes on loopback, as far as Spark's executors go: its pods are processes here.

It takes what Spark's client asks of the API (pods and configuration maps: create, read, list, delete), runs a
pod's container as the image's entrypoint would be, with the environment that the pod names, and says how the
pod is. There is no scheduler, no network, no image and no watching: Spark looks every `POLL_S` instead. So
the line by which Spark is started, what it asks for, and the entrypoint are tried; Kubernetes is not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

import pyspark

POLL_S = 1
ENTRYPOINT = Path(__file__).resolve().parents[2] / "deploy" / "spark-executor" / "entrypoint.sh"

Document = dict[str, Any]

_LISTS = {"configmaps/": "ConfigMapList", "persistentvolumeclaims/": "PersistentVolumeClaimList"}


class Pod:
    """A pod, and the process that it is here."""

    def __init__(self, document: Document, folder: Path, root: str | None, base: dict[str, str]) -> None:
        self.document = document
        self.name: str = document["metadata"]["name"]
        container = document["spec"]["containers"][0]
        self.folder = folder / self.name
        scratch = self.folder / "tmp"
        scratch.mkdir(parents=True)
        told = {"status.podIP": "127.0.0.1", "metadata.name": self.name}
        environment = base | {
            each["name"]: each.get("value") or told.get(_field(each), "") for each in container["env"]
        }
        command = ["/bin/bash", str(ENTRYPOINT)]
        if root is not None:
            command = ["chroot", root, "env", "-C", str(self.folder), "/bin/bash", "/opt/entrypoint.sh"]
        environment |= {"SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch), "HOME": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *container["args"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )

    def described(self) -> Document:
        """As the API tells of it."""
        code = self.process.poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        state = {"running": {}} if code is None else {"terminated": {"exitCode": abs(code)}}
        name = self.document["spec"]["containers"][0]["name"]
        statuses = [{"name": name, "state": state, "ready": code is None}]
        status = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": statuses}
        return {"apiVersion": "v1", "kind": "Pod", **self.document, "status": status}

    def kill(self) -> None:
        """End it with all that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def _spark_home() -> str:
    """Where the image has Spark."""
    lines = ENTRYPOINT.with_name("Dockerfile").read_text().splitlines()
    return next(line.partition("SPARK_HOME=")[2] for line in lines if line.startswith("ENV SPARK_HOME="))


def _field(variable: Document) -> str:
    return str(variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"))


class Pods:
    """The API, and the pods; all ends with `close`.

    ``FIELDFARE_EXECUTOR_ROOT`` names a folder with what the image has, where pods run by ``chroot``; it has
    this machine's ``/tmp`` and ``/proc``. Without, they have this machine's Python and Spark.
    """

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="pods-")
        self.folder = Path(self._held.name)
        self._root = os.environ.get("FIELDFARE_EXECUTOR_ROOT")
        python = "/usr" if self._root else sys.base_prefix
        self._base = {"PATH": f"{python}/bin:/usr/local/bin:/usr/bin:/usr/sbin:/bin", "LANG": "C.UTF-8"}
        self._base["SPARK_HOME"] = _spark_home() if self._root else str(Path(pyspark.__file__).parent)
        self.pods: dict[str, Pod] = {}
        self._others: dict[str, Document] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """What Spark takes for a master."""
        return f"k8s://http://127.0.0.1:{self._server.server_port}"

    environment: ClassVar[dict[str, str]] = {}

    @property
    def properties(self) -> dict[str, str]:
        """What Spark is told besides."""
        return {
            "spark.kubernetes.container.image": "spark-executor:4.2.0",
            "spark.kubernetes.namespace": "fieldfare",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.kubernetes.executor.apiPollingInterval": f"{POLL_S}s",
            "spark.executor.instances": "2",
            "spark.executor.memoryOverhead": "2g",
        }

    def running(self) -> list[str]:
        """The names of the pods that run."""
        with self._lock:
            return [name for name, pod in self.pods.items() if pod.process.poll() is None]

    def kill(self, name: str) -> None:
        """End a pod, as when its machine loses its power."""
        self.pods[name].kill()

    def logs(self) -> str:
        """What the pods say."""
        paths = self.folder.glob("*/log")
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)

    def close(self) -> None:
        """End all, and remove what was written."""
        self._server.shutdown()
        self._server.server_close()
        for pod in self.pods.values():
            pod.kill()
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def answer(self, method: str, path: str, body: Document) -> tuple[int, Document]:
        """What the API says."""
        place = urlsplit(path)
        kind, _, name = place.path.partition("/namespaces/fieldfare/")[2].partition("/")
        selector = parse_qs(place.query).get("labelSelector", [""])[0]
        with self._lock:
            if kind == "pods":
                return self._pods(method, name, selector, body)
            return self._things(method, f"{kind}/{name}", body)

    def _pods(self, method: str, name: str, selector: str, body: Document) -> tuple[int, Document]:
        if method == "POST":
            pod = Pod(body, self.folder, self._root, self._base)
            self.pods[pod.name] = pod
            return 201, pod.described()
        if name and name not in self.pods:
            return 404, _status(404)
        chosen = [self.pods[name]] if name else [each for each in self.pods.values() if _has(each, selector)]
        if method == "DELETE":
            for pod in chosen:
                pod.kill()
                del self.pods[pod.name]
            return 200, _status(200)
        if method == "PATCH":
            chosen[0].document["metadata"].setdefault("labels", {}).update(body["metadata"]["labels"])
        if name:
            return 200, chosen[0].described()
        items = [pod.described() for pod in chosen]
        return 200, {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}

    def _things(self, method: str, name: str, body: Document) -> tuple[int, Document]:
        if method == "POST":
            self._others[name + body["metadata"]["name"]] = body
            return 201, body
        if method == "DELETE":
            self._others.pop(name, None)
            return 200, _status(200)
        found = self._others.get(name)
        if not name.endswith("/"):
            return (200, found) if found is not None else (404, _status(404))
        kind = _LISTS.get(name, "List")
        return 200, {"apiVersion": "v1", "kind": kind, "metadata": {}, "items": []}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return _handler_of(self.answer)


def _has(pod: Pod, selector: str) -> bool:
    """Whether a pod has the labels of a selector: ``a=b,c in (d, e),!f``, as far as Spark uses it."""
    labels = pod.document["metadata"].get("labels", {})
    wanted = (each.split("=", 1) for each in selector.split(",") if "=" in each and "!" not in each)
    return all(labels.get(name) == value for name, value in wanted)


def _status(code: int) -> Document:
    said = "Success" if code < 300 else "Failure"
    return {"apiVersion": "v1", "kind": "Status", "status": said, "code": code, "metadata": {}}


def _handler_of(answer: Callable[[str, str, Document], tuple[int, Document]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            if "watch=true" in self.path:
                code, found = 405, _status(405)
            else:
                code, found = answer(self.command, self.path, body)
            content = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_PATCH = _do

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing is said."""

    return Handler
