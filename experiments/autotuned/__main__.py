"""Runs all experiments of this folder in turn: ``python experiments/autotuned``."""

from __future__ import annotations

import time

import first_batch_size
import fixed_settings
import load_steps
import lookup_service
import read_time
import slow_subscriber
import step_response

PROGRAMS = (
    fixed_settings,
    read_time,
    first_batch_size,
    load_steps,
    step_response,
    slow_subscriber,
    lookup_service,
)

for program in PROGRAMS:
    started_s = time.perf_counter()
    print(program.__name__)
    program.main()
    print(f"  {time.perf_counter() - started_s:.0f} s")
