"""Checkpoints of a history, made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.progress import Acknowledgement, Cause, Checkpoint
from twopc.sealed import seal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T0 = 1_790_000_000_000


def ended(batch_id: int, **changed: Any) -> Checkpoint:
    """A healthy checkpoint of 400 ms, every five seconds."""
    facts: dict[str, Any] = {
        "query_id": "q",
        "run_id": "r",
        "status": "completed",
        "triggered_ms": T0 + 5_000 * batch_id,
        "took_ms": 400.0,
        "pause_ms": 4_600.0,
        "way": "tasks",
        "steps": ("write",),
        "phases": {"prepare": 300.0, "confirm": 10.0, "decide": 30.0, "commit": 40.0, "finish": 20.0},
        "tasks": 4,
        "transactions": 4,
        "rows": 40_000,
        "size_bytes": 4_000_000,
        "planned": 40_000,
        "limit_ms": 600_000.0,
        "limited_by": "CheckpointConfig.timeout_ms",
        "median_ms": 250.0,
        "slowest": (vote(),),
    }
    return Checkpoint(batch_id=batch_id, **{**facts, **changed})


def failed(batch_id: int, error: str, message: str, reason: str = "failed", **changed: Any) -> Checkpoint:
    cause = Cause(reason=reason, phase="prepare", error=error, message=message)
    empty: dict[str, Any] = {"steps": (), "transactions": 0, "rows": 0, "slowest": (), "way": ""}
    return ended(batch_id, **{**empty, "status": "failed", "cause": cause, **changed})


def vote(**changed: Any) -> Acknowledgement:
    facts: dict[str, Any] = {
        "partition": 2,
        "rows": 10_000,
        "took_ms": 280.0,
        "read_ms": 100.0,
        "flush_ms": 80.0,
        "host": "a",
    }
    return Acknowledgement(**{**facts, **changed})


def write(checkpoint: Path, lines: Iterable[Checkpoint | bytes], name: str = "00000000000001.jsonl") -> Path:
    """A checkpoint's directory with this history."""
    directory = checkpoint / "twopc" / "history"
    directory.mkdir(parents=True, exist_ok=True)
    encoded = [line if isinstance(line, bytes) else seal(line) for line in lines]
    (directory / name).write_bytes(b"\n".join(encoded) + b"\n")
    (checkpoint / "metadata").write_text('{"id":"q"}')
    return checkpoint
