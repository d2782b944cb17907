-- +goose Up

-- What one transaction tells the next: numbers for fences, places and events
-- (counter), the controller's epoch, the greatest time that was used (clock), how
-- many transactions may have freed a key (wakes), how many events were written
-- (events), and the numbers of the last one and of the last forgotten one.
CREATE TABLE fleetdesk.desk (
    only_row   integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    counter    bigint  NOT NULL,
    epoch      bigint  NOT NULL,
    clock      bigint  NOT NULL,
    wakes      bigint  NOT NULL,
    events     bigint  NOT NULL,
    last_event bigint  NOT NULL,
    forgotten  bigint  NOT NULL
);
INSERT INTO fleetdesk.desk (only_row, counter, epoch, clock, wakes, events, last_event, forgotten) VALUES (1, 0, 0, 0, 0, 0, 0, 0);

-- The key from which the secrets of leases are derived; made at its first use.
CREATE TABLE fleetdesk.root_key (
    only_row integer NOT NULL PRIMARY KEY CHECK (only_row = 1),
    value    bytea   NOT NULL
);

-- Times are microseconds since 1970 in UTC, 0 for none; spans of time are
-- microseconds. Lists of names are texts with commas between.
CREATE TABLE fleetdesk.pools (
    name        text COLLATE "C" NOT NULL PRIMARY KEY,
    kind        text             NOT NULL,
    check_hook  boolean          NOT NULL,
    reset_hook  boolean          NOT NULL,
    ttl         bigint           NOT NULL,
    max_ttl     bigint           NOT NULL,
    cooldown    bigint           NOT NULL,
    ban_initial bigint           NOT NULL,
    ban_factor  double precision NOT NULL,
    ban_max     bigint           NOT NULL,
    scope       text             NOT NULL,
    revision    bigint           NOT NULL,
    author      text             NOT NULL,
    published   bigint           NOT NULL
);

-- A key with the lease that it has or had last (fence 0: none yet).
CREATE TABLE fleetdesk.keys (
    name            text COLLATE "C" NOT NULL PRIMARY KEY,
    version         bigint           NOT NULL,
    pools           text             NOT NULL,
    leaving         text             NOT NULL,
    managed         boolean          NOT NULL,
    uid             text             NOT NULL,
    attributes      text             NOT NULL, -- JSON, '' for none
    exit_ip         text COLLATE "C" NOT NULL,
    unfit           text             NOT NULL,
    disabled        boolean          NOT NULL,
    disabled_reason text             NOT NULL,
    disabled_by     text             NOT NULL,
    disabled_at     bigint           NOT NULL,
    disabled_auto   boolean          NOT NULL,
    fence           bigint           NOT NULL,
    lease_pool      text COLLATE "C" NOT NULL,
    target          text             NOT NULL,
    account         text             NOT NULL,
    holder          text             NOT NULL,
    secret          bytea            NOT NULL, -- its SHA-256
    ticket          text             NOT NULL,
    ttl             bigint           NOT NULL,
    taken           bigint           NOT NULL,
    expires         bigint           NOT NULL,
    check_hook      boolean          NOT NULL,
    reset_hook      boolean          NOT NULL,
    resetting       boolean          NOT NULL,
    unclaimed       boolean          NOT NULL,
    ended           text COLLATE "C" NOT NULL, -- how; '' while it runs
    ended_at        bigint           NOT NULL,
    ended_by        text             NOT NULL,
    past            text             NOT NULL, -- fence=end of earlier leases, with commas between
    needs_reset     boolean          NOT NULL,
    reset_failures  bigint           NOT NULL,
    errors          bigint           NOT NULL,
    cool_until      bigint           NOT NULL,
    used_at         bigint           NOT NULL,
    free_at         bigint           NOT NULL, -- when time lets a take consider it
    rank            bigint           NOT NULL  -- the least comes first
) WITH (fillfactor = 60);

-- The keys of each pool's list.
CREATE TABLE fleetdesk.members (
    pool    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    leaving boolean          NOT NULL, -- the list dropped it while it was held
    exit_ip text COLLATE "C" NOT NULL,
    PRIMARY KEY (pool, key)
);
CREATE INDEX members_by_exit_ip ON fleetdesk.members (pool, exit_ip, leaving) WHERE exit_ip <> '';

