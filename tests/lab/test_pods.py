"""The stand-in for Kubernetes: a pod is a process, and the API tells how that is."""

from __future__ import annotations

import time

import httpx
import pytest

from fieldfare_lab.pods import Pods

pytestmark = pytest.mark.long


def pod(name: str, *command: str) -> dict[str, object]:
    container = {"name": "executor", "args": list(command), "env": [{"name": "WORD", "value": "heard"}]}
    metadata = {"name": name, "labels": {"app": name[0]}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def test_a_pod_runs_with_its_environment_and_ends_as_it_ends() -> None:
    with Pods() as pods, httpx.Client(base_url=pods.address.removeprefix("k8s://")) as http:
        place = "/api/v1/namespaces/fieldfare/pods"
        assert http.post(place, json=pod("a1", "sh", "-c", "echo $WORD")).status_code == 201
        assert http.post(place, json=pod("a2", "sh", "-c", "exit 3")).status_code == 201
        assert http.post(place, json=pod("b1", "sleep", "60")).status_code == 201

        def phases(selector: str) -> dict[str, str]:
            items = http.get(place, params={"labelSelector": selector}).json()["items"]
            return {each["metadata"]["name"]: each["status"]["phase"] for each in items}

        until_s = time.monotonic() + 20
        while "Running" in phases("app=a").values():
            assert time.monotonic() < until_s
            time.sleep(0.02)
        assert phases("app=a") == {"a1": "Succeeded", "a2": "Failed"}
        assert phases("") == {"a1": "Succeeded", "a2": "Failed", "b1": "Running"}
        assert (pods.folder / "a1" / "log").read_text() == "heard\n"
        assert pods.running() == ["b1"]
        assert http.delete(f"{place}/b1").status_code == 200
        assert http.get(f"{place}/b1").status_code == 404 and pods.running() == []
