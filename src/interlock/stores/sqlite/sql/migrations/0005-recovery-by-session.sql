-- A start reads nothing that grows with the number of sessions, and settles one tree of sessions at a time.

-- Unsettled runs, by the session at the top of their tree.
DROP INDEX runs_unsettled;
CREATE INDEX runs_unsettled ON runs (coalesce(home, session), serial)
    WHERE (ending IS NULL AND alias IS NULL) OR (ending IS NOT NULL AND told = 0);

-- The highest epoch of all.
CREATE INDEX epochs_by_number ON epochs (epoch);

-- Open questions, oldest first.
CREATE INDEX questions_open ON questions (serial) WHERE state = 'open';
