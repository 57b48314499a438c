-- name: add_event
-- Add a lasting event.
INSERT INTO events (session, position, at, run_id, generation, data) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: add_passing
-- Add passing events: those of one run and one moment are one row.
INSERT INTO passing (session, position, run_id, events) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: keep_epoch
-- An epoch only rises.
INSERT INTO epochs (session, epoch) VALUES (?, ?) ON CONFLICT (session) DO UPDATE SET epoch = max(epoch, excluded.epoch);

-- name: runs_with_passing
-- Runs with passing events.
SELECT DISTINCT run_id FROM passing;

-- name: drop_passing
-- Delete the passing events of a run that has ended; its blocks and its terminal event hold their text.
DELETE FROM passing WHERE session = ? AND run_id = ?;

-- name: drop_passing_of
-- The same, where only the run's id is known.
DELETE FROM passing WHERE session = (SELECT session FROM runs WHERE id = ?1) AND run_id = ?1;

-- name: tell_run
-- Note that a run's terminal event is in the log.
UPDATE runs SET told = 1 WHERE id IN (VALUES (?)) AND told = 0;

-- name: trim_passing
-- Delete the older half of a run's passing events; the block that closes them holds their text.
DELETE FROM passing WHERE session = ?1 AND run_id = ?2 AND position < (
    SELECT position FROM passing WHERE session = ?1 AND run_id = ?2 ORDER BY position
    LIMIT 1 OFFSET (SELECT count(*) / 2 FROM passing WHERE session = ?1 AND run_id = ?2)
);

-- name: oldest_dropped
-- The position up to which a session's log exceeds its bound.
SELECT position FROM events WHERE session = ? ORDER BY position DESC LIMIT 1 OFFSET ?;

-- name: end_of_piece
-- The position at which the first piece of a session's log ends.
SELECT position FROM events WHERE session = ? ORDER BY position LIMIT 1 OFFSET ?;

-- name: drop_events
-- Drop the beginning of a session's log.
DELETE FROM events WHERE session = ? AND position <= ?;

-- name: remember_dropped
-- Record up to which position a session's log was dropped; readers get a gap.
INSERT INTO dropped (session, position) VALUES (?, ?)
ON CONFLICT (session) DO UPDATE SET position = max(position, excluded.position);
