-- +goose Up

-- min_reader is the oldest schema version whose programs may still write here.
-- A later step that older programs would corrupt raises it. The row is also what
-- writes lock that must be alone.
CREATE TABLE fleetdesk.schema_info (
    only_row   integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    min_reader bigint  NOT NULL
);
INSERT INTO fleetdesk.schema_info (only_row, min_reader) VALUES (1, 1);

-- Times are microseconds since 1970 in UTC. Names and ids are compared byte by
-- byte whatever the database's language. No column holds a rule: what a role may
-- do and when a token is live is decided by the program.
CREATE TABLE fleetdesk.accounts (
    name     text COLLATE "C" NOT NULL PRIMARY KEY,
    role     text             NOT NULL,
    created  bigint           NOT NULL,
    disabled boolean          NOT NULL
);

CREATE TABLE fleetdesk.tokens (
    id      text COLLATE "C" NOT NULL PRIMARY KEY,
    account text COLLATE "C" NOT NULL REFERENCES fleetdesk.accounts (name),
    hash    bytea            NOT NULL,
    created bigint           NOT NULL,
    expires bigint, -- NULL is never
    revoked boolean          NOT NULL
);
CREATE INDEX tokens_by_account ON fleetdesk.tokens (account, id);
