"""The queries that read a table's definition from the catalog.

The parameter ``oid`` is the table's object id. In some queries, the parameter ``locked`` says whether to read definitions as
SQL text. To read such a definition, PostgreSQL locks the table.

The user sets the search path, and other users may create objects in its schemas. So all of the sink's SQL names the schema of
every function and every system catalog. An operator needs no schema if ``pg_catalog`` has an operator for exactly the operands'
types, because PostgreSQL searches ``pg_catalog`` first. A literal in quotes takes the type of the other operand. So
``relkind = 'r'`` is safe. But ``oid = 0`` is not safe (write ``0::oid``), and an operator for arrays is not safe either (write
``OPERATOR(pg_catalog.<@)``). A cast with ``::`` is safe, because only a type's owner can define a cast.
"""

from __future__ import annotations

from typing import Final

#: The states of the triggers and rules that apply in this session (``tgenabled``, ``ev_enabled``).
_STATES: Final = "'A', CASE pg_catalog.current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END"

#: The facts about the table itself. Only privileges on the whole table count. Privileges on single columns do not.
TABLE: Final = f"""
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
  c.relpersistence::text AS persistence, c.relispartition AS is_partition,
  pg_catalog.row_security_active(c.oid) AS has_row_security,
  current_user::text AS role,
  ARRAY(
    SELECT r.rulename::text FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_enabled::text IN ({_STATES}) ORDER BY 1
  ) AS rules,
  ARRAY(
    SELECT r.rulename::text FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '2' ORDER BY 1
  ) AS update_rules,
  ARRAY(
    SELECT h.oid::regclass::text FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class h ON h.oid = i.inhrelid
    WHERE i.inhparent = c.oid AND NOT h.relispartition ORDER BY 1
  ) AS heirs,
  ARRAY(
    SELECT p FROM pg_catalog.unnest(ARRAY['INSERT', 'SELECT', 'UPDATE']::text[]) p
    WHERE NOT pg_catalog.has_table_privilege(c.oid, p)
  ) AS missing
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s::oid
"""  # noqa: S608 - a constant
#: The beginning of the queries about a table and its partitions at every level. They select from ``tree``.
TREE: Final = """
WITH RECURSIVE tree(oid) AS (
  SELECT %(oid)s::oid UNION ALL
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  WHERE c.relispartition
)
"""
PARTITIONS: Final = r"""
SELECT c.oid::regclass::text AS name, c.relkind::text AS kind,
  p.partstrat <> 'h' AND p.partdefid = 0::oid AS is_unrouted,
  p.partstrat = 'h' AND NOT coalesce(( -- every modulus is a factor of the greatest
    SELECT pg_catalog.sum(h.greatest / h.modulus)::int8 = pg_catalog.max(h.greatest) FROM (
      SELECT b.modulus, pg_catalog.max(b.modulus) OVER () AS greatest
      FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class x ON x.oid = i.inhrelid,
        CAST(substring(pg_catalog.pg_get_expr(x.relpartbound, 0) FROM 'modulus (\d+)') AS bigint) b(modulus)
      WHERE i.inhparent = c.oid AND NOT i.inhdetachpending
    ) h
  ), false) AS lacks_remainders,
  c.relkind = 'r' AND c.relpersistence <> 'p' AND c.oid <> %(oid)s::oid AS is_unlogged, -- only a leaf has rows
  EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute o ON o.attrelid = %(oid)s::oid AND o.attname = a.attname
    WHERE a.attrelid = c.oid AND a.attnotnull AND NOT o.attnotnull AND o.attnum > 0
  ) AS is_stricter,
  EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute o ON o.attrelid = %(oid)s::oid AND o.attname = a.attname
    JOIN pg_catalog.pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    JOIN pg_catalog.pg_attrdef e ON (e.adrelid, e.adnum) = (o.attrelid, o.attnum)
    WHERE a.attrelid = c.oid AND a.attgenerated <> ''
    AND CASE WHEN %(locked)s
      THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) <> pg_catalog.pg_get_expr(e.adbin, e.adrelid) ELSE false END
  ) AS computes_otherwise,
  p.partexprs IS NOT NULL AS has_expressions, key.expressions,
  CASE WHEN %(locked)s AND p.partexprs IS NOT NULL THEN pg_catalog.pg_get_partition_constraintdef(
    CASE -- all its siblings evaluate the same expressions
      WHEN pg_catalog.count(*) OVER (PARTITION BY i.inhparent, key.expressions)
        = pg_catalog.count(*) OVER (PARTITION BY i.inhparent)
      THEN i.inhparent ELSE c.oid
    END
  ) END AS bounds,
  ARRAY(
    SELECT DISTINCT a.attname::text
    FROM pg_catalog.pg_partition_ancestors(c.oid) above(oid)
    JOIN pg_catalog.pg_partitioned_table k ON k.partrelid = above.oid::oid
    JOIN pg_catalog.pg_attribute a ON a.attrelid = above.oid::oid
    WHERE (a.attnum = ANY(k.partattrs) AND above.oid::oid <> c.oid) OR a.attnum IN (
      SELECT found[1]::int FROM pg_catalog.regexp_matches(k.partexprs::text, ':varattno (\d+)', 'g') found
    ) ORDER BY 1
  ) AS routing_columns,
  (
    SELECT pg_catalog.min(CASE -- as the server itself decides for each publication
      WHEN c.relreplident <> 'f' AND pg_catalog.cardinality(identity.columns) = 0 THEN 'no identity'
      WHEN l.prattrs IS NOT NULL AND (c.relreplident = 'f' OR NOT identity.columns OPERATOR(pg_catalog.<@) ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = u.oid AND a.attnum = ANY(l.prattrs)
      )) THEN 'column list'
      WHEN c.relreplident <> 'f' AND NOT identity.columns OPERATOR(pg_catalog.@>) ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.regexp_matches(l.prqual::text, ':varattno (\d+)', 'g') used
          ON a.attnum = used[1]::int2 WHERE a.attrelid = u.oid
      ) THEN 'row filter'
      WHEN l.prattrs IS NULL AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''
        AND (c.relreplident = 'f' OR a.attname::text = ANY(identity.columns))
        AND (a.attgenerated, pg_catalog.to_jsonb(p) ->> 'pubgencols'::text) <> ('s', 's') -- PostgreSQL 18 has the column
        AND pg_catalog.to_jsonb(p) ? 'pubgencols'::text
      ) THEN 'generated columns'
    END)
    FROM pg_catalog.pg_publication p
    JOIN pg_catalog.pg_class u ON u.oid = c.oid -- its ancestors publish the partition, too
      OR u.oid IN (SELECT above.oid::oid FROM pg_catalog.pg_partition_ancestors(c.oid) above(oid))
    LEFT JOIN pg_catalog.pg_publication_rel l ON l.prpubid = p.oid AND l.prrelid = u.oid
    CROSS JOIN (
      SELECT ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_index i, pg_catalog.generate_series(0, i.indnkeyatts - 1) k,
          pg_catalog.pg_attribute a
        WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND a.attnum = i.indkey[k]
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
      ) AS columns
    ) identity
    WHERE c.relkind = 'r' AND p.pubupdate AND (
      p.puballtables OR l.oid IS NOT NULL
      OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = u.relnamespace)
    )
  ) AS update_obstacle
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid LEFT JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND c.oid <> %(oid)s::oid
CROSS JOIN LATERAL (SELECT CASE WHEN %(locked)s THEN pg_catalog.pg_get_expr(p.partexprs, c.oid) END AS expressions) key
ORDER BY 1
"""
COLUMNS: Final = """
SELECT a.attnum AS number, a.attname AS name, a.atttypid::int8 AS type, a.atttypmod AS typmod,
  pg_catalog.format_type(a.atttypid, a.atttypmod) AS sql, a.attnotnull AS is_required, a.attidentity::text AS identity,
  a.attgenerated::text AS generated,
  CASE WHEN a.attgenerated = '' -- the table's oid would make it lock the table
    THEN pg_catalog.pg_get_expr(d.adbin, 0) END AS default,
  ARRAY(
    SELECT s.attname::text FROM pg_catalog.pg_depend p
    JOIN pg_catalog.pg_attribute s ON s.attrelid = a.attrelid AND s.attnum = p.refobjsubid
    WHERE a.attgenerated <> '' AND p.classid = 'pg_catalog.pg_attrdef'::regclass::oid AND p.objid = d.oid
    AND p.refclassid = 'pg_catalog.pg_class'::regclass::oid AND p.refobjid = a.attrelid AND s.attnum <> a.attnum ORDER BY s.attnum
  ) AS sources,
  (
    SELECT pg_catalog.min(q.oid::regclass::text) FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_class q ON q.oid = p.refobjid
    WHERE p.classid = 'pg_catalog.pg_attrdef'::regclass::oid AND p.objid = d.oid
    AND p.refclassid = 'pg_catalog.pg_class'::regclass::oid
    AND CASE WHEN q.relkind = 'S' THEN NOT pg_catalog.has_sequence_privilege(q.oid, 'USAGE, UPDATE') ELSE false END
  ) AS forbidden_sequence
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
#: The columns' types, and the types inside them.
TYPES: Final = """
WITH RECURSIVE used(oid) AS (
  SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = %(oid)s::oid AND attnum > 0 AND NOT attisdropped
  UNION
  SELECT inner_type FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid,
    pg_catalog.unnest(ARRAY[t.typbasetype, CASE WHEN t.typlen = -1 THEN t.typelem ELSE 0 END]) inner_type
  WHERE inner_type <> 0::oid
)
SELECT t.oid::int8 AS oid, t.typname AS name, t.typtype::text AS kind, t.typnotnull AS is_required,
  t.typbasetype::int8 AS base, t.typtypmod AS typmod, n.nspname = 'pg_catalog' AS is_built_in,
  CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid)
    THEN t.typelem::int8 ELSE 0 END AS element,
  ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder) AS labels
FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
"""
#: The query omits a partition's indexes that are part of an index on the table.
INDEXES: Final = r"""
SELECT i.indexrelid::regclass::text AS name, m.amname AS method, i.indisunique AS is_unique,
  i.indimmediate AS is_immediate, i.indisvalid AS is_valid, i.indpred IS NOT NULL AS is_partial,
  i.indexprs IS NOT NULL AS has_expressions, i.indrelid = %(oid)s::oid AS is_own, i.indnullsnotdistinct AS is_strict,
  EXISTS (
    SELECT FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
    JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[k]
    WHERE NOT o.opcdefault OR EXISTS ( -- a type accepts the default class of another type, such as citext that of text
      SELECT FROM pg_catalog.pg_opclass d
      WHERE d.opcmethod = o.opcmethod AND d.opcintype = a.atttypid AND d.opcdefault AND d.oid <> o.oid
    ) OR (i.indcollation[k] <> a.attcollation AND EXISTS (
      SELECT FROM pg_catalog.pg_collation l WHERE l.oid IN (i.indcollation[k], a.attcollation) AND NOT l.collisdeterministic
    ))
  ) AS compares_otherwise,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE k.place <= i.indnkeyatts ORDER BY k.place
  ) AS columns,
  ARRAY(
    SELECT pg_catalog.format('OPERATOR(%%I.%%s)', s.nspname, e.oprname) FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
    JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[k]
    JOIN pg_catalog.pg_amop p ON p.amopfamily = o.opcfamily AND p.amoplefttype = o.opcintype
      AND p.amoprighttype = o.opcintype AND p.amopstrategy = 3 -- a B-tree's strategy for equality
    JOIN pg_catalog.pg_operator e ON e.oid = p.amopopr JOIN pg_catalog.pg_namespace s ON s.oid = e.oprnamespace
    WHERE m.amname = 'btree' ORDER BY k
  ) AS equals,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY k.place
  ) AS stored,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND EXISTS (
      SELECT FROM pg_catalog.pg_depend p WHERE p.classid = 'pg_catalog.pg_class'::regclass::oid AND p.objid = i.indexrelid
      AND p.refclassid = 'pg_catalog.pg_class'::regclass::oid AND p.refobjid = i.indrelid AND p.refobjsubid = a.attnum
    ) ORDER BY a.attnum
  ) AS sources,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum IN (
      SELECT found[1]::int FROM pg_catalog.regexp_matches(i.indexprs::text, ':varattno (\d+)', 'g') found
    ) ORDER BY a.attnum
  ) AS expression_columns,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum IN (
      SELECT found[1]::int FROM pg_catalog.regexp_matches(i.indpred::text, ':varattno (\d+)', 'g') found
    ) ORDER BY a.attnum
  ) AS predicate,
  COALESCE(i.indpred::text ~ '\{(?!(VAR|CONST|BOOLEXPR|NULLTEST|BOOLEANTEST)\y)', false) AS has_fallible_predicate,
  m.amname = 'brin' AND EXISTS (
    SELECT FROM pg_catalog.unnest(i.indclass::oid[]) k(oid) JOIN pg_catalog.pg_opclass o USING (oid)
    JOIN pg_catalog.pg_amproc f ON f.amprocfamily = o.opcfamily AND f.amprocnum = 1
    WHERE f.amproc::oid <> 'pg_catalog.brin_bloom_opcinfo'::regproc::oid -- a Bloom filter has a fixed size
  ) AS has_extremes,
  CASE WHEN %(locked)s THEN pg_catalog.substr(pg_catalog.pg_get_indexdef(i.indexrelid), pg_catalog.length(
    'CREATE ' || CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX '
    || pg_catalog.quote_ident(x.relname) || ' ON '
    || CASE WHEN x.relkind = 'I' THEN 'ONLY ' ELSE '' END
    || pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) || ' USING '
  ) + 1) ELSE '' END AS definition
