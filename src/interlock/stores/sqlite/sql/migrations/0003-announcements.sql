-- Detached children announce how they ended to the session at the top.

-- How a detached child's ending comes there: 'turn' or 'note'; NULL where it is not announced. One of an earlier version
-- that a crash left unsettled is not announced: nobody asked for it.
ALTER TABLE runs ADD COLUMN announce TEXT;

-- How many turns in a row announcements began, without a message of a person.
ALTER TABLE sessions ADD COLUMN announced INTEGER NOT NULL DEFAULT 0;
