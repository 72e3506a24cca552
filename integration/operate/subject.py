"""Find the subject of a command: a sink, the sinks of a checkpoint, or all sinks on a cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import AdminClient

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.connection_options import describing
from twopc.integration.operate.advice import not_here
from twopc.integration.operate.checkpoint import CheckpointState, read_checkpoint
from twopc.integration.operate.named_sinks import load_sinks
from twopc.integration.verify.checkpoint import facts_of
from twopc.integration.verify.deciding import NOTHING_KNOWN, cluster_of
from twopc.new_checkpoint import FAILOVER
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.errors import translated
from twopc.sinks.kafka.handle import driver_epoch_of
from twopc.sinks.kafka.settings import LEDGERS
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.sinks.sink_names import is_sink_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.integration.verify.deciding import QueryFacts
    from twopc.sink import TwoPhaseCommitSink

#: A sink name for requests that concern no sink.
_NOBODY: Final = "twopc-operate"


@dataclass(frozen=True)
class Connection:
    """How to reach the cluster and the other stores.

    Attributes:
        bootstrap_servers: the brokers' addresses; None if the command does not need a broker.
        sinks: where the query's sinks are in the user's code, as ``module:name``.
    """

    bootstrap_servers: str | None
    ledger_topic: str | None = None
    config: Sequence[str] | None = None
    config_file: Path | None = None
    timeout_s: int = 30
    sinks: str | None = None

    @cached_property
    def named(self) -> tuple[TwoPhaseCommitSink[Any], ...]:
        """The sinks that the user's code describes.

        Raises: ConfigurationError: the sinks cannot be imported.
        """
        return () if self.sinks is None else load_sinks(self.sinks)

    @property
    def kafka(self) -> tuple[KafkaSink, ...]:
        """The Kafka sinks that the user's code describes."""
        return tuple(one for one in self.named if isinstance(one, KafkaSink))

    @cached_property
    def cluster(self) -> str:
        """The id of the cluster at :attr:`bootstrap_servers`."""
        return cluster_of(self.sink(_NOBODY))

    def sink(self, name: str, ledger_topic: str | None = None) -> KafkaSink:
        """Return the sink with this name, from the user's code or from the options.

        Args:
            name: the sink's name.
            ledger_topic: the sink's ledger, according to the checkpoint.

        Raises:
            ConfigurationError: no broker was given, or an argument is wrong.
        """
        if (described := next((one for one in self.kafka if one.name == name), None)) is not None:
            return described
        if self.bootstrap_servers is None:
            raise ConfigurationError(f"sink {name!r} is on a Kafka cluster: add --bootstrap-servers host:port")
        topic = ledger_topic or self.ledger_topic
        return describing(self.bootstrap_servers, name, topic, self.config, self.config_file, self.timeout_s)()

    def bound_sinks(self, bound: Mapping[str, Mapping[str, str]]) -> tuple[KafkaSink, ...]:
        """Return the Kafka sinks to which a checkpoint is bound. Leave out a sink whose cluster cannot be reached from here.

        Raises:
            ConfigurationError: all of the sinks are on other clusters.
        """
        described = {one.name for one in self.kafka}
        of_kafka = {name: facts for name, facts in sorted(bound.items()) if "ledger" in facts}
        found = tuple(
            self.sink(name, facts["ledger"])
            for name, facts in of_kafka.items()
            if name in described or self._is_here(facts)
        )
        if self.bootstrap_servers is not None and of_kafka and not found:
            on = "; ".join(f"sink {name!r} is on cluster {facts['cluster']}" for name, facts in of_kafka.items())
            raise ConfigurationError(
                f"the brokers at {self.bootstrap_servers} belong to cluster {self.cluster}, but the checkpoint is bound "
                f"to another cluster: {on}. Nothing was examined. Check --bootstrap-servers. After a failover, {FAILOVER}"
            )
        return found

    def _is_here(self, facts: Mapping[str, str]) -> bool:
        if self.bootstrap_servers is None:
            return False
        return "cluster" not in facts or facts["cluster"] == self.cluster


