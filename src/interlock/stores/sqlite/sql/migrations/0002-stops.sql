-- A stop has a key of its own, and a mark stands for an hour after its stop.

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
