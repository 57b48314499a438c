-- Positions are counted by session: `epoch << 32 | n`. Those of earlier versions were `boot << 32 | n`.

-- The highest epoch of each tree of sessions under which an event was published, by the session at its top.
CREATE TABLE epochs (
    session TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL
) WITHOUT ROWID;

-- No epoch up to this one is given any more: the boots of earlier versions, epochs of sessions that were pruned, and
-- epochs that a server may have published and not written before it was killed.
INSERT INTO facts SELECT 'epoch', value FROM facts WHERE name = 'boot';

-- A position is unique in its session only. Rows are in the order they were written, so that what many runs say at once
-- goes to few pages.
CREATE TABLE passing_by_session (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    position INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    events TEXT NOT NULL
);
INSERT INTO passing_by_session (session, position, run_id, events)
    SELECT session, position, run_id, events FROM passing ORDER BY position;
DROP TABLE passing;
ALTER TABLE passing_by_session RENAME TO passing;
CREATE UNIQUE INDEX passing_of_session ON passing (session, position);
