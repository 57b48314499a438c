-- Stops have keys and marks a time, sessions are shared, and messages bring instructions.

-- The first use of each key of a stop, and what came of it, oldest first.
CREATE TABLE stops (
    serial INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    method TEXT NOT NULL,
    digest TEXT NOT NULL,
    at REAL NOT NULL,
    receipt TEXT,
    aborted INTEGER NOT NULL,
    already TEXT,
    UNIQUE (principal, key)
);

-- Where in their own channels stops stood, and since when: a later stop at an earlier place has a row beside. When the
-- marks of before were made nobody knows; they stand for an hour from here on.
CREATE TABLE marks_with_time (
    serial INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    channel TEXT NOT NULL,
    "by" TEXT NOT NULL,
    place TEXT NOT NULL,
    at TEXT NOT NULL,
    stopped_at REAL NOT NULL,
    UNIQUE (session, channel, "by", place)
);
INSERT INTO marks_with_time
    SELECT serial, session, channel, "by", place, at, CAST(strftime('%s', 'now') AS REAL) FROM marks ORDER BY serial;
DROP TABLE marks;
ALTER TABLE marks_with_time RENAME TO marks;
CREATE INDEX marks_of_principal ON marks ("by", serial);

-- With whom a session is shared; `may` is NULL where it no longer is. The latest position stands.
CREATE TABLE shares (
    session TEXT NOT NULL,
    principal TEXT NOT NULL,
    may TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (session, principal)
) WITHOUT ROWID;
CREATE INDEX shares_of_principal ON shares (principal);

-- `plain`: the session's id does not begin with its owner, who nevertheless writes the bare name.
ALTER TABLE sessions ADD COLUMN plain INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET plain = 1
WHERE owner <> 'local' AND id NOT GLOB 'run:*' AND substr(id, 1, length(owner) + 1) <> owner || '/';
CREATE INDEX sessions_plain ON sessions (id) WHERE plain = 1;

-- What a message's sender told its agent beside the message; a message that waits over a restart has it still.
ALTER TABLE runs ADD COLUMN instructions TEXT;
