-- What analysts send. A paragraph is a statement; `{FILES}` is a folder of the warehouse's own.
-- Paragraphs that begin with `-- setup` write; those with `-- runs` are only run; all others have to give the rows that bare
-- DuckDB gives on the same data.

-- setup
CREATE SCHEMA lake.shop

-- setup
CREATE TABLE lake.shop.region AS
SELECT i::INTEGER AS r_regionkey, ['AFRICA', 'AMERICA', 'ASIA', 'EUROPE', 'MIDDLE EAST'][i + 1] AS r_name, 'region ' || i AS r_comment FROM range(5) t(i)

-- setup
CREATE TABLE lake.shop.nation AS
SELECT i::INTEGER AS n_nationkey, ['ALGERIA', 'ARGENTINA', 'BRAZIL', 'CANADA', 'EGYPT', 'ETHIOPIA', 'FRANCE', 'GERMANY', 'INDIA', 'INDONESIA', 'IRAN', 'IRAQ', 'JAPAN', 'JORDAN', 'KENYA', 'MOROCCO', 'MOZAMBIQUE', 'PERU', 'CHINA', 'ROMANIA', 'SAUDI ARABIA', 'VIETNAM', 'RUSSIA', 'UNITED KINGDOM', 'UNITED STATES'][i + 1] AS n_name,
       [0, 1, 1, 1, 4, 0, 3, 3, 2, 2, 4, 4, 2, 4, 0, 0, 0, 1, 2, 3, 4, 2, 3, 3, 1][i + 1]::INTEGER AS n_regionkey, 'nation ' || i AS n_comment
FROM range(25) t(i)

-- setup
CREATE TABLE lake.shop.supplier AS
SELECT i::INTEGER AS s_suppkey, format('Supplier#{:09d}', i) AS s_name, 'address ' || i * 7 % 13 AS s_address, (i * 11 % 25)::INTEGER AS s_nationkey,
       format('{}-555-{:04d}', 10 + i * 11 % 25, i) AS s_phone, ((i * 7919 % 1100000) / 100 - 1000)::DECIMAL(15, 2) AS s_acctbal,
       CASE WHEN i % 9 = 0 THEN 'slow Customer has many Complaints' ELSE 'fine' END AS s_comment
FROM range(1, 101) t(i)