@dataclass(frozen=True)
class Subject:
    """The sinks and the checkpoint that a command is about.

    Attributes:
        sinks: the Kafka sinks; empty without a connection, or if the checkpoint has no Kafka sinks.
        checkpoint: the facts from the checkpoint, if a checkpoint was given.
        stores: those of the user's sinks that have no ledger.
        left_out: the checkpoint's other Kafka sinks, which the user has not passed, each with the id of its cluster.
        query: what the user has said about the query; this may identify the cluster that stores the decisions.
        strangers: topics that are named like a ledger but cannot belong to a sink, such as copies, or topics that a
            killed preflight left behind.
    """

    sinks: tuple[KafkaSink, ...]
    checkpoint: CheckpointState | None = None
    strangers: tuple[str, ...] = ()
    stores: tuple[TwoPhaseCommitSink[Any], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    query: QueryFacts = NOTHING_KNOWN

    def with_transactions(self) -> tuple[KafkaSink, ...]:
        """Return :attr:`sinks`, for a command about Kafka transactions.

        Raises:
            ConfigurationError: none of the checkpoint's sinks is a Kafka sink, or some are on another cluster.
        """
        if self.left_out:
            raise ConfigurationError(
                f"{not_here(self.left_out)}. Without {'this sink' if len(self.left_out) == 1 else 'these sinks'}, the "
                "result would be wrong, so nothing was examined. Pass all of the query's sinks with --sinks MODULE:NAME"
            )
        if self.checkpoint is not None and self.checkpoint.sinks and not self.sinks:
            raise ConfigurationError(
                f"no sink of this checkpoint ({', '.join(sorted(self.checkpoint.sinks))}) is a Kafka sink, and only "
                "Kafka sinks have transactions that this command can list, prove or end. To compare the stores of the other "
                f"sinks with the decisions, run `twopc status {self.checkpoint.location} --sinks module:name`"
            )
        return self.sinks


def subject_of(what: str | None, connection: Connection, *, checkpoint: Path | None = None) -> Subject:
    """Find the sinks and the checkpoint that a command is about.

    Args:
        what: a sink name, or the path of a checkpoint, or None for all sinks on the cluster.
        connection: the connection to the cluster.
        checkpoint: the query's checkpoint, if ``what`` is a sink name.

    Raises:
        ConfigurationError: the checkpoint does not exist or cannot be read, no broker was given, or the user's sinks
            cannot be imported or have no checkpoint to compare with.
        TwoPhaseCommitError: no broker responds.
    """
    is_described = any(one.name == what for one in connection.kafka)
    if connection.sinks is not None and checkpoint is None and not is_described and (what is None or not is_path(what)):
        raise ConfigurationError(
            "--sinks needs the query's checkpoint, because the command compares the stores with the checkpoint's "
            "decisions. Pass the checkpoint"
        )
    stores = tuple(one for one in connection.named if not isinstance(one, KafkaSink))
    if what is None:
        return _all_sinks(connection)
    if not is_path(what):
        beside = None if checkpoint is None else read_checkpoint(checkpoint)
        bound = {} if beside is None else beside.sinks.get(what, {})
        sink = _on_its_cluster(connection.sink(what, bound.get("ledger")), bound)
        return Subject((sink,), beside, stores=stores, query=_query(connection, beside))
    found = read_checkpoint(Path(what))
    sinks = connection.bound_sinks(found.sinks)
    known = {one.name for one in sinks}
    left_out = {
        name: of.get("cluster", "unknown") for name, of in found.sinks.items() if "ledger" in of and name not in known
    }
    query = _query(connection, found)
    return Subject(sinks, found, stores=stores, left_out=left_out if sinks else {}, query=query)


def _query(connection: Connection, checkpoint: CheckpointState | None) -> QueryFacts:
    return facts_of(None if checkpoint is None else LocalFiles(Path(checkpoint.location)), connection.kafka)


def _on_its_cluster(sink: KafkaSink, bound: Mapping[str, str]) -> KafkaSink:
    """Require that a sink is on the cluster to which its checkpoint is bound."""
    if "cluster" in bound and (here := cluster_of(sink)) != bound["cluster"]:
        raise ConfigurationError(
            f"sink {sink.name!r} is on cluster {bound['cluster']}, according to the checkpoint, but the brokers at "
            f"{sink.bootstrap_servers} belong to cluster {here}. Nothing was examined. Pass the brokers of the sink's cluster"
        )
    return sink


def is_path(what: str) -> bool:
    """Whether the text is a directory's path, not a sink name. A sink name has no slash and no dot."""
    return "/" in what or "." in what or Path(what).is_dir()


def _all_sinks(connection: Connection) -> Subject:
    """Find all sinks by their ledgers and by their open transactions, which remain when a ledger is deleted."""
    if connection.ledger_topic is not None:
        raise ConfigurationError(
            f"--ledger-topic {connection.ledger_topic} is the ledger of only one sink. Nothing was examined. Pass that "
            "sink's name"
        )
    nobody = connection.sink(_NOBODY)
    # Use this client first, because it reports an unreachable broker in one line.
    with closing(TransactionClient(nobody.committing_config())) as client:
        ids = client.list_open("").transactional_ids
    admin = AdminClient(nobody.connection_config())
    with translated("listing the topics of the cluster"):
        topics = admin.list_topics(timeout=connection.timeout_s).topics
    names = {topic.removeprefix(LEDGERS) for topic in topics if topic.startswith(LEDGERS)}
    names |= {tid.partition(".")[0] for tid in ids if driver_epoch_of(tid) is not None}
    strange = {name for name in names if not is_sink_name(name)}
    sinks = tuple(connection.sink(name) for name in sorted(names - strange))
    return Subject(sinks, strangers=tuple(f"{LEDGERS}{name}" for name in sorted(strange)))
