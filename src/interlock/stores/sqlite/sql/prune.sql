-- name: long_sessions
-- Sessions with more runs, or homes with more children, than are kept.
SELECT session FROM runs GROUP BY session HAVING count(*) > ?1
UNION
SELECT home FROM runs WHERE home IS NOT NULL GROUP BY home HAVING count(*) > ?1;

-- name: old_runs
-- The oldest runs of a session and children below it that exceed the bound; runs that have not ended are left out.
SELECT id FROM (
    SELECT id, ending, alias, row_number() OVER (ORDER BY serial DESC) AS place FROM runs WHERE session = ?1
    UNION ALL
    SELECT id, ending, alias, row_number() OVER (ORDER BY serial DESC) AS place FROM runs WHERE home = ?1
) WHERE place > ?2 AND (ending IS NOT NULL OR alias IS NOT NULL) LIMIT ?3;

-- name: old_sessions
-- Sessions without a live run, a schedule or a message since a time. A child's session goes with its home.
SELECT s.id FROM sessions s LEFT JOIN runs r ON r.session = s.id
WHERE s.id NOT IN (SELECT json_extract(body, '$.session') FROM wakes)
GROUP BY s.id
HAVING max(r.home) IS NULL AND coalesce(max(r.admitted_at), 0) < ?1 AND sum(r.ending IS NULL AND r.alias IS NULL) IS NOT TRUE
    AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.home = s.id AND c.ending IS NULL)
LIMIT ?2;

-- name: is_old
-- Whether a session is still old when it is deleted: a message may have come since it was found.
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
-- Empty the list of runs to forget.
DELETE FROM doomed;

-- name: forget_tools
-- Tool calls of runs that are forgotten.
DELETE FROM tools WHERE run_id IN (SELECT id FROM doomed);

-- name: forget_questions
-- Questions of runs that are forgotten.
DELETE FROM questions WHERE run_id IN (SELECT id FROM doomed);

-- name: forget_child_sessions
-- Sessions of children that are forgotten: each child has one to itself.
DELETE FROM sessions WHERE id IN (SELECT session FROM runs WHERE home IS NOT NULL AND id IN (SELECT id FROM doomed));

-- name: forget_child_events
-- Logs of children that are forgotten.
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
-- An old session.
DELETE FROM sessions WHERE id = ?;

-- name: skip_epoch
-- Before an old session's epoch is forgotten: give it no more, so that positions rise if the session is founded again.
UPDATE facts SET value = max(value, coalesce((SELECT epoch FROM epochs WHERE session = ?), 0)) WHERE name = 'epoch';

-- name: forget_epoch
-- The epoch of an old session.
DELETE FROM epochs WHERE session = ?;

-- name: forget_events
-- The lasting events of an old session.
DELETE FROM events WHERE session = ?;

-- name: forget_passing
-- The passing events of an old session.
DELETE FROM passing WHERE session = ?;

-- name: forget_dropped
-- The note up to where the log of an old session was dropped.
DELETE FROM dropped WHERE session = ?;

-- name: forget_marks
-- The stop marks of an old session.
DELETE FROM marks WHERE session = ?;

-- name: forget_shares
-- The shares of an old session: its next founder starts without any.
DELETE FROM shares WHERE session = ?;

-- name: bound_shares
-- Shares that were taken back. By now no earlier write is on its way that could bring them back.
DELETE FROM shares WHERE may IS NULL;

-- name: bound_keys
-- Keys beyond the newest of each principal, but not those of messages that have not ended.
DELETE FROM keys WHERE serial IN (SELECT serial FROM (
    SELECT serial, run_id, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM keys
) WHERE place > ? AND run_id NOT IN (SELECT id FROM runs WHERE ending IS NULL));

-- name: bound_tombstones
-- Tombstones beyond the newest of each principal, so that one principal cannot push out another's.
DELETE FROM tombstones WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM tombstones
) WHERE place > ?);

-- name: bound_stops
-- Keys of stops beyond the newest of each principal.
DELETE FROM stops WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY principal ORDER BY serial DESC) AS place FROM stops
) WHERE place > ?);

-- name: bound_marks
-- Stop marks beyond the newest of each principal.
DELETE FROM marks WHERE serial IN (SELECT serial FROM (
    SELECT serial, row_number() OVER (PARTITION BY "by" ORDER BY serial DESC) AS place FROM marks
) WHERE place > ?);

-- name: bound_runless
-- Receipts beyond the newest, of stops that ended detached processes only.
DELETE FROM receipts WHERE runless = 1 AND serial <= (
    SELECT serial FROM receipts WHERE runless = 1 ORDER BY serial DESC LIMIT 1 OFFSET ?
);