-- setup
CREATE TABLE lake.shop.customer AS
SELECT i::INTEGER AS c_custkey, format('Customer#{:09d}', i) AS c_name, 'street ' || i AS c_address, (i * 7 % 25)::INTEGER AS c_nationkey,
       format('{}-555-{:04d}', 10 + i * 7 % 25, i) AS c_phone, ((i * 6151 % 1100000) / 100 - 1000)::DECIMAL(15, 2) AS c_acctbal,
       ['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'HOUSEHOLD', 'MACHINERY'][1 + i * 3 % 5] AS c_mktsegment, 'c' || i AS c_comment
FROM range(1, 301) t(i)

-- setup
CREATE TABLE lake.shop.part AS
SELECT i::INTEGER AS p_partkey, ['green', 'forest', 'antique', 'blue'][1 + i % 4] || ' part ' || i AS p_name, 'Manufacturer#' || 1 + i % 5 AS p_mfgr,
       format('Brand#{}{}', 1 + i % 5, 1 + i % 4) AS p_brand, ['PROMO BURNISHED COPPER', 'ECONOMY ANODIZED STEEL', 'MEDIUM POLISHED BRASS', 'STANDARD PLATED TIN', 'SMALL BRUSHED BRASS'][1 + i * 3 % 5] AS p_type,
       (1 + i * 7 % 50)::INTEGER AS p_size, ['SM CASE', 'MED BOX', 'LG CASE', 'JUMBO PKG', 'MED BAG'][1 + i % 5] AS p_container, (900 + i % 200 + 0.5)::DECIMAL(15, 2) AS p_retailprice, 'p' || i AS p_comment
FROM range(1, 401) t(i)

-- setup
CREATE TABLE lake.shop.partsupp AS
SELECT p::INTEGER AS ps_partkey, (1 + (p * 3 + s * 29) % 100)::INTEGER AS ps_suppkey, (1 + (p * 37 + s) % 9999)::INTEGER AS ps_availqty,
       ((1 + (p * 17 + s * 7) % 999) + 0.25)::DECIMAL(15, 2) AS ps_supplycost, 'ps' AS ps_comment
FROM range(1, 401) a(p), range(4) b(s)

-- setup
CREATE TABLE lake.shop.orders AS
SELECT i::INTEGER AS o_orderkey, (1 + i * 13 % 250)::INTEGER AS o_custkey, ['F', 'O', 'P'][1 + i % 3] AS o_orderstatus, ((i * 9973 % 40000000) / 100)::DECIMAL(15, 2) AS o_totalprice,
       (DATE '1992-01-01' + (i * 17 % 2400)::INTEGER) AS o_orderdate, ['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW'][1 + i * 7 % 5] AS o_orderpriority,
       format('Clerk#{:09d}', i % 50) AS o_clerk, 0::INTEGER AS o_shippriority, CASE WHEN i % 11 = 0 THEN 'special packages requests' ELSE 'o' || i END AS o_comment
FROM range(1, 3001) t(i)

-- setup
CREATE TABLE lake.shop.lineitem AS
SELECT o_orderkey AS l_orderkey, (1 + (o_orderkey * 7 + n * 31) % 400)::INTEGER AS l_partkey, (1 + (((o_orderkey * 7 + n * 31) % 400 + 1) * 3 + n * 29) % 100)::INTEGER AS l_suppkey, (n + 1)::INTEGER AS l_linenumber,
       (1 + (o_orderkey * 3 + n * 7) % 50)::DECIMAL(15, 2) AS l_quantity, ((1 + (o_orderkey * 3 + n * 7) % 50) * (900 + (o_orderkey + n) % 200))::DECIMAL(15, 2) AS l_extendedprice,
       ((o_orderkey + n) % 11 / 100)::DECIMAL(15, 2) AS l_discount, ((o_orderkey + n * 3) % 9 / 100)::DECIMAL(15, 2) AS l_tax, ['A', 'N', 'R'][1 + (o_orderkey + n)::INTEGER % 3] AS l_returnflag, ['F', 'O'][1 + o_orderkey % 2] AS l_linestatus,
       (o_orderdate + (1 + (o_orderkey + n * 13) % 121)::INTEGER) AS l_shipdate, (o_orderdate + (30 + (o_orderkey * 5 + n) % 61)::INTEGER) AS l_commitdate, (o_orderdate + (2 + (o_orderkey * 3 + n * 11) % 130)::INTEGER) AS l_receiptdate,
       ['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'][1 + (o_orderkey + n)::INTEGER % 4] AS l_shipinstruct, ['AIR', 'AIR REG', 'MAIL', 'SHIP', 'TRUCK', 'RAIL', 'FOB'][1 + (o_orderkey * 2 + n)::INTEGER % 7] AS l_shipmode, 'l' AS l_comment
FROM lake.shop.orders, range(4) t(n)

-- setup
CREATE TABLE lake.shop.events AS
SELECT i::BIGINT AS id, TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i * 37) MINUTE AS ts, 'user-' || i % 40 AS "user", ['view', 'click', 'buy'][1 + i % 3] AS kind,
       format('{{"page": "/p/{}", "ms": {}, "tags": ["t{}", "t{}"], "at": {{"lat": {}.5}}}}', i % 7, i * 13 % 900, i % 5, i % 3, i % 90) AS payload,
       [i % 5, i % 7, i % 11] AS steps, {'os': ['linux', 'mac', 'win'][1 + i % 3], 'major': i % 4} AS device, i % 10 = 0 AS bot, CASE WHEN i % 6 = 0 THEN NULL ELSE i * 1.5 END AS amount,
       'enable_logging(''' || i || ''')' AS query, i % 4 AS write_log, 'x' AS duckdb_secrets, i % 3 AS "order", 'Ünï ' || i AS "Straße"
FROM range(1000) t(i)

-- TPC-H 1
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price, sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM shop.lineitem WHERE l_shipdate <= CAST('1998-09-02' AS date) GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus

-- TPC-H 2
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment FROM shop.part, shop.supplier, shop.partsupp, shop.nation, shop.region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_type LIKE '%BRASS' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
  AND ps_supplycost = (SELECT min(ps_supplycost) FROM shop.partsupp, shop.supplier, shop.nation, shop.region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100

-- TPC-H 3
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority FROM shop.customer, shop.orders, shop.lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate < CAST('1995-03-15' AS date) AND l_shipdate > CAST('1995-03-15' AS date)
GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10

-- TPC-H 4
SELECT o_orderpriority, count(*) AS order_count FROM shop.orders WHERE o_orderdate >= CAST('1993-07-01' AS date) AND o_orderdate < CAST('1993-10-01' AS date)
  AND EXISTS (SELECT * FROM shop.lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority ORDER BY o_orderpriority

-- TPC-H 5
SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue FROM shop.customer, shop.orders, shop.lineitem, shop.supplier, shop.nation, shop.region
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
GROUP BY n_name ORDER BY revenue DESC, n_name

-- TPC-H 6
SELECT sum(l_extendedprice * l_discount) AS revenue FROM shop.lineitem WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL 1 YEAR AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24

-- TPC-H 7
SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (
  SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(year FROM l_shipdate) AS l_year, l_extendedprice * (1 - l_discount) AS volume
  FROM shop.supplier, shop.lineitem, shop.orders, shop.customer, shop.nation n1, shop.nation n2
  WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
    AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE')) AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31') AS shipping
GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year

-- TPC-H 8
SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share FROM (
  SELECT extract(year FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume, n2.n_name AS nation
  FROM shop.part, shop.supplier, shop.lineitem, shop.orders, shop.customer, shop.nation n1, shop.nation n2, shop.region
  WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31' AND p_type = 'ECONOMY ANODIZED STEEL') AS all_nations
GROUP BY o_year ORDER BY o_year

-- TPC-H 9
SELECT nation, o_year, sum(amount) AS sum_profit FROM (
  SELECT n_name AS nation, extract(year FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
  FROM shop.part, shop.supplier, shop.lineitem, shop.partsupp, shop.orders, shop.nation
  WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit
GROUP BY nation, o_year ORDER BY nation, o_year DESC

-- TPC-H 10
SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment FROM shop.customer, shop.orders, shop.lineitem, shop.nation
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment ORDER BY revenue DESC, c_custkey LIMIT 20

-- TPC-H 11
SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM shop.partsupp, shop.supplier, shop.nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
GROUP BY ps_partkey HAVING sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) * 0.0001 FROM shop.partsupp, shop.supplier, shop.nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY') ORDER BY value DESC, ps_partkey

-- TPC-H 12
SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count
FROM shop.orders, shop.lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01' GROUP BY l_shipmode ORDER BY l_shipmode

-- TPC-H 13
SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) FROM shop.customer LEFT OUTER JOIN shop.orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey) AS c_orders (c_custkey, c_count) GROUP BY c_count ORDER BY custdist DESC, c_count DESC

-- TPC-H 14
SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END) / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue FROM shop.lineitem, shop.part WHERE l_partkey = p_partkey AND l_shipdate >= date '1995-09-01' AND l_shipdate < CAST('1995-10-01' AS date)

-- TPC-H 15
WITH revenue AS (SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total_revenue FROM shop.lineitem WHERE l_shipdate >= CAST('1996-01-01' AS date) AND l_shipdate < CAST('1996-04-01' AS date) GROUP BY supplier_no)
SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM shop.supplier, revenue WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey

-- TPC-H 16
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM shop.partsupp, shop.part WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
  AND ps_suppkey NOT IN (SELECT s_suppkey FROM shop.supplier WHERE s_comment LIKE '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size

-- TPC-H 17
SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM shop.lineitem, shop.part WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX' AND l_quantity < (SELECT 0.9 * avg(l_quantity) FROM shop.lineitem WHERE l_partkey = p_partkey)

-- TPC-H 18
SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) FROM shop.customer, shop.orders, shop.lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM shop.lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 150) AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100

-- TPC-H 19
SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM shop.lineitem, shop.part
WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') AND l_quantity >= 1 AND l_quantity <= 11 AND p_size BETWEEN 1 AND 50 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
   OR (p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') AND l_quantity >= 10 AND l_quantity <= 20 AND p_size BETWEEN 1 AND 50 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')

-- TPC-H 20
SELECT s_name, s_address FROM shop.supplier, shop.nation WHERE s_suppkey IN (SELECT ps_suppkey FROM shop.partsupp WHERE ps_partkey IN (SELECT p_partkey FROM shop.part WHERE p_name LIKE 'forest%')
  AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM shop.lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= CAST('1994-01-01' AS date) AND l_shipdate < CAST('1995-01-01' AS date))) AND s_nationkey = n_nationkey AND n_name = 'CANADA' ORDER BY s_name

-- TPC-H 21
SELECT s_name, count(*) AS numwait FROM shop.supplier, shop.lineitem l1, shop.orders, shop.nation WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate
  AND EXISTS (SELECT * FROM shop.lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey) AND NOT EXISTS (SELECT * FROM shop.lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate)
  AND s_nationkey = n_nationkey GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100

-- TPC-H 22
SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (SELECT substring(c_phone FROM 1 FOR 2) AS cntrycode, c_acctbal FROM shop.customer WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')
  AND c_acctbal > (SELECT avg(c_acctbal) FROM shop.customer WHERE c_acctbal > 0.00) AND NOT EXISTS (SELECT * FROM shop.orders WHERE o_custkey = c_custkey)) AS custsale GROUP BY cntrycode ORDER BY cntrycode

SELECT 42

SELECT 1 AS one, 'two' AS "2", NULL AS nothing, true, 1.5, 1e3, -7, 0x10, 1_000_000, DATE '2026-02-03', INTERVAL 3 DAY

FROM shop.region

TABLE shop.region

VALUES (1, 'a'), (2, 'b'), (3, NULL)

FROM shop.region SELECT r_name, length(r_name) ORDER BY ALL

SELECT DISTINCT kind FROM shop.events ORDER BY 1

SELECT DISTINCT ON (kind) kind, id FROM shop.events ORDER BY kind, id

SELECT * EXCLUDE (payload, device, steps) REPLACE (upper(kind) AS kind) FROM shop.events ORDER BY id LIMIT 5

SELECT * LIKE 'r_%' FROM shop.region

SELECT COLUMNS('^o_.*key$') FROM shop.orders ORDER BY ALL LIMIT 5

SELECT max(COLUMNS(* EXCLUDE (o_comment))) FROM shop.orders

SELECT COLUMNS(c -> c LIKE 'n_n%') FROM shop.nation ORDER BY ALL

SELECT query, write_log, duckdb_secrets, "order", "Straße", "user" FROM shop.events ORDER BY id LIMIT 3

SELECT events.query AS enable_logging, e.write_log AS which_secret FROM shop.events, shop.events e WHERE events.id = e.id AND e.id < 3 ORDER BY ALL

SELECT count(*) FROM shop.events WHERE query LIKE 'enable_logging(%' AND query NOT LIKE '%duckdb_logs()%'

SELECT 'ATTACH ''x''; DROP TABLE t; -- no' AS text, $$ COPY t TO 's3://x' $$ AS other, $q$ $$ $q$ AS third, E'a\'b\n' AS fourth, 'a'
  'b' AS fifth WHERE false OR true

SELECT 1 -- enable_logging('HTTP')
     + 2 /* write_log('x') /* nested */ duckdb_secrets() */ AS three

WITH enable_logging AS (SELECT 1 AS x), write_log AS MATERIALIZED (SELECT 2 AS y) SELECT enable_logging.x, y FROM enable_logging, write_log

WITH RECURSIVE fib(n, a, b) AS (SELECT 1, 0, 1 UNION ALL SELECT n + 1, b, a + b FROM fib WHERE n < 20) SELECT n, a FROM fib ORDER BY n

WITH RECURSIVE tree(id, parent, path) AS (SELECT 1, NULL::INTEGER, [1] UNION ALL SELECT t.id * 2 + s, t.id, list_append(path, t.id * 2 + s) FROM tree t, (VALUES (0), (1)) v(s) WHERE t.id < 8) SELECT * FROM tree ORDER BY id

WITH RECURSIVE t(x) AS (SELECT 1 UNION SELECT x % 5 + 1 FROM t) SELECT * FROM t ORDER BY x

WITH a AS NOT MATERIALIZED (FROM shop.region), b AS (SELECT count(*) AS n FROM a) SELECT a.r_name, b.n FROM a, b ORDER BY 1

SELECT kind, count(*) FILTER (bot) AS bots, count(*) FILTER (WHERE NOT bot) AS people FROM shop.events GROUP BY ALL ORDER BY ALL

SELECT kind, bot, sum(amount) FROM shop.events GROUP BY GROUPING SETS ((kind, bot), (kind), ()) ORDER BY ALL

SELECT kind, bot, grouping(kind, bot) AS g, count(*) FROM shop.events GROUP BY ROLLUP (kind, bot) ORDER BY ALL

SELECT kind, device.os, count(*) FROM shop.events GROUP BY CUBE (kind, device.os) ORDER BY ALL

SELECT "user", sum(amount) AS total FROM shop.events GROUP BY "user" HAVING sum(amount) > 15000 ORDER BY total DESC, 1

SELECT kind, string_agg("user", ',' ORDER BY id) FROM shop.events WHERE id < 12 GROUP BY kind ORDER BY kind

SELECT kind, list(id ORDER BY id DESC)[1:3], array_agg(DISTINCT bot ORDER BY bot), first(id ORDER BY id), last(id ORDER BY id) FROM shop.events GROUP BY kind ORDER BY kind

SELECT median(amount), quantile_cont(amount, 0.9), quantile_disc(amount, [0.1, 0.5]), mode(kind), mad(amount), entropy(kind) FROM shop.events

SELECT round(stddev(amount), 6), round(var_pop(amount), 6), round(corr(id, amount), 6), round(regr_slope(amount, id), 6), round(skewness(amount), 6), round(kurtosis(amount), 6) FROM shop.events

SELECT arg_max(id, amount), arg_min(id, amount), max_by(kind, id), min(amount, 3), max(id, 2), any_value(kind) IS NOT NULL, bool_or(bot), bit_xor(id), product(1 + id % 2) FROM shop.events WHERE id < 40

SELECT approx_count_distinct("user") BETWEEN 35 AND 45, count(DISTINCT "user"), count(DISTINCT (kind, bot)) FROM shop.events

SELECT histogram(kind), histogram(id, [100, 500]) FROM shop.events

SELECT id, row_number() OVER w, rank() OVER w, dense_rank() OVER w, percent_rank() OVER w, cume_dist() OVER w, ntile(4) OVER w FROM shop.events WHERE id < 20 WINDOW w AS (PARTITION BY kind ORDER BY id) ORDER BY id

SELECT id, lag(id) OVER (ORDER BY id), lead(id, 2, -1) OVER (ORDER BY id), first_value(id) OVER (PARTITION BY kind ORDER BY id), nth_value(id, 2) OVER (PARTITION BY kind ORDER BY id) FROM shop.events WHERE id < 20 ORDER BY id

SELECT id, sum(amount) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), avg(amount) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 2 HOUR PRECEDING AND INTERVAL 1 HOUR FOLLOWING), count(*) OVER (ORDER BY id GROUPS 1 PRECEDING EXCLUDE CURRENT ROW) FROM shop.events WHERE id < 30 ORDER BY id

SELECT id, last_value(amount IGNORE NULLS) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING), sum(DISTINCT write_log) OVER (PARTITION BY kind) FROM shop.events WHERE id < 20 ORDER BY id

SELECT kind, id, amount FROM shop.events QUALIFY row_number() OVER (PARTITION BY kind ORDER BY amount DESC NULLS LAST, id) <= 2 ORDER BY ALL

SELECT o_orderkey, o_totalprice FROM shop.orders QUALIFY o_totalprice > 3 * avg(o_totalprice) OVER () OR o_orderkey < 3 ORDER BY 1

SELECT e.id, p.price FROM (SELECT id, ts FROM shop.events WHERE id < 12) e ASOF JOIN (SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) HOUR AS ts, i AS price FROM range(9) t(i)) p ON e.ts >= p.ts ORDER BY e.id

SELECT e.id, p.price FROM (SELECT id, ts FROM shop.events WHERE id < 12) e ASOF LEFT JOIN (SELECT TIMESTAMPTZ '2026-01-01 02:00:00+00' + INTERVAL (i) HOUR AS ts, i AS price FROM range(3) t(i)) p USING (ts) ORDER BY e.id

SELECT a.r_name, b.n FROM shop.region a LEFT JOIN (SELECT n_regionkey, count(*) AS n FROM shop.nation GROUP BY 1) b ON a.r_regionkey = b.n_regionkey ORDER BY 1

SELECT r_name, n_name FROM shop.region FULL OUTER JOIN shop.nation ON r_regionkey = n_regionkey AND n_nationkey < 5 ORDER BY ALL

SELECT r_name FROM shop.region SEMI JOIN shop.nation ON r_regionkey = n_regionkey ORDER BY 1

SELECT n_name FROM shop.nation ANTI JOIN shop.supplier ON n_nationkey = s_nationkey ORDER BY 1

SELECT a.i, b.j FROM (SELECT unnest([1, 2, 3]) AS i) a POSITIONAL JOIN (SELECT unnest(['x', 'y']) AS j) b

SELECT a.i, b.j FROM range(3) a(i) CROSS JOIN range(2) b(j) ORDER BY ALL

SELECT * FROM shop.region NATURAL JOIN (SELECT 1 AS r_regionkey)

SELECT r.r_name, x.n_name FROM shop.region r, LATERAL (SELECT n_name FROM shop.nation WHERE n_regionkey = r.r_regionkey ORDER BY n_name LIMIT 2) x ORDER BY ALL

SELECT r_name, (SELECT count(*) FROM shop.nation WHERE n_regionkey = r_regionkey) AS nations, r_regionkey IN (SELECT n_regionkey FROM shop.nation) AS some, 5 > ALL (SELECT n_regionkey FROM shop.nation) FROM shop.region ORDER BY 1

SELECT id FROM shop.events WHERE (kind, bot) IN (('buy', true), ('view', true)) ORDER BY id LIMIT 5

SELECT 1 AS a UNION SELECT 1 UNION ALL SELECT 2 EXCEPT SELECT 3 ORDER BY 1

SELECT unnest([1, 1, 2, 3]) INTERSECT ALL SELECT unnest([1, 1, 3]) ORDER BY 1

SELECT 1 AS a, 2 AS b UNION BY NAME SELECT 3 AS b, 4 AS c ORDER BY ALL

(SELECT 1 AS x ORDER BY 1 LIMIT 1) UNION ALL (SELECT 2) ORDER BY 1 DESC

PIVOT shop.events ON kind USING count(*) GROUP BY bot ORDER BY bot

PIVOT shop.events ON kind IN ('view', 'buy') USING sum(amount) AS total, count(*) AS n GROUP BY "order" ORDER BY "order"

FROM (SELECT kind, bot, id FROM shop.events) PIVOT (max(id) FOR kind IN ('view', 'click') GROUP BY bot) ORDER BY bot

UNPIVOT (SELECT r_regionkey, r_name, r_comment FROM shop.region) ON r_name, r_comment INTO NAME field VALUE said ORDER BY ALL

FROM (SELECT 1 AS id, 2 AS q1, 3 AS q2, 4 AS q3) UNPIVOT (amount FOR quarter IN (q1, q2, q3)) ORDER BY quarter

WITH p AS (PIVOT (SELECT n_regionkey, left(n_name, 1) AS letter FROM shop.nation) ON n_regionkey IN (0, 1) USING count(*) GROUP BY letter) SELECT * FROM p ORDER BY ALL

SELECT payload::JSON->>'page' AS page, (payload->>'$.ms')::INTEGER AS ms, payload->'tags'->>0 AS tag, json_extract(payload, '$.at.lat') AS lat, (payload::JSON).at.lat AS dotted FROM shop.events ORDER BY id LIMIT 5

SELECT json_type(payload), json_keys(payload), json_array_length(payload, '$.tags'), json_valid(payload), json_exists(payload, '$.ms'), json_contains(payload, '"t1"') FROM shop.events ORDER BY id LIMIT 5

SELECT sum((payload->>'ms')::INTEGER) AS ms, payload->>'$.tags[0]' AS tag FROM shop.events GROUP BY tag ORDER BY tag

SELECT j.key, j.value, j.type FROM (SELECT payload FROM shop.events WHERE id = 3) e, json_each(e.payload) j ORDER BY j.key

SELECT t.fullkey, t.atom FROM json_tree('{"a": [1, {"b": 2}], "c": null}') t ORDER BY t.fullkey

SELECT json_object('a', 1, 'b', [1, 2]), json_array(1, 'x', NULL), to_json({'a': [1, 2]}), json_quote('x'), json_group_array(i), json_group_object('k' || i, i), json_merge_patch('{"a": 1}', '{"b": 2}'), json_pretty('{"a":1}') FROM range(3) t(i)

SELECT from_json(payload, '{"page": "VARCHAR", "ms": "INTEGER", "tags": ["VARCHAR"]}') AS s FROM shop.events ORDER BY id LIMIT 3

SELECT json_structure(payload), json_transform(payload, '{"ms": "INTEGER"}').ms, json_serialize_sql('SELECT 1') LIKE '%SELECT_NODE%' FROM shop.events ORDER BY id LIMIT 2

SELECT list_transform(steps, x -> x * 2), list_filter(steps, lambda x: x > 2), list_reduce(steps, lambda a, b: a + b), [x + 1 FOR x IN steps IF x > 1], list_sort(steps, 'DESC') FROM shop.events ORDER BY id LIMIT 5

SELECT list_transform([1, 2, 3], lambda x, i: x * i), list_transform([[1, 2], [3]], lambda l: list_sum(list_transform(l, lambda v: v + 1)))

SELECT id, unnest(steps) AS step, generate_subscripts(steps, 1) AS i FROM shop.events WHERE id < 3 ORDER BY ALL

SELECT e.id, s.step FROM shop.events e, unnest(e.steps) AS s(step) WHERE e.id < 3 ORDER BY ALL

SELECT steps[1], steps[-1], steps[1:2], len(steps), list_contains(steps, 3), list_distinct(steps), list_aggregate(steps, 'max'), list_zip(steps, ['a', 'b', 'c'])::VARCHAR, flatten([steps, steps]), array_to_string(steps, '-') FROM shop.events ORDER BY id LIMIT 4

SELECT device.os, device['major'], struct_pack(a := 1, b := device.os), struct_insert(device, x := 1), row(1, 'a')::VARCHAR, {'k': {'n': id}}.k.n, struct_extract(device, 'os') FROM shop.events ORDER BY id LIMIT 4

SELECT unnest(device) FROM shop.events ORDER BY id LIMIT 3

SELECT MAP {'a': 1, 'b': 2}['a'] AS v, map_keys(MAP {'x': 1}), map_values(map([1, 2], ['p', 'q'])), map_entries(MAP {'k': 3}), cardinality(MAP {'a': 1}), map_from_entries([('a', 1)]), element_at(MAP {'a': 1}, 'a')

SELECT union_value(n := 1)::VARCHAR, [1, 2, 3]::INTEGER[3], array_cosine_similarity([1, 2]::FLOAT[2], [2, 4]::FLOAT[2]), list_dot_product([1.0, 2.0], [3.0, 4.0])

SELECT upper('a'), lower('B'), length('abc'), reverse('abc'), trim('  x '), ltrim('xxa', 'x'), rpad('a', 3, '-'), lpad('1', 3, '0'), replace('aXa', 'X', '-'), substring('hello', 2, 3), left('hello', 2), right('hello', 2), repeat('ab', 3), split('a,b', ','), concat_ws('-', 'a', NULL, 'b'), position('l' IN 'hello'), starts_with('abc', 'ab'), contains('abc', 'b'), chr(65), ascii('A'), strip_accents('é'), translate('abc', 'ab', 'xy')

SELECT format('{} has {:.2f} and {:>5}', 'x', 3.14159, 7), printf('%05d %s', 42, 'y'), 'a' || 1 || true, bar(5, 0, 10, 10), md5('x'), sha256('x'), hash(1) = hash(1), base64('abc'::BLOB), from_base64('YWJj'), hex('abc'), unhex('616263'), url_encode('a b'), url_decode('a%20b'), format_bytes(1234567)

SELECT levenshtein('duck', 'dusk'), jaccard('duck', 'luck'), jaro_winkler_similarity('duck', 'dusk'), hamming('duck', 'dusk'), damerau_levenshtein('ab', 'ba'), editdist3('a', 'b')

SELECT regexp_matches(query, '^enable_logging\(.\d+.\)$'), regexp_extract(query, '(\d+)', 1)::INTEGER, regexp_replace(query, '[^a-z]', '', 'g'), regexp_extract(query, '([a-z]+)_([a-z]+)', ['first', 'second']), regexp_split_to_array('a1b22c', '\d+'), regexp_extract_all('a1b22', '\d+'), query ~ '.*log.*', query SIMILAR TO 'en%|en.*' FROM shop.events ORDER BY id LIMIT 3

SELECT 'Hello' LIKE 'h%', 'Hello' ILIKE 'h%', 'a_b' LIKE 'a\_b' ESCAPE '\', 'abc' GLOB 'a*', 'x' NOT LIKE 'y', 'a' < 'b' COLLATE NOCASE, 'É' = 'e' COLLATE NOCASE.NOACCENT

SELECT year(ts), month(ts), dayname(ts), date_trunc('week', ts), extract(epoch FROM ts), date_part('doy', ts), strftime(ts, '%Y-%m-%d %H:%M'), ts::DATE, ts + INTERVAL '1 month 2 days', ts AT TIME ZONE 'Europe/Madrid', time_bucket(INTERVAL 6 HOUR, ts), epoch_ms(ts) FROM shop.events ORDER BY id LIMIT 5

SELECT date_diff('day', DATE '2026-01-01', DATE '2026-03-01'), datediff('month', DATE '2025-12-31', DATE '2026-01-01'), age(TIMESTAMP '2026-03-01', TIMESTAMP '2025-01-15'), last_day(DATE '2024-02-01'), make_date(2026, 2, 3), make_timestamp(2026, 1, 2, 3, 4, 5.5), strptime('03/02/2026', '%d/%m/%Y'), try_strptime('x', '%Y'), to_timestamp(0), DATE '2026-01-31' + INTERVAL 1 MONTH, isodow(DATE '2026-01-01'), weekofyear(DATE '2026-01-01'), quarter(DATE '2026-05-01'), date_sub('hour', TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-02'), to_days(3), epoch(INTERVAL 1 HOUR)

SELECT generate_series::DATE AS day FROM generate_series(TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-07', INTERVAL 2 DAY)

SELECT unnest(generate_series(DATE '2026-01-29', DATE '2026-02-02', INTERVAL 1 DAY)) AS day

-- runs
SELECT now(), current_date, current_timestamp, today(), localtimestamp, get_current_timestamp(), current_time IS NOT NULL

-- runs
SELECT current_setting('TimeZone'), current_schema(), current_database(), current_user, version(), current_catalog()

SELECT abs(-1), ceil(1.2), floor(-1.2), round(2.567, 2), trunc(2.9), sign(-3), mod(7, 3), 7 // 2, 7 % 3, 2 ** 10, power(2, 0.5), sqrt(16), cbrt(27), exp(1), ln(10), log10(100), log2(8), pi(), sin(1), atan2(1, 2), gcd(12, 18), lcm(4, 6), factorial(10), greatest(1, 3, 2), least(1, 3), even(3), isnan('nan'::DOUBLE), nextafter(1.0::DOUBLE, 2), bit_count(7), xor(5, 1), 5 & 3, 5 | 3, 1 << 4, ~5, @(-8), 5!

SELECT CAST('12' AS INTEGER), '1.5'::DECIMAL(5, 2), TRY_CAST('x' AS INTEGER), 3::VARCHAR, 'true'::BOOLEAN, '2026-01-01'::DATE, 1::BIGINT::DOUBLE, '{"a": 1}'::JSON, '[1, 2]'::INTEGER[], '{''a'': 1}'::STRUCT(a INTEGER), 'abc'::BLOB, '0101'::BIT, typeof(1), 1::UTINYINT, '00000000-0000-0000-0000-000000000001'::UUID, 170141183460469231731687303715884105727::HUGEINT

SELECT CASE WHEN amount IS NULL THEN 'none' WHEN amount > 700 THEN 'much' ELSE 'some' END AS c, CASE kind WHEN 'buy' THEN 1 ELSE 0 END AS b, coalesce(amount, -1), nullif(kind, 'buy'), ifnull(amount, 0), if(bot, 'b', 'h'), amount IS DISTINCT FROM 3, amount IS NOT NULL FROM shop.events ORDER BY id LIMIT 8

SELECT id FROM shop.events WHERE amount BETWEEN 10 AND 20 AND NOT bot AND kind IN ('view', 'click') OR id = 999 ORDER BY id

SELECT id, amount FROM shop.events ORDER BY amount DESC NULLS LAST, id ASC LIMIT 3 OFFSET 2

SELECT id FROM shop.events ORDER BY id LIMIT 1%

SELECT * FROM shop.nation ORDER BY n_regionkey, n_name DESC LIMIT (SELECT 3)

-- runs
SELECT * FROM shop.lineitem USING SAMPLE 10 ROWS

-- runs
SELECT count(*) FROM shop.lineitem TABLESAMPLE reservoir(20%) REPEATABLE (42)

-- runs
SELECT avg(l_quantity) FROM shop.lineitem USING SAMPLE 50 PERCENT (bernoulli)

-- runs
SELECT setseed(0.5), random(), uuid(), gen_random_uuid(), uuidv7()

DESCRIBE shop.events

DESCRIBE SELECT id, ts, steps FROM shop.events

SUMMARIZE SELECT r_regionkey, r_name FROM shop.region

-- runs
SUMMARIZE shop.orders

-- runs
SHOW TABLES

-- runs
SHOW ALL TABLES

-- runs
SHOW DATABASES

-- runs
SHOW shop.nation

-- runs
SHOW TABLES FROM lake.shop

-- runs
EXPLAIN SELECT kind, count(*) FROM shop.events GROUP BY kind

-- runs
EXPLAIN ANALYZE SELECT count(*) FROM shop.lineitem WHERE l_quantity > 10

-- runs
EXPLAIN (FORMAT json) FROM shop.region

-- runs
EXPLAIN (ANALYZE, FORMAT json) WITH a AS (SELECT 1) FROM a

-- runs
SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'shop'

-- runs
SELECT table_name FROM information_schema.tables WHERE table_catalog = 'lake' ORDER BY 1

-- runs
SELECT schema_name FROM information_schema.schemata

-- runs
SELECT schema_name, table_name, column_count FROM duckdb_tables() WHERE database_name = 'lake'

-- runs
SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'region'

-- runs
SELECT function_name, description FROM duckdb_functions() WHERE function_name LIKE 'list_%' LIMIT 5

-- runs
SELECT nspname FROM pg_catalog.pg_namespace

-- runs
SELECT c.relname, a.attname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid LIMIT 5

-- runs
SELECT * FROM duckdb_types() LIMIT 3

-- runs
SELECT database_name, readonly FROM duckdb_databases() WHERE NOT internal

-- runs
FROM pragma_table_info('shop.region')

-- runs
SELECT * FROM iceberg_snapshots('lake.shop.region')

-- runs
SELECT content, file_format, record_count FROM iceberg_metadata('lake.shop.region')

-- runs
SELECT count(*) FROM shop.region AT (TIMESTAMP => now())

-- runs
SELECT count(*) FROM lake.shop.region AT (VERSION => {VERSION})

-- runs
CREATE TEMP TABLE scratch AS SELECT kind, count(*) AS n FROM shop.events GROUP BY kind

-- runs
CREATE OR REPLACE TEMPORARY VIEW v AS FROM shop.region

-- runs
CREATE TEMP MACRO double_it(x) AS x * 2

SELECT * FROM read_parquet('{FILES}/sales.parquet') ORDER BY ALL LIMIT 5

SELECT count(*), sum(amount) FROM read_parquet('{FILES}/*.parquet', hive_partitioning = false)

SELECT region, sum(amount) FROM parquet_scan(['{FILES}/sales.parquet', '{FILES}/more.parquet'], union_by_name = true) GROUP BY region ORDER BY region

FROM '{FILES}/sales.parquet' ORDER BY ALL LIMIT 3

SELECT * FROM read_csv('{FILES}/sales.csv', header = true, delim = ',', columns = {'id': 'BIGINT', 'region': 'VARCHAR', 'amount': 'DOUBLE'}, nullstr = '/') ORDER BY ALL LIMIT 5

SELECT region, count(*) FROM read_csv_auto('{FILES}/*.csv') GROUP BY ALL ORDER BY ALL

FROM '{FILES}/sales.csv' ORDER BY ALL LIMIT 3

SELECT * FROM read_json('{FILES}/sales.json') ORDER BY ALL LIMIT 5

SELECT count(*) FROM read_ndjson_auto('{FILES}/sales.json', format = 'newline_delimited')

SELECT json->>'region' AS region FROM read_json_objects('{FILES}/sales.json') ORDER BY ALL LIMIT 3

SELECT length(content) > 0, size > 0 FROM read_text('{FILES}/sales.csv')

SELECT octet_length(content) FROM read_blob('{FILES}/sales.csv')

SELECT parse_filename(file) AS name FROM glob('{FILES}/*') ORDER BY 1

SELECT s.region, r.r_name FROM read_parquet('{FILES}/sales.parquet') s JOIN shop.region r ON upper(s.region) = r.r_name GROUP BY ALL ORDER BY ALL

SELECT name, type FROM parquet_schema('{FILES}/sales.parquet') ORDER BY name

SELECT num_rows FROM parquet_file_metadata('{FILES}/sales.parquet')

-- runs
SELECT Columns FROM sniff_csv('{FILES}/sales.csv')

SELECT region, n FROM query('SELECT ''x'' AS region, 1 AS n UNION ALL SELECT ''ATTACH'', 2') ORDER BY n

SELECT count(*) FROM query_table('shop.region')

SELECT * FROM range(3), repeat('x', 2), generate_series(1, 2) g(v) ORDER BY ALL

SELECT bin, count FROM histogram(shop.region, r_regionkey) ORDER BY bin

FROM repeat_row(1, 'a', num_rows = 2)

SELECT count(*) > 0 FROM test_all_types()

SELECT i AS enable_profiling, i AS duckdb_settings, i AS load, i AS attach FROM range(2) t(i) ORDER BY 1

SELECT sum(x) FROM (SELECT 1 AS x UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4) "weird ""name"" (with; signs)"

SELECT a.b.c FROM (SELECT {'b': {'c': 5}} AS a)

SELECT e."user" AS "u;x", 1 AS "select", 2 AS "/* no */", 3 AS "--" FROM shop.events e ORDER BY id LIMIT 1

SELECT 1;

SELECT trim(both 'x' FROM 'xax'), extract('day' FROM DATE '2026-01-02'), substring('abc' FROM 2), 'a' IS DISTINCT FROM '/etc/x', NOT true AND false

SELECT	1	AS	tab , 2
AS lines

SELECT "Straße" AS 名前, 'naïve 🦆' AS "duck 🦆" FROM shop.events ORDER BY id LIMIT 2

SELECT count(*) FROM shop.lineitem l JOIN shop.orders o ON l.l_orderkey = o.o_orderkey JOIN shop.customer c ON c.c_custkey = o.o_custkey JOIN shop.nation n ON n.n_nationkey = c.c_nationkey JOIN shop.region r ON r.r_regionkey = n.n_regionkey WHERE r.r_name <> 'ASIA'

SELECT o_orderpriority, sum(CASE WHEN o_orderstatus = 'F' THEN 1 ELSE 0 END) * 100.0 / count(*) AS share, sum(sum(o_totalprice)) OVER (ORDER BY o_orderpriority) AS running FROM shop.orders GROUP BY o_orderpriority ORDER BY 1

WITH cohorts AS (SELECT "user", min(date_trunc('day', ts)) AS first_day FROM shop.events GROUP BY 1), activity AS (SELECT DISTINCT e."user", date_diff('day', c.first_day, date_trunc('day', e.ts)) AS day FROM shop.events e JOIN cohorts c USING ("user")) SELECT day, count(*) AS users FROM activity GROUP BY day ORDER BY day

WITH steps AS (SELECT "user", kind, ts, lead(kind) OVER (PARTITION BY "user" ORDER BY ts) AS next FROM shop.events) SELECT kind, next, count(*) AS n FROM steps WHERE next IS NOT NULL GROUP BY ALL ORDER BY n DESC, kind, next

SELECT "user", count(*) AS sessions FROM (SELECT "user", ts, ts - lag(ts) OVER (PARTITION BY "user" ORDER BY ts) > INTERVAL 1 DAY AS fresh FROM shop.events) WHERE fresh IS NULL OR fresh GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5
