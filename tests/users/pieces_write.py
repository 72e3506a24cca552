"""How people call what ``exactly_once`` returns, and where they make it.

``{make}`` makes it, ``{each}`` is it, ``{id}`` is the number that they pass to it.
"""

from __future__ import annotations

from typing import Final

from tests.users.piece import Loose, Piece

WRITES: Final = (
    Piece("one call", "{each}(out, {id})", weight=10),
    Piece("one call by name", "{each}(frames=out, batch_id={id})"),
    Piece("select *, then", '{each}(out.select("*"), {id})'),
    Piece("dictionary", "{each}({{one.name: out, two.name: out}}, {id})", sinks=2, weight=2),
    Piece(
        "dictionary of a split",
        '{each}({{one.name: out.where("crc32(key) % 2 = 0"), two.name: out.where("crc32(key) % 2 = 1")}}, {id})',
        sinks=2,
        weight=4,
    ),
    Piece(
        "dictionary of a cached split",
        "out = out.persist()\n"
        '{each}({{one.name: out.where("crc32(key) % 2 = 0"), two.name: out.where("crc32(key) % 2 = 1")}}, {id})\n'
        "out.unpersist()",
        sinks=2,
        weight=3,
    ),
    Piece(
        "a cached random split",
        'drawn = out.withColumn("x", F.rand()).persist()\n'
        '{each}({{one.name: drawn.where("x < 0.5"), two.name: drawn.where("x >= 0.5")}}, {id})\n'
        "drawn.unpersist()",
        sinks=2,
        loose=Loose.UNION,
    ),
    Piece("None for a sink", "{each}({{one.name: out, two.name: None}}, {id})", sinks=2),
    Piece(
        "None for a sink now and then",
        "{each}({{one.name: out, two.name: out if batch_id % 2 else None}}, {id})",
        sinks=2,
    ),
    Piece("None where empty", "{each}({{one.name: out, two.name: None if out.isEmpty() else out}}, {id})", sinks=2),
    Piece(
        "aggregated for the second sink",
        'totals = out.groupBy("key").agg(F.concat_ws("|", F.first("key"), F.count("*")).alias("value"))\n'
        "{each}({{one.name: out, two.name: totals}}, {id})",
        sinks=2,
        weight=2,
    ),
    Piece(
        "tries again",
        "for _ in range(3):\n    try:\n        {each}(out, {id})\n        break\n"
        '    except Exception as error:\n        seen.append(error)\nelse:\n    raise RuntimeError("gave up")',
    ),
    Piece(
        "logs and raises", "try:\n    {each}(out, {id})\nexcept Exception as error:\n    seen.append(error)\n    raise"
    ),
    Piece("swallows", "try:\n    {each}(out, {id})\nexcept Exception as error:\n    seen.append(error)"),
)

