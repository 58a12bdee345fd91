"""`fieldfare.spark.match` under Spark Connect: the program has no SparkContext, only a server's address."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from fieldfare_lab.ports import find_free_port

pytest.importorskip("grpc", reason="Spark Connect's client needs grpcio")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

HOME = Path(pyspark.__file__).parent
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from fieldfare.spark import Partitioned, SubscriptionsError, match, save_index

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
rows = [(i, "YHOO" if i % 3 else "IBM", float(i)) for i in range(300)]
events = spark.createDataFrame(rows, "id int, symbol string, price double")
filters = [("cheap", "symbol = 'YHOO' AND price < 10"), ("ibm", "symbol = 'IBM'"), ("odd", "price % 7 = 0")]
subscriptions = spark.createDataFrame(filters, "id string, filter string")
wanted = sorted(
    [("cheap", i) for i, symbol, price in rows if symbol == "YHOO" and price < 10]
    + [("ibm", i) for i, symbol, price in rows if symbol == "IBM"]
    + [("odd", i) for i, symbol, price in rows if price % 7 == 0]
)

def found(matches):
    return sorted((row.subscription, row.id) for row in matches.collect())

assert found(match(events, subscriptions, keep=["id"])) == wanted
assert found(match(events, subscriptions)) == wanted  # whose index is there already
save_index(filters, sys.argv[2])
assert found(match(events, sys.argv[2], keep=["id"])) == wanted
spread = Partitioned("hash", 2)
assert found(match(events, subscriptions, keep=["id"], partitioned=spread)) == wanted
try:
    match(events, spark.createDataFrame([("bad", "price >")], "id string, filter string"))
except SubscriptionsError as error:
    assert "a value is missing between" in str(error)
else:
    raise AssertionError("a filter that is none was taken")
stream = spark.readStream.schema(events.schema).json(sys.argv[3])
try:
    match(stream, subscriptions)
except ValueError as error:
    assert "spark.conf.set" in str(error)
else:
    raise AssertionError("a stream would not have had the index")
spark.conf.set("spark.sql.artifact.isolation.enabled", "false")
events.coalesce(1).write.mode("append").json(sys.argv[3])
matched = match(stream, spark.createDataFrame(filters[:2], "id string, filter string"), keep=["id"])
query = matched.writeStream.format("memory").queryName("found").trigger(availableNow=True).start()
assert query.awaitTermination(120), "the stream did not end"
assert found(spark.table("found")) == [each for each in wanted if each[0] != "odd"]
print("all is well")
"""


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """A Connect server of two cores; its workers run this Python."""
    port = find_free_port()
    environment = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.local.dir": tmp_path / "spark",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], stdout=log, stderr=log, env=environment, cwd=tmp_path
        )
    try:
        give_up_s = time.monotonic() + 240
        while f"started at: 127.0.0.1:{port}" not in (tmp_path / "server.log").read_text():
            assert server.poll() is None and time.monotonic() < give_up_s, (
                tmp_path / "server.log"
            ).read_text()
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def test_a_program_on_spark_connect_matches_as_any_other(connect_server: str, tmp_path: Path) -> None:
    """Batches, saved indexes, slices and a stream, in a process of its own: it has one kind of session."""
    (tmp_path / "stream").mkdir()
    arguments = [connect_server, str(tmp_path / "index"), str(tmp_path / "stream")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all is well" in done.stdout
