-- +goose Up

-- What one transaction tells the next: numbers for fences, places and events
-- (counter), the controller's epoch, the greatest time that was used (clock), how
-- many transactions may have freed a key (wakes), how many events were written
-- (events), and the numbers of the last one and of the last forgotten one.
CREATE TABLE desk (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    counter    INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    clock      INTEGER NOT NULL,
    wakes      INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    forgotten  INTEGER NOT NULL
) STRICT;
INSERT INTO desk (only_row, counter, epoch, clock, wakes, events, last_event, forgotten) VALUES (1, 0, 0, 0, 0, 0, 0, 0);

-- The key from which the secrets of leases are derived; made at its first use.
CREATE TABLE root_key (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    value    BLOB    NOT NULL
) STRICT;

-- Times are microseconds since 1970 in UTC, 0 for none; spans of time are
-- microseconds. Lists of names are texts with commas between.
CREATE TABLE pools (
    name        TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    check_hook  INTEGER NOT NULL,
    reset_hook  INTEGER NOT NULL,
    ttl         INTEGER NOT NULL,
    max_ttl     INTEGER NOT NULL,
    cooldown    INTEGER NOT NULL,
    ban_initial INTEGER NOT NULL,
    ban_factor  REAL    NOT NULL,
    ban_max     INTEGER NOT NULL,
    scope       TEXT    NOT NULL,
    revision    INTEGER NOT NULL,
    author      TEXT    NOT NULL,
    published   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A key with the lease that it has or had last (fence 0: none yet).
CREATE TABLE keys (
    name            TEXT    NOT NULL PRIMARY KEY,
    version         INTEGER NOT NULL,
    pools           TEXT    NOT NULL,
    leaving         TEXT    NOT NULL,
    managed         INTEGER NOT NULL,
    uid             TEXT    NOT NULL,
    attributes      TEXT    NOT NULL, -- JSON, '' for none
    exit_ip         TEXT    NOT NULL,
    unfit           TEXT    NOT NULL,
    disabled        INTEGER NOT NULL,
    disabled_reason TEXT    NOT NULL,
    disabled_by     TEXT    NOT NULL,
    disabled_at     INTEGER NOT NULL,
    disabled_auto   INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    lease_pool      TEXT    NOT NULL,
    target          TEXT    NOT NULL,
    account         TEXT    NOT NULL,
    holder          TEXT    NOT NULL,
    secret          BLOB    NOT NULL, -- its SHA-256
    ticket          TEXT    NOT NULL,
    ttl             INTEGER NOT NULL,
    taken           INTEGER NOT NULL,
    expires         INTEGER NOT NULL,
    check_hook      INTEGER NOT NULL,
    reset_hook      INTEGER NOT NULL,
    resetting       INTEGER NOT NULL,
    unclaimed       INTEGER NOT NULL,
    ended           TEXT    NOT NULL, -- how; '' while it runs
    ended_at        INTEGER NOT NULL,
    ended_by        TEXT    NOT NULL,
    past            TEXT    NOT NULL, -- fence=end of earlier leases, with commas between
    needs_reset     INTEGER NOT NULL,
    reset_failures  INTEGER NOT NULL,
    errors          INTEGER NOT NULL,
    cool_until      INTEGER NOT NULL,
    used_at         INTEGER NOT NULL,
    free_at         INTEGER NOT NULL, -- when time lets a take consider it
    rank            INTEGER NOT NULL  -- the least comes first
) STRICT;

-- The keys of each pool's list.
CREATE TABLE members (
    pool    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    leaving INTEGER NOT NULL, -- the list dropped it while it was held
    exit_ip TEXT    NOT NULL,
    PRIMARY KEY (pool, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_exit_ip ON members (pool, exit_ip, leaving) WHERE exit_ip <> '';

-- What finding a key of a pool needs: of each key on the list, in the order in
-- which keys are looked at. Every change of a lease moves rows here, so there is
-- one index and no more.
CREATE TABLE ready (
    pool          TEXT    NOT NULL,
    free_at       INTEGER NOT NULL,
    rank          INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    held_until    INTEGER NOT NULL, -- 0 when nobody holds it
    auto_disabled INTEGER NOT NULL,
    exit_ip       TEXT    NOT NULL,
    PRIMARY KEY (pool, free_at, rank, key)
) STRICT, WITHOUT ROWID;

-- The leases that run, by their ends.
CREATE TABLE running (
    expires INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    PRIMARY KEY (expires, key)
) STRICT, WITHOUT ROWID;

-- A partial index below is for the statements that name its condition, and for no
-- others: which index a statement uses must not hang on a server's statistics.

-- Requests that wait, or were granted (granted_fence > 0) and can be replayed.
CREATE TABLE tickets (
    id            TEXT    NOT NULL PRIMARY KEY,
    digest        TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    pool          TEXT    NOT NULL,
    target        TEXT    NOT NULL,
    account       TEXT    NOT NULL,
    holder        TEXT    NOT NULL,
    wanted        TEXT    NOT NULL, -- JSON, '' for none
    runs_hooks    INTEGER NOT NULL,
    since         INTEGER NOT NULL,
    live_until    INTEGER NOT NULL,
    place_until   INTEGER NOT NULL,
    granted_key   TEXT    NOT NULL,
    granted_fence INTEGER NOT NULL,
    kept          INTEGER NOT NULL
) STRICT;
CREATE INDEX tickets_waiting ON tickets (pool, seq) WHERE granted_fence = 0;
CREATE INDEX tickets_places ON tickets (place_until) WHERE granted_fence = 0 AND place_until > 0;
CREATE INDEX tickets_kept ON tickets (kept) WHERE granted_fence > 0;

CREATE TABLE cooldowns (
    scope        TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    target       TEXT    NOT NULL,
    until        INTEGER NOT NULL,
    strikes      INTEGER NOT NULL,
    banned_until INTEGER NOT NULL,
    forget       INTEGER NOT NULL,
    PRIMARY KEY (scope, id, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX cooldowns_by_target ON cooldowns (target, until) WHERE until > 0;
CREATE INDEX cooldowns_by_forget ON cooldowns (forget);

-- The latest change of each pool: one at most is under way.
CREATE TABLE changes (
    pool    TEXT    NOT NULL PRIMARY KEY,
    id      TEXT    NOT NULL,
    verb    TEXT    NOT NULL,
    keys    TEXT    NOT NULL,
    account TEXT    NOT NULL,
    holder  TEXT    NOT NULL,
    began   INTEGER NOT NULL,
    until   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX changes_by_until ON changes (until);

-- One row for the events of one transaction; total counts all up to the row.
CREATE TABLE events (
    last_seq INTEGER NOT NULL PRIMARY KEY,
    total    INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    list     TEXT    NOT NULL -- JSON
) STRICT;

-- The action log: rows are only ever added.
CREATE TABLE resource_action (
    seq     INTEGER NOT NULL PRIMARY KEY,
    action  TEXT    NOT NULL,
    phase   TEXT    NOT NULL,
    pool    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    verb    TEXT    NOT NULL,
    "user"  TEXT    NOT NULL,
    host    TEXT    NOT NULL,
    command TEXT    NOT NULL,
    ok      INTEGER, -- NULL is no verdict
    detail  TEXT    NOT NULL,
    time    INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX resource_action_by_action ON resource_action (action, phase);
CREATE INDEX resource_action_by_pool ON resource_action (pool, seq);
CREATE INDEX resource_action_by_key ON resource_action (key, seq);

-- The actions without an end. They bar their keys.
CREATE TABLE open_actions (
    action TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    pool   TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    "user" TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX open_actions_by_seq ON open_actions (seq);
