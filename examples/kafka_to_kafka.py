"""Copy one Kafka topic to another, exactly once. The README shows this example."""

from pyspark.sql import SparkSession

from twopc import KafkaSink, exactly_once

BROKER = "broker:9092"
CHECKPOINT = "/shared/checkpoints/orders"

spark = SparkSession.builder.appName("orders").getOrCreate()
source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", BROKER).option("subscribe", "orders")
orders = source.option("startingOffsets", "earliest").load().select("key", "value")

sink = KafkaSink(name="orders", bootstrap_servers=BROKER, topic="orders-enriched")
writer = orders.writeStream.foreachBatch(exactly_once(sink))
writer.option("checkpointLocation", CHECKPOINT).start().awaitTermination()
