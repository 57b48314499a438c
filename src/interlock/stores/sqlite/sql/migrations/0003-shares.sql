-- Sessions that are shared, and names that were given before a session's name said whose it is.

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