FROM tree JOIN pg_catalog.pg_index i ON i.indrelid = tree.oid AND i.indislive
  AND (i.indrelid = %(oid)s::oid OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid))
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = x.relam
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY i.indrelid <> %(oid)s::oid, 1
"""
CONSTRAINTS: Final = """
SELECT k.contype::text AS kind, pg_catalog.quote_ident(k.conname) AS name, k.conrelid::regclass::text AS table,
  k.conrelid::int8 AS table_oid,
  CASE WHEN %(locked)s THEN pg_catalog.pg_get_constraintdef(k.oid) ELSE '' END AS definition,
  coalesce((pg_catalog.to_jsonb(k) ->> 'conenforced'::text)::bool, true) AS is_enforced, -- PostgreSQL 18 has the column
  k.convalidated AS is_valid, (k.coninhcount > 0 OR k.conparentid <> 0::oid) AS is_inherited,
  ARRAY(
    SELECT a.attname::text FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY c(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.number ORDER BY c.place
  ) AS columns
FROM tree JOIN pg_catalog.pg_constraint k ON k.conrelid = tree.oid
WHERE k.contype IN ('c', 'f', 'x', 't') OR (k.contype = 'n' AND NOT k.convalidated) -- PostgreSQL 18 has NOT NULL NOT VALID
ORDER BY k.conrelid <> %(oid)s::oid, 2, 3
"""
#: The triggers that fire in this session. If a partition has a copy of its parent's trigger, the query omits the copy, unless
#: only the copy fires: ``ALTER TABLE ONLY parent DISABLE TRIGGER`` leaves the copies enabled.
#:
#: The query omits pg_repack's trigger (``repack.repack_trigger`` in its repack.sql.in). The trigger only copies each change to
#: a log. The table that replaces this one receives its rows from that log.
TRIGGERS: Final = f"""
, fired AS (
  SELECT t.oid, t.tgparentid, t.tgrelid, t.tgname, t.tgtype
  FROM tree JOIN pg_catalog.pg_trigger t ON t.tgrelid = tree.oid
  JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid JOIN pg_catalog.pg_namespace s ON s.oid = f.pronamespace
  WHERE NOT t.tgisinternal
  AND (s.nspname, f.proname) <> ('repack', 'repack_trigger')
  AND t.tgenabled::text IN ({_STATES})
)
SELECT pg_catalog.quote_ident(t.tgname) AS name, t.tgrelid::regclass::text AS table, t.tgtype AS events
FROM fired t WHERE NOT EXISTS (SELECT FROM fired p WHERE p.oid = t.tgparentid)
ORDER BY t.tgrelid <> %(oid)s::oid, 1, 2
"""  # noqa: S608 - a constant
