-- +goose Up

-- The file's owner, in its header: a database of another program is refused.
PRAGMA application_id = 1181508715;

-- min_reader is the oldest schema version whose programs may still write here.
-- A later migration that older programs would corrupt raises it.
CREATE TABLE schema_info (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    min_reader INTEGER NOT NULL
) STRICT;
INSERT INTO schema_info (only_row, min_reader) VALUES (1, 1);

-- Times are microseconds since 1970 in UTC. No column holds a rule: what a role
-- may do and when a token is live is decided by the program.
CREATE TABLE accounts (
    name     TEXT    NOT NULL PRIMARY KEY,
    role     TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    id      TEXT    NOT NULL PRIMARY KEY,
    account TEXT    NOT NULL REFERENCES accounts (name),
    hash    BLOB    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER, -- NULL is never
    revoked INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_by_account ON tokens (account);