-- What finding a key of a pool needs: of each key on the list, in the order in
-- which keys are looked at. Every change of a lease moves rows here, so there is
-- one index and no more.
CREATE TABLE fleetdesk.ready (
    pool          text COLLATE "C" NOT NULL,
    free_at       bigint           NOT NULL,
    rank          bigint           NOT NULL,
    key           text COLLATE "C" NOT NULL,
    held_until    bigint           NOT NULL, -- 0 when nobody holds it
    auto_disabled boolean          NOT NULL,
    exit_ip       text COLLATE "C" NOT NULL,
    PRIMARY KEY (pool, free_at, rank, key)
);

-- The leases that run, by their ends.
CREATE TABLE fleetdesk.running (
    expires bigint           NOT NULL,
    key     text COLLATE "C" NOT NULL,
    PRIMARY KEY (expires, key)
);

-- A partial index below is for the statements that name its condition, and for no
-- others: which index a statement uses must not hang on a server's statistics.

-- Requests that wait, or were granted (granted_fence > 0) and can be replayed.
CREATE TABLE fleetdesk.tickets (
    id            text COLLATE "C" NOT NULL PRIMARY KEY,
    digest        text             NOT NULL,
    seq           bigint           NOT NULL,
    pool          text COLLATE "C" NOT NULL,
    target        text             NOT NULL,
    account       text             NOT NULL,
    holder        text             NOT NULL,
    wanted        text             NOT NULL, -- JSON, '' for none
    runs_hooks    boolean          NOT NULL,
    since         bigint           NOT NULL,
    live_until    bigint           NOT NULL,
    place_until   bigint           NOT NULL,
    granted_key   text COLLATE "C" NOT NULL,
    granted_fence bigint           NOT NULL,
    kept          bigint           NOT NULL
);
CREATE INDEX tickets_waiting ON fleetdesk.tickets (pool, seq) WHERE granted_fence = 0;
CREATE INDEX tickets_places ON fleetdesk.tickets (place_until) WHERE granted_fence = 0 AND place_until > 0;
CREATE INDEX tickets_kept ON fleetdesk.tickets (kept) WHERE granted_fence > 0;

CREATE TABLE fleetdesk.cooldowns (
    scope        text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    target       text COLLATE "C" NOT NULL,
    until        bigint           NOT NULL,
    strikes      bigint           NOT NULL,
    banned_until bigint           NOT NULL,
    forget       bigint           NOT NULL,
    PRIMARY KEY (scope, id, target)
);
CREATE INDEX cooldowns_by_target ON fleetdesk.cooldowns (target, until) WHERE until > 0;
CREATE INDEX cooldowns_by_forget ON fleetdesk.cooldowns (forget);

-- The latest change of each pool: one at most is under way.
CREATE TABLE fleetdesk.changes (
    pool    text COLLATE "C" NOT NULL PRIMARY KEY,
    id      text             NOT NULL,
    verb    text             NOT NULL,
    keys    text             NOT NULL,
    account text             NOT NULL,
    holder  text             NOT NULL,
    began   bigint           NOT NULL,
    until   bigint           NOT NULL
);
CREATE INDEX changes_by_until ON fleetdesk.changes (until);

-- One row for the events of one transaction; total counts all up to the row.
CREATE TABLE fleetdesk.events (
    last_seq bigint NOT NULL PRIMARY KEY,
    total    bigint NOT NULL,
    at       bigint NOT NULL,
    list     text   NOT NULL -- JSON
);
ALTER TABLE fleetdesk.events ALTER COLUMN list SET STORAGE EXTERNAL; -- compressing costs more than it saves

-- The action log: rows are only ever added.
CREATE TABLE fleetdesk.resource_action (
    seq     bigint           NOT NULL PRIMARY KEY,
    action  text COLLATE "C" NOT NULL,
    phase   text COLLATE "C" NOT NULL,
    pool    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    verb    text             NOT NULL,
    "user"  text             NOT NULL,
    host    text             NOT NULL,
    command text             NOT NULL,
    ok      boolean, -- NULL is no verdict
    detail  text             NOT NULL,
    time    bigint           NOT NULL
);
CREATE UNIQUE INDEX resource_action_by_action ON fleetdesk.resource_action (action, phase);
CREATE INDEX resource_action_by_pool ON fleetdesk.resource_action (pool, seq);
CREATE INDEX resource_action_by_key ON fleetdesk.resource_action (key, seq);

-- The actions without an end. They bar their keys.
CREATE TABLE fleetdesk.open_actions (
    action text COLLATE "C" NOT NULL PRIMARY KEY,
    seq    bigint           NOT NULL,
    pool   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    "user" text             NOT NULL
);
CREATE INDEX open_actions_by_seq ON fleetdesk.open_actions (seq);
