"""The part of the OpenAPI description about the pipeline and the service's processes."""

from __future__ import annotations

from fieldfare.gateway.openapi.words import Json, array, boolean, integer, number, or_null, record, string

_TIME = "in milliseconds since 1970"

_PROCESS = record(
    {
        "name": string("Name of the process: `gateway`, `indexer` or `pipeline`."),
        "pid": or_null(integer("Id of the process; null before its first heartbeat.")),
        "state": or_null(string("Its state by its last heartbeat, such as `running` or `recovering`.")),
        "ready": string("`ready`, or why it is not."),
        "started_ms": or_null(integer(f"Time of its last start, {_TIME}; null if it is not known.")),
        "heartbeat_ms": or_null(integer(f"Time of its last heartbeat, {_TIME}; null for the gateway.")),
    }
)
_SUPERVISOR = record(
    {
        "pid": integer("Id of the process."),
        "state": string("`running`; during a restart of the service `checking`, `preparing`, `replacing`."),
        "restarts": integer("Number of restarts of the whole service (`fieldfare restart`)."),
        "changed_ms": integer(f"Time of the last change of this state, {_TIME}."),
    },
    description="The supervisor; null if the gateway was started by other means.",
)
_ACTIVITY = record(
    {
        "kind": string(
            "What it does: it `follows` the log, `matches` a batch, or `waits` for events or the index.",
            enum=["follows", "matches", "waits"],
        ),
        "tasks": integer("Number of tasks that do it."),
        "records": integer("Number of records of the batch."),
    },
    description="What the pipeline does now, as of its last heartbeat; null while it matches nothing.",
)
_INDEX = record(
    {
        "is_covering": or_null(boolean("Whether the index covers all records of the log.")),
        "revision": or_null(integer("Revision of the registry that the index has reached.")),
        "registry_revision": integer("Revision of the registry: the number of its last change."),
        "snapshot_revision": or_null(integer("Revision of the oldest snapshot.")),
        "manifest": or_null(integer("Number of the newest manifest.")),
    },
    description="The index, by the last heartbeats.",
)
_SPACE = record(
    {
        "space": string("Name of the space."),
        "matching_ms_per_s": number("Processor time of matching, in milliseconds per second."),
        "matches_per_s": number("Matches found per second."),
    }
)
_SLICE = record(
    {
        "space": string("Name of the space."),
        "slice": integer("Number of the slice in its space."),
        "matcher": integer("Number of the matcher that holds it."),
        "filters": integer("Number of versions of filters in it."),
        "arrivals_per_s": or_null(number("Events per second that it receives; null if not measured.")),
        "matched_per_s": or_null(number("Events that it matches per second of matching; null likewise.")),
    }
)
_HOST = record(
    {
        "host": string("Name of the host."),
        "executor": string("Id of its executor; empty until the cluster provides one."),
        "cores": number("Number of tasks that it runs at once."),
        "is_warm": boolean("Whether its workers are ready to match."),
        "cpu": number("Share of its processor time that is used."),
    }
)
_SLICE_LOAD = record(
    {
        "slice": string("Name of the slice, such as `M:1`."),
        "host": string("Its host; empty while its tasks run anywhere."),
        "cpu": number("Share of a host's processor time that it uses."),
        "memory_bytes": integer("Bytes of memory that it uses."),
    }
)
_LOADS = record(
    {
        "time_ms": integer(f"Time of the measurement, {_TIME}."),
        "dry_run": boolean("Whether decisions are not carried out."),
        "least": integer("Minimum number of hosts at present."),
        "most": integer("Maximum number of hosts at present."),
        "hosts": array(_HOST, "The hosts of the service."),
        "slices": array(_SLICE_LOAD, "The slices of the service."),
        "asked": integer("Number of tasks with a preferred host."),
        "granted": integer("Number of those that ran there."),
    },
    description="The last measured loads.",
)
_DECISION = record(
    {
        "time_ms": integer(f"Time of the decision, {_TIME}."),
        "reason": string("Why it was made."),
        "moves": array(
            record(
                {
                    "slice": string("Name of the slice."),
                    "to": {
                        "type": ["string", "integer"],
                        "description": "Name of the new host; a number from 0 for one that is added.",
                    },
                }
            ),
            "The slices that move.",
        ),
        "new_hosts": integer("Number of hosts that are added."),
        "released": array(string("One host."), "The hosts that are released."),
        "is_done": boolean("Whether it was carried out; false in a dry run."),
    }
)
_MOVE = record(
    {
        "slice": string("Name of the slice."),
        "from_host": string("Name of its previous host."),
        "to_host": string("Name of its new host."),
        "asked_ms": number(f"Time of the request, {_TIME}."),
        "mapped_ms": number(f"Time from which the new host had it mapped, {_TIME}."),
        "placed_ms": number(f"Time from which its tasks ran there, {_TIME}."),
    }
)
_ELASTIC = record(
    {
        "is_running": boolean("Whether the loads are recent."),
        "configuration": {
            "type": "object",
            "description": "Hosts and places of slices, as `fieldfare scale --json` prints them.",
        },
        "loads": or_null(_LOADS),
        "decisions": array(_DECISION, "The last 20 decisions, newest last."),
        "moves": array(_MOVE, "The last 20 moves, newest last."),
    },
    description="State of an elastic service; null if none has run on the data directory.",
)

PIPELINE_SCHEMAS: Json = {
    "Pipeline": record(
        {
            "processes": array(_PROCESS, "The processes of the service."),
            "supervisor": or_null(_SUPERVISOR),
            "activity": or_null(_ACTIVITY),
            "cores": or_null(integer("Maximum tasks at a time; null before the pipeline matches.")),
            "executors": or_null(integer("Number of executors of the cluster; null on one machine.")),
            "matchers": or_null(integer("Number of matchers that hold the index.")),
            "durable": array(integer("One offset."), "Offset by partition up to which matches are durable."),
            "index": _INDEX,
            "matching_ms_per_s": number(
                "Processor time of matching in milliseconds per second, over the last minute."
            ),
            "spaces": array(
                _SPACE,
                "The 20 spaces that took the most time to match over the last minute, costliest first.",
            ),
            "slices": array(_SLICE, "The first 200 slices of the spaces that have several."),
            "elastic": or_null(_ELASTIC),
        }
    ),
}