#: Each of these is a mistake, or something that the product may refuse with an error that names it.
WRONG_WRITES: Final = (
    Piece(
        "thread",
        "thread = threading.Thread(target={each}, args=(out, {id}))\nthread.start()\nthread.join()",
        mistake=True,
    ),
    Piece("pool", "with ThreadPoolExecutor(2) as pool:\n    pool.submit({each}, out, {id}).result()", mistake=True),
    Piece(
        "inheritable thread",
        "thread = pyspark.InheritableThread(target=lambda: {each}(out, {id}))\nthread.start()\nthread.join()",
        mistake=True,
    ),
    Piece(
        "pool with inheritable_thread_target",
        "with ThreadPoolExecutor(2) as pool:\n"
        "    pool.submit(pyspark.inheritable_thread_target(lambda: {each}(out, {id}))).result()",
        mistake=True,
    ),
    Piece(
        "two calls, the parts",
        '{each}(out.where("crc32(key) % 2 = 0"), {id})\n{each}(out.where("crc32(key) % 2 = 1"), {id})',
        mistake=True,
        weight=3,
    ),
    Piece("two calls, the same rows", "{each}(out, {id})\n{each}(out, {id})", mistake=True),
    Piece(
        "two calls, each in a job group",
        'sc.setJobGroup("even", "")\n{each}(out.where("crc32(key) % 2 = 0"), {id})\n'
        'sc.setJobGroup("odd", "")\n{each}(out.where("crc32(key) % 2 = 1"), {id})',
        mistake=True,
        weight=2,
    ),
    Piece(
        "a call for each tenant",
        'for part in range(3):\n    {each}(out.where(f"crc32(key) % 3 = {{part}}"), {id})',
        copies=3,
        mistake=True,
    ),
    Piece(
        "an object for each part",
        '{make}(out.where("crc32(key) % 2 = 0"), {id})\n{make}(out.where("crc32(key) % 2 = 1"), {id})',
        mistake=True,
        weight=3,
    ),
    Piece(
        "an object for each sink",
        "exactly_once(one, checkpoint_location=CHECKPOINT)(out, {id})\n"
        "exactly_once(two, checkpoint_location=CHECKPOINT)(out, {id})",
        sinks=2,
        mistake=True,
        weight=2,
    ),
    Piece(
        "parts in a pool, each with an object",
        'parts = [out.where("crc32(key) % 2 = 0"), out.where("crc32(key) % 2 = 1")]\n'
        "with ThreadPoolExecutor(2) as pool:\n"
        "    calls = [pyspark.inheritable_thread_target(lambda part=part: {make}(part, {id})) for part in parts]\n"
        "    for done in [pool.submit(call) for call in calls]:\n        done.result()",
        mistake=True,
    ),
    Piece("the arguments in the wrong order", "{each}({id}, out)", mistake=True),
    Piece("a list", "{each}([out], {id})", mistake=True),
    Piece("a sink is missing", "{each}({{one.name: out}}, {id})", sinks=2, mistake=True),
    Piece("a sink that is not there", '{each}({{one.name: out, "three": out}}, {id})', mistake=True),
    Piece("None for all", "{each}({{one.name: None}}, {id})", mistake=True),
)

NUMBERS: Final = (
    Piece("Spark's number", "batch_id", weight=8),
    Piece("int of it", "int(str(batch_id))"),
    Piece("numpy.int64", "np.int64(batch_id)"),
)

WRONG_NUMBERS: Final = (
    Piece("a constant", "0", mistake=True),
    Piece("another constant", "7", mistake=True),
    Piece("the next number", "batch_id + 1", mistake=True),
    Piece("the number before", "max(batch_id - 1, 0)", mistake=True),
    Piece("own counter", "next(counter)", mistake=True),
    Piece("text", "str(batch_id)", mistake=True),
    Piece("bool", "bool(batch_id)", mistake=True),
    Piece("float", "float(batch_id)", mistake=True),
    Piece("None", "None", mistake=True),
    Piece("a time", "int(time.time())", mistake=True),
)

#: The places where the object is made: lines at the program's top and in the function, and the expression that is
#: called.
PLACES: Final = (
    ("outside", "each = {make}", "", "each"),
    ("outside", "each = {make}", "", "each"),
    ("outside", "each = {make}", "", "each"),
    ("in the function", "", "each = {make}", "each"),
    ("in the call", "", "", "{make}"),
    ("for each batch", "objects = {{}}", "each = objects.setdefault(batch_id, {make})", "each"),
    ("when needed", "@functools.lru_cache\ndef made():\n    return {make}", "", "made()"),
    (
        "for each thread",
        "local = threading.local()",
        'if not hasattr(local, "each"):\n    local.each = {make}\neach = local.each',
        "each",
    ),
)

#: The function that Spark receives; ``{body}`` is indented by four spaces.
SHAPES: Final = (
    ("def", "def write_batch(batch, batch_id):\n{body}", "write_batch"),
    ("def", "def write_batch(batch, batch_id):\n{body}", "write_batch"),
    ("lambda", "def write(batch, batch_id):\n{body}", "lambda batch, batch_id: write(batch, batch_id)"),
    ("partial", "def write(name, batch, batch_id):\n{body}", 'functools.partial(write, "nightly")'),
    (
        "class",
        "class Writer:\n    def __call__(self, batch, batch_id):\n{body8}",
        "Writer()",
    ),
    ("method", "class Job:\n    def write(self, batch, batch_id):\n{body8}", "Job().write"),
    (
        "decorated",
        (
            "def timed(function):\n    @functools.wraps(function)\n    def run(*args):\n        begun = time.monotonic()\n"
            "        try:\n            return function(*args)\n"
            "        finally:\n            seen.append(time.monotonic() - begun)\n"
            "    return run\n\n\n@timed\ndef write_batch(batch, batch_id):\n{body}"
        ),
        "write_batch",
    ),
)
