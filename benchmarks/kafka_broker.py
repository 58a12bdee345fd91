"""One Kafka broker on loopback, behind the same path as the gateway, for comparison.

It needs Java and a folder with the jars of org.apache.kafka:kafka_2.13 and what that depends on. A pom.xml
with that one dependency and ``mvn dependency:copy-dependencies -DincludeScope=runtime
-DoutputDirectory=jars`` makes one.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delayed import delayed

READY_S = 60.0

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={folder}/log
"""


def find_free_port() -> int:
    """A port that was free a moment ago: Kafka must know the proxy's port, and the proxy Kafka's."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@contextmanager
def kafka_broker(jars: Path, round_trip_ms: float) -> Iterator[str]:
    """The address of a broker with an empty log; it names the delayed path as its own address."""
    port, controller_port = find_free_port(), find_free_port()
    with tempfile.TemporaryDirectory() as folder, delayed(port, round_trip_ms) as advertised_port:
        settings = Path(folder) / "server.properties"
        settings.write_text(
            SETTINGS.format(
                port=port,
                controller_port=controller_port,
                advertised_port=advertised_port,
                folder=folder,
            )
        )
        java = ["java", "-Xms256m", "-Xmx512m", "-cp", f"{jars}/*"]
        tool = [*java, "kafka.tools.StorageTool"]
        cluster = subprocess.run(
            [*tool, "random-uuid"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        ).stdout.split()[-1]
        subprocess.run(
            [*tool, "format", "-t", cluster, "-c", settings],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with (Path(folder) / "broker.log").open("w") as log:
            broker = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log, cwd=folder)
        try:
            _wait_until_it_listens(port, broker)
            yield f"127.0.0.1:{advertised_port}"
        finally:
            broker.terminate()
            broker.wait(30)


def _wait_until_it_listens(port: int, broker: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and broker.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the Kafka broker did not start")
