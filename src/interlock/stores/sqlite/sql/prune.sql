-- name: long_sessions
-- Sessions with more runs than are kept, or homes of more children.
SELECT session FROM runs GROUP BY session HAVING count(*) > ?1
UNION
SELECT home FROM runs WHERE home IS NOT NULL GROUP BY home HAVING count(*) > ?1;

-- name: old_runs
-- The runs of a session beyond those that are kept, and of the children below it; whoever lives is passed over.
SELECT id FROM (
    SELECT id, ending, alias, row_number() OVER (ORDER BY serial DESC) AS place FROM runs WHERE session = ?1
    UNION ALL
    SELECT id, ending, alias, row_number() OVER (ORDER BY serial DESC) AS place FROM runs WHERE home = ?1
) WHERE place > ?2 AND (ending IS NOT NULL OR alias IS NOT NULL) LIMIT ?3;

-- name: old_sessions
-- Sessions where nothing lives or is scheduled and no message came since a time; a child's goes with its home.
SELECT s.id FROM sessions s LEFT JOIN runs r ON r.session = s.id
WHERE s.id NOT IN (SELECT json_extract(body, '$.session') FROM wakes)
GROUP BY s.id
HAVING max(r.home) IS NULL AND coalesce(max(r.admitted_at), 0) < ?1 AND sum(r.ending IS NULL AND r.alias IS NULL) IS NOT TRUE
    AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.home = s.id AND c.ending IS NULL)
LIMIT ?2;

-- name: is_old
-- Whether a session that was found so still is: a message may have come meanwhile.
SELECT 1 FROM sessions s WHERE s.id = ?1 AND s.id NOT IN (SELECT json_extract(body, '$.session') FROM wakes)
    AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session = s.id
        AND (r.admitted_at >= ?2 OR (r.ending IS NULL AND r.alias IS NULL)))
    AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.home = s.id AND c.ending IS NULL);

-- name: runs_of_sessions
-- All runs of a session and below it.
SELECT id FROM runs WHERE session = ?1 UNION SELECT id FROM runs WHERE home = ?1;

-- name: long_logs
-- Sessions whose log holds more than is kept.
SELECT session FROM events GROUP BY session HAVING count(*) > ?;

-- name: doom
-- Runs to forget, in this transaction.
INSERT INTO doomed SELECT value FROM json_each(?);

-- name: spare
-- Everyone that was doomed is gone.
DELETE FROM doomed;

-- name: forget_tools
-- Of runs that are forgotten.
DELETE FROM tools WHERE run_id IN (SELECT id FROM doomed);

-- name: forget_questions
-- Of runs that are forgotten.
DELETE FROM questions WHERE run_id IN (SELECT id FROM doomed);

-- name: forget_child_sessions
-- A child's session is its own.
DELETE FROM sessions WHERE id IN (SELECT session FROM runs WHERE home IS NOT NULL AND id IN (SELECT id FROM doomed));

-- name: forget_child_events
-- And so is its log.
DELETE FROM events WHERE session IN (SELECT session FROM runs WHERE home IS NOT NULL AND id IN (SELECT id FROM doomed));

-- name: forget_receipts
-- A receipt goes with the last of its runs.
DELETE FROM receipts WHERE id IN (SELECT receipt FROM runs WHERE id IN (SELECT id FROM doomed))
    AND NOT EXISTS (SELECT 1 FROM json_each(body, '$.runs') fallen JOIN runs r ON r.id = fallen.value ->> '$.id'
        WHERE r.receipt = receipts.id AND r.id NOT IN (SELECT id FROM doomed));

-- name: forget_runs
-- The runs themselves.
DELETE FROM runs WHERE id IN (SELECT id FROM doomed);

-- name: forget_session
-- A session that nobody used for long.
DELETE FROM sessions WHERE id = ?;

-- name: forget_events
-- Its log.
DELETE FROM events WHERE session = ?;

-- name: forget_passing
-- And what passed.
DELETE FROM passing WHERE session = ?;

-- name: forget_dropped
-- And that some of it was dropped.
DELETE FROM dropped WHERE session = ?;

-- name: forget_marks
-- And where its stops stood.
DELETE FROM marks WHERE session = ?;

-- name: forget_shares
-- And with whom it was shared: whoever founds it anew shares it anew.
DELETE FROM shares WHERE session = ?;

-- name: bound_shares
-- What is no longer shared need not be remembered once nothing is on its way that could contradict it.
DELETE FROM shares WHERE may IS NULL;

-- name: bound_keys
-- The newest of each principal are kept, and those of messages that have not ended.
DELETE FROM keys WHERE serial IN (SELECT serial FROM (
    SELECT serial, run_id, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM keys
) WHERE place > ? AND run_id NOT IN (SELECT id FROM runs WHERE ending IS NULL));

-- name: bound_tombstones
-- The newest of each principal are kept, so that nobody can push out another's.
DELETE FROM tombstones WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM tombstones
) WHERE place > ?);

-- name: bound_stops
-- The newest keys of stops of each principal are kept.
DELETE FROM stops WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM stops
) WHERE place > ?);

-- name: bound_marks
-- The newest of each principal are kept.
DELETE FROM marks WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY "by" ORDER BY serial DESC) AS place FROM marks
) WHERE place > ?);

-- name: bound_runless
-- The newest receipts of stops that took detached processes only are kept.
DELETE FROM receipts WHERE runless = 1 AND serial <= (
    SELECT serial FROM receipts WHERE runless = 1 ORDER BY serial DESC LIMIT 1 OFFSET ?
);
