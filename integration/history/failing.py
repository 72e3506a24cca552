"""Define the rules about checkpoints that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.integration.history.window import Evidence, Rule, failures

if TYPE_CHECKING:
    from twopc.integration.history.window import Window

_MEMORY: Final = (
    r"OutOfMemoryError|GC overhead limit|ExecutorLostFailure|exit code:? 137|Container killed|MemoryError"
    r"|Python worker exited unexpectedly|OversizedAllocationException"
)
#: The names of timeouts in the messages of other errors: librdkafka codes and Java exceptions.
_UNAVAILABLE: Final = (
    r"_TRANSPORT|_ALL_BROKERS_DOWN|_MSG_TIMED_OUT|_TIMED_OUT|COORDINATOR_NOT_AVAILABLE|Local: Message timed out"
    r"|Connection refused"
    r"|org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception"
)
_USER_CODE: Final = (
    r"PythonException|PYTHON_EXCEPTION|NumberFormatException|ArithmeticException|CAST_INVALID_INPUT|DIVIDE_BY_ZERO"
    r"|FAILED_EXECUTE_UDF|UDF_USER_CODE"
)
_RESTARTS: Final = 4


def _lost(window: Window) -> Evidence | None:
    found = [one for one in window.checkpoints if {"repair", "rewrite", "publish"} & set(one.steps)]
    if not found:
        return None
    last = found[-1]
    return Evidence(
        0.7,
        f"checkpoint {last.batch_id} was written again ({', '.join(last.steps)}); {counted(len(found), 'checkpoint')} in total",
    )


def _restarting(window: Window) -> Evidence | None:
    """If a checkpoint failed, detect many starts with few completed checkpoints."""
    runs = {one.run_id for one in window.checkpoints}
    completed = sum(one.cause is None for one in window.checkpoints)
    if len(runs) < _RESTARTS or completed > 2 * len(runs):
        return None
    is_cut_short = any(one.cause is not None for one in window.checkpoints)
    if not is_cut_short:
        return None  # such runs are normal: for example, a timer may start the query for one batch at a time
    return Evidence(0.5, f"{len(runs)} starts for {completed} completed checkpoints")


FAILING: Final = (
    Rule(
        "bad record",
        "A row cannot be written to the sink.",
        "Fix the row at its source. Or set dead_letter=KafkaSink(…), so that the query continues without the row.",
        failures(["BadRecordError", "SchemaError"]),
    ),
    Rule(
        "user code",
        "The query's own code fails, for example in a function, a cast, or a division.",
        "The error message names the expression that fails. Fix that expression, or make it return null for values "
        "that it cannot handle. Then restart the query, which will replay the batch.",
        failures(["PythonException", "AnalysisException"], _USER_CODE),
    ),
    Rule(
        "memory",
        "A process does not have enough memory.",
        "Raise spark.executor.memoryOverhead (Python workers) or spark.executor.memory (the JVM), or make batches "
        "smaller with maxOffsetsPerTrigger, which applies only to batches that Spark has not planned yet. With Spark 3.5 "
        "and rows of 100 kB or more, set spark.sql.execution.arrow.maxRecordsPerBatch=500. If the "
        "driver runs out of memory, lower write_by=DriverUpTo(…).",
        failures([], _MEMORY),
    ),
    Rule(
        "unavailable",
        "A server takes too long to respond.",
        "First check the brokers and the network (`twopc preflight` tries each step). If the brokers are only slow, "
        "raise the sink's timeout_ms, and send fewer, larger requests: kafka.batch.size, kafka.linger.ms, "
        "kafka.compression.type. The sink sets delivery.timeout.ms to kafka.transaction.timeout.ms, so raise "
        "kafka.transaction.timeout.ms.",
        failures(["UnavailableError"], _UNAVAILABLE),
    ),
    Rule(
        "expired",
        "Pre-commit takes longer than its limit, so checkpoints expire.",
        "Raise the limit: CheckpointConfig.timeout_ms, or kafka.transaction.timeout.ms with "
        "transaction.max.timeout.ms. Or make pre-commit faster, as the other findings suggest. Restarting alone does "
        "not help, because a replay writes the same rows and takes just as long.",
        failures(["CheckpointExpiredError"], reason="expired"),
    ),
    Rule(
        "in doubt",
        "A decided checkpoint is not proven complete.",
        "Do not delete anything. When every broker responds, restart the query. It will commit as much as it can. If "
        "the query stops again, the error names the transactions and says how to continue.",
        failures(["InDoubtError", "DecisionInDoubtError", "CommitBlockedError"]),
    ),
    Rule(
        "lost transactions",
        "Decided transactions expired before they were committed, so their rows were lost and had to be written again.",
        "The query was down for longer than kafka.transaction.timeout.ms between a decision and its commit. Raise "
        "that timeout and the brokers' transaction.max.timeout.ms, restart faster, or set staging=True (in a classic session).",
        _lost,
    ),
    Rule(
        "two drivers",
        "Another driver has taken over the sink.",
        "Two processes are running the query with the same sink name, or one process started before another had ended. "
        "Stop one of the processes, and use a different sink name for each query.",
        failures(["FencedError"]),
    ),
    Rule(
        "wrong checkpoint",
        "The checkpoint does not match the sink's decisions, or a setting was rejected.",
        "The error message says which checkpoint or setting is right.",
        failures(["RefusedStartError", "ConfigurationError", "DecisionLogDamagedError"]),
    ),
    Rule(
        "restarts",
        "The query is restarted repeatedly.",
        "The restarts hide the cause. Run `twopc history --failed` to see the errors.",
        _restarting,
    ),
)
