"""Find the log that contains a sink's decisions. If a query's Kafka sinks are on several clusters, one cluster stores the log."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.binding import Binding
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.registers import RegisterLog
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from twopc.files import Files
    from twopc.records import Acquired
    from twopc.sinks.kafka import KafkaSink
    from twopc.sinks.kafka.decision_log import KafkaDecisionLog

_SINKS: Final = (
    "If the query is not running, start it. The query will commit the decided transactions. To let this command read "
    "the decisions, pass all of the query's sinks with --sinks MODULE:NAME"
)
#: How a user passes the checkpoint. Not every command has the option.
GIVE_CHECKPOINT: Final = (
    "pass the query's checkpoint with --checkpoint. If the command has no such option, pass the checkpoint in place of the "
    "sink's name"
)


class DecisionsElsewhereError(ConfigurationError):
    """The command cannot reach the decisions, so nothing about the sink's transactions is known. Nothing is damaged.

    The decisions are on another cluster, or in a checkpoint that the user has not passed.
    """


class Where(NamedTuple):
    """The place of a decision log."""

    log: str
    cluster: str  #: the cluster's id; empty if it is unknown, or if the log is not on a cluster

    @property
    def is_checkpoint(self) -> bool:
        """Whether the log is in the query's checkpoint. The query began without a Kafka sink, and the sink joined later.

        A topic may have the same name as the log in a checkpoint, but a topic is on a cluster.
        """
        return self == (RegisterLog.name, "")


@dataclass(frozen=True, kw_only=True)
class QueryFacts:
    """What the user has told a command about a sink's query.

    Attributes:
        sinks: the query's Kafka sinks, from the user's code. One of them may hold the decisions.
        query_id: the query id in the checkpoint; empty without a checkpoint.
        bound: the log to which the checkpoint is bound; None without a checkpoint, or if the log is not in Kafka.
        own: the toolkit's directory in the checkpoint; None without a checkpoint.
    """

    sinks: tuple[KafkaSink, ...] = ()
    query_id: str = ""
    bound: Where | None = None
    own: Files | None = None

    def where(self, acquired: Acquired) -> Where:
        """Return where the driver that acquired a sink stores its decisions.

        An older version did not record the cluster. The checkpoint's binding always names it.
        """
        recorded = Where(acquired.deciding_log, acquired.deciding_cluster)
        is_bound = self.bound is not None and (self.query_id, self.bound.log) == (acquired.query_id, recorded.log)
        return self.bound if self.bound is not None and is_bound and not recorded.cluster else recorded

    def checkpoint_of(self, acquired: Acquired) -> str:
        """Return the checkpoint that contains the decisions. Return an empty text if they are in a ledger."""
        is_here = self.own is not None and self.where(acquired).is_checkpoint
        return str(Path(self.own.location).parent) if self.own is not None and is_here else ""


NOTHING_KNOWN: Final = QueryFacts()


def cluster_of(sink: KafkaSink) -> str:
    """Ask the sink's brokers for the cluster's id.

    Raises:
        TwoPhaseCommitError: no broker responds.
    """
    with closing(TransactionClient(sink.committing_config())) as client:
        return client.cluster_id


def stores(sink: KafkaSink, where: Where) -> bool:
    """Whether the sink's ledger is the log at this place. Ledgers on two clusters may have the same name.

    Raises:
        TwoPhaseCommitError: no broker responds.
    """
    return sink.ledger == where.log and (not where.cluster or where.cluster == cluster_of(sink))


def log_in_checkpoint(sink: KafkaSink, acquired: Acquired, facts: QueryFacts) -> RegisterLog:
    """Open the log in the checkpoint of the query that last acquired the sink.

    A copy of the checkpoint passes, too. An older copy lacks the newest decisions, so its log cannot prove that a transaction
    is undecided.

    Raises:
        DecisionsElsewhereError: the user has not passed this query's checkpoint.
        DecisionLogDamagedError: the log is not the one to which the checkpoint is bound.
        ConfigurationError: the checkpoint cannot be read.
    """
    if facts.own is None or facts.query_id != acquired.query_id:
        given = "" if facts.own is None else f" The given checkpoint belongs to query {facts.query_id}."
        raise DecisionsElsewhereError(
            f"the decisions of sink {sink.name!r} are in the checkpoint of query {acquired.query_id}, because the sink "
            f"was added to a query without a Kafka sink.{given} Nothing is damaged, but this command cannot tell which "
            "transactions are decided. Do not abort any transaction. To let this command read the decisions, "
            f"{GIVE_CHECKPOINT}. If the query is not running, you can also start it. It will commit the decided transactions"
        )
    log = RegisterLog(facts.own)
    try:
        found, bound = log.identity(), Binding(facts.own).log_identity
    except OSError as error:
        raise ConfigurationError(
            f"the decisions in {facts.own.location} cannot be read ({error}). Nothing was done. Correct the path of the "
            "checkpoint, or its permissions"
        ) from error
    if found != bound:
        raise DecisionLogDamagedError(
            f"the checkpoint is bound to the decisions with the id {bound}, but the id in {facts.own.location} is "
            f"{found or 'missing'}, so registers/ was deleted or replaced"
        )
    return log


def find_log(sink: KafkaSink, cluster: str, where: Where, facts: QueryFacts) -> KafkaDecisionLog:
    """Open the log with the decisions. Its identity is :data:`ABSENT` if the cluster that stored the log has lost it.

    Args:
        sink: the sink whose decisions are wanted.
        cluster: the id of the sink's cluster.
        where: the place of the decisions.
        facts: what the user has said about the sink's query.

    Raises:
        DecisionsElsewhereError: the log is not on the sink's cluster, and none of the other sinks identifies it.
        TwoPhaseCommitError: no broker responds.
    """
    for other in facts.sinks:
        if stores(other, where):
            return other.create_decision_log()
    if where.cluster not in {"", cluster}:
        raise DecisionsElsewhereError(
            f"the decisions of sink {sink.name!r} are in {where.log}, on cluster {where.cluster}. The brokers at "
            f"{sink.bootstrap_servers} belong to cluster {cluster}. Nothing is damaged, but this command cannot tell "
            f"which transactions are decided. Do not abort any transaction. {_SINKS}"
        )
    log = replace(sink, ledger_topic=where.log).create_decision_log()
    if where.cluster or log.identity() != ABSENT:
        return log
    log.close()
    raise DecisionsElsewhereError(
        f"the decisions of sink {sink.name!r} are in {where.log}, which is not on the cluster at "
        f"{sink.bootstrap_servers}. Either the query's sinks are on several clusters, or this topic was deleted. The "
        "sink's ledger does not show which of the two is true, because an older version wrote the ledger. The query's "
        f"checkpoint shows it, so {GIVE_CHECKPOINT}. Before you know the answer, do not abort any transaction. {_SINKS}"
    )
