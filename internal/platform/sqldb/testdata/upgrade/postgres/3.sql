-- A database as schema version 3 left it (pg_dump --inserts).
CREATE SCHEMA fleetdesk;
CREATE TABLE fleetdesk.accounts (
    name text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL,
    created bigint NOT NULL,
    disabled boolean NOT NULL
);
CREATE TABLE fleetdesk.changes (
    pool text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL,
    verb text NOT NULL,
    keys text NOT NULL,
    account text NOT NULL,
    holder text NOT NULL,
    began bigint NOT NULL,
    until bigint NOT NULL
);
CREATE TABLE fleetdesk.cooldowns (
    scope text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL COLLATE pg_catalog."C",
    until bigint NOT NULL,
    strikes bigint NOT NULL,
    banned_until bigint NOT NULL,
    forget bigint NOT NULL,
    turn bigint DEFAULT 0 NOT NULL,
    uses text DEFAULT ''::text NOT NULL
);
CREATE TABLE fleetdesk.desk (
    only_row integer NOT NULL,
    counter bigint NOT NULL,
    epoch bigint NOT NULL,
    clock bigint NOT NULL,
    wakes bigint NOT NULL,
    events bigint NOT NULL,
    last_event bigint NOT NULL,
    forgotten bigint NOT NULL,
    CONSTRAINT desk_only_row_check CHECK ((only_row = 1))
);
CREATE TABLE fleetdesk.events (
    last_seq bigint NOT NULL,
    total bigint NOT NULL,
    at bigint NOT NULL,
    list text NOT NULL
);
ALTER TABLE ONLY fleetdesk.events ALTER COLUMN list SET STORAGE EXTERNAL;
CREATE TABLE fleetdesk.keys (
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    pools text NOT NULL,
    leaving text NOT NULL,
    managed boolean NOT NULL,
    uid text NOT NULL,
    attributes text NOT NULL,
    exit_ip text NOT NULL COLLATE pg_catalog."C",
    unfit text NOT NULL,
    disabled boolean NOT NULL,
    disabled_reason text NOT NULL,
    disabled_by text NOT NULL,
    disabled_at bigint NOT NULL,
    disabled_auto boolean NOT NULL,
    fence bigint NOT NULL,
    lease_pool text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL,
    account text NOT NULL,
    holder text NOT NULL,
    secret bytea NOT NULL,
    ticket text NOT NULL,
    ttl bigint NOT NULL,
    taken bigint NOT NULL,
    expires bigint NOT NULL,
    check_hook boolean NOT NULL,
    reset_hook boolean NOT NULL,
    resetting boolean NOT NULL,
    unclaimed boolean NOT NULL,
    ended text NOT NULL COLLATE pg_catalog."C",
    ended_at bigint NOT NULL,
    ended_by text NOT NULL,
    past text NOT NULL,
    needs_reset boolean NOT NULL,
    reset_failures bigint NOT NULL,
    errors bigint NOT NULL,
    cool_until bigint NOT NULL,
    used_at bigint NOT NULL,
    free_at bigint NOT NULL,
    rank bigint NOT NULL,
    weight bigint DEFAULT 0 NOT NULL,
    joined bigint DEFAULT 0 NOT NULL,
    seat bigint DEFAULT 0 NOT NULL,
    since bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='60');
CREATE TABLE fleetdesk.lines (
    pool text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL COLLATE pg_catalog."C",
    asked text NOT NULL COLLATE pg_catalog."C",
    no bigint NOT NULL,
    began bigint NOT NULL,
    used bigint NOT NULL,
    first bigint NOT NULL,
    mark bigint NOT NULL
);
CREATE TABLE fleetdesk.members (
    pool text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    leaving boolean NOT NULL,
    exit_ip text NOT NULL COLLATE pg_catalog."C",
    seat bigint DEFAULT 0 NOT NULL
);
CREATE TABLE fleetdesk.old_lines (
    no bigint NOT NULL
);
CREATE TABLE fleetdesk.open_actions (
    action text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    pool text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    "user" text NOT NULL
);
CREATE TABLE fleetdesk.places (
    line bigint NOT NULL,
    parked bigint NOT NULL,
    turn bigint NOT NULL,
    own bigint NOT NULL,
    seat bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE fleetdesk.pools (
    name text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL,
    check_hook boolean NOT NULL,
    reset_hook boolean NOT NULL,
    ttl bigint NOT NULL,
    max_ttl bigint NOT NULL,
    cooldown bigint NOT NULL,
    ban_initial bigint NOT NULL,
    ban_factor double precision NOT NULL,
    ban_max bigint NOT NULL,
    scope text NOT NULL,
    revision bigint NOT NULL,
    author text NOT NULL,
    published bigint NOT NULL,
    in_flight bigint DEFAULT 0 NOT NULL,
    new_share bigint DEFAULT 0 NOT NULL,
    sites boolean DEFAULT false NOT NULL
);
CREATE TABLE fleetdesk.ready (
    pool text NOT NULL COLLATE pg_catalog."C",
    free_at bigint NOT NULL,
    rank bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    held_until bigint NOT NULL,
    auto_disabled boolean NOT NULL,
    exit_ip text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE fleetdesk.resource_action (
    seq bigint NOT NULL,
    action text NOT NULL COLLATE pg_catalog."C",
    phase text NOT NULL COLLATE pg_catalog."C",
    pool text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    verb text NOT NULL,
    "user" text NOT NULL,
    host text NOT NULL,
    command text NOT NULL,
    ok boolean,
    detail text NOT NULL,
    "time" bigint NOT NULL
);
CREATE TABLE fleetdesk.root_key (
    only_row integer NOT NULL,
    value bytea NOT NULL,
    CONSTRAINT root_key_only_row_check CHECK ((only_row = 1))
);
CREATE TABLE fleetdesk.running (
    expires bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE fleetdesk.schema_info (
    only_row integer NOT NULL,
    min_reader bigint NOT NULL,
    CONSTRAINT schema_info_only_row_check CHECK ((only_row = 1))
);
CREATE TABLE fleetdesk.schema_version (
    id integer NOT NULL,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp without time zone DEFAULT now() NOT NULL
);
ALTER TABLE fleetdesk.schema_version ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME fleetdesk.schema_version_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE fleetdesk.tickets (
    id text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL,
    seq bigint NOT NULL,
    pool text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL,
    account text NOT NULL,
    holder text NOT NULL,
    wanted text NOT NULL,
    runs_hooks boolean NOT NULL,
    since bigint NOT NULL,
    live_until bigint NOT NULL,
    place_until bigint NOT NULL,
    granted_key text NOT NULL COLLATE pg_catalog."C",
    granted_fence bigint NOT NULL,
    kept bigint NOT NULL,
    matching text DEFAULT ''::text NOT NULL
);
CREATE TABLE fleetdesk.tokens (
    id text NOT NULL COLLATE pg_catalog."C",
    account text NOT NULL COLLATE pg_catalog."C",
    hash bytea NOT NULL,
    created bigint NOT NULL,
    expires bigint,
    revoked boolean NOT NULL
);
INSERT INTO fleetdesk.accounts VALUES ('ann@example.com', 'viewer', 1793528430123456, false);
INSERT INTO fleetdesk.accounts VALUES ('old', 'admin', -62135596800000000, true);
INSERT INTO fleetdesk.accounts VALUES ('root', 'admin', 1793528431123456, false);
INSERT INTO fleetdesk.changes VALUES ('win-vms', 'change-1', 'add', 'win-04,win-05', 'ann@example.com', 'terminal', 1793528446123456, 1793528506123456);
INSERT INTO fleetdesk.cooldowns VALUES ('exitIP', '192.0.2.1', 'shop.example.com', 1793529043123456, 1, 1793529043123456, 1793615443123456, 1793528442123456, '17=1793529044123456=0');
INSERT INTO fleetdesk.desk VALUES (1, 26, 1, 1793528449123456, 4, 14, 20, 0);
INSERT INTO fleetdesk.events VALUES (1, 1, 1793528433123456, '[{"seq":1,"kind":"published","pool":"win-vms","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (3, 2, 1793528434123456, '[{"seq":3,"kind":"taken","pool":"win-vms","key":"win-01","lease":"win-01~2","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (4, 3, 1793528435123456, '[{"seq":4,"kind":"released","pool":"win-vms","key":"win-01","lease":"win-01~2","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (6, 4, 1793528436123456, '[{"seq":6,"kind":"taken","pool":"win-vms","key":"win-02","lease":"win-02~5","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (7, 5, 1793528437123456, '[{"seq":7,"kind":"disabled","pool":"win-vms","key":"win-02","lease":"win-02~5","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (9, 6, 1793528438123456, '[{"seq":9,"kind":"taken","pool":"win-vms","key":"win-03","lease":"win-03~8","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (10, 7, 1793528439123456, '[{"seq":10,"kind":"published","pool":"win-vms","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (13, 10, 1793528441123456, '[{"seq":11,"kind":"pool","pool":"crawl.eu"},{"seq":12,"kind":"changed","pool":"crawl.eu","key":"crawl.a"},{"seq":13,"kind":"changed","pool":"crawl.eu","key":"crawl.b"}]');
INSERT INTO fleetdesk.events VALUES (15, 11, 1793528442123456, '[{"seq":15,"kind":"taken","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~14","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (16, 12, 1793528443123456, '[{"seq":16,"kind":"banned","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~14","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (18, 13, 1793528444123456, '[{"seq":18,"kind":"taken","pool":"crawl.eu","key":"crawl.a","lease":"crawl.a~17","account":"ann@example.com"}]');
INSERT INTO fleetdesk.events VALUES (20, 14, 1793528446123456, '[{"seq":20,"kind":"change began","pool":"win-vms","account":"ann@example.com"}]');
INSERT INTO fleetdesk.keys VALUES ('win-04', 1, 'win-vms', '', false, '', '', '', '', false, '', '', 0, false, 0, '', '', '', '', '\x0000000000000000000000000000000000000000000000000000000000000000', '', 0, 0, 0, false, false, false, false, '', 0, '', '', false, 0, 0, 0, 0, 0, -62135596800000000, 0, 0, 0, 0);
INSERT INTO fleetdesk.keys VALUES ('win-01', 3, 'win-vms', '', false, '', '', '', '', false, '', '', 0, false, 2, 'win-vms', '', 'ann@example.com', 'job one', '\x7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed', 'one', 1200000000, 1793528434123456, 1793529634123456, true, true, false, false, 'released', 1793528435123456, 'ann@example.com', '', false, 0, 0, 1793528465123456, 1793528435123456, 1793528465123456, 1793528435123456, 0, 0, 0, 0);
INSERT INTO fleetdesk.keys VALUES ('win-02', 3, 'win-vms', '', false, '', '', '', '', true, 'it hangs', 'ann@example.com', 1793528437123456, true, 5, 'win-vms', '', 'ann@example.com', 'job two', '\x3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3', 'two', 1200000000, 1793528436123456, 1793529636123456, true, true, false, false, 'released', 1793528437123456, 'ann@example.com', '', true, 1, 0, 1793528467123456, 1793528437123456, 1099511627776000000, 1793528437123456, 0, 0, 0, 0);
INSERT INTO fleetdesk.keys VALUES ('win-03', 3, '', 'win-vms', false, '', '', '', '', false, '', '', 0, false, 8, 'win-vms', '', 'ann@example.com', 'job three', '\x8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f', 'three', 1200000000, 1793528438123456, 1793529638123456, true, true, false, false, '', 0, '', '', false, 0, 0, 0, 1793528438123456, 1099511627776000000, 1793528438123456, 0, 0, 0, 0);
INSERT INTO fleetdesk.keys VALUES ('crawl.b', 1, 'crawl.eu', '', true, 'uid-b', '', '192.0.2.2', 'two checks failed', false, '', '', 0, false, 0, '', '', '', '', '\x0000000000000000000000000000000000000000000000000000000000000000', '', 0, 0, 0, false, false, false, false, '', 0, '', '', false, 0, 0, 0, 0, 1099511627776000000, -62135596800000000, 0, 0, 25, 0);
INSERT INTO fleetdesk.keys VALUES ('crawl.a', 4, 'crawl.eu', '', true, 'uid-a', '{"city":"Łódź","provider":"kvm"}', '192.0.2.1', '', false, '', '', 0, false, 17, 'crawl.eu', 'news.example.com', 'ann@example.com', 'job five', '\x222b0bd51fcef7e65c2e62db2ed65457013bab56be6fafeb19ee11d453153c80', 'five', 600000000, 1793528444123456, 1793529044123456, false, false, false, false, '', 0, '', '14=released', false, 0, 0, 0, 1793528444123456, 1793529044123456, 1793528444123456, 50, 1793528441123456, 24, 0);
INSERT INTO fleetdesk.lines VALUES ('crawl.eu', 'shop.example.com', '', 26, 1793528442123456, 1793528442123456, 26, 24);
INSERT INTO fleetdesk.members VALUES ('win-vms', 'win-01', false, '', 0);
INSERT INTO fleetdesk.members VALUES ('win-vms', 'win-02', false, '', 0);
INSERT INTO fleetdesk.members VALUES ('win-vms', 'win-04', false, '', 0);
INSERT INTO fleetdesk.members VALUES ('win-vms', 'win-03', true, '', 0);
INSERT INTO fleetdesk.members VALUES ('crawl.eu', 'crawl.a', false, '192.0.2.1', 24);
INSERT INTO fleetdesk.members VALUES ('crawl.eu', 'crawl.b', false, '192.0.2.2', 25);
INSERT INTO fleetdesk.old_lines VALUES (7);
INSERT INTO fleetdesk.open_actions VALUES ('action-number-two', 23, 'win-vms', 'win-01', 'ann@example.com');
INSERT INTO fleetdesk.places VALUES (26, 1793529043123456, 1793528442123456, 1793528442123456, 24, 'crawl.a');
INSERT INTO fleetdesk.places VALUES (7, 0, 1793528442123456, 1793528442123456, 24, 'crawl.a');
INSERT INTO fleetdesk.pools VALUES ('win-vms', 'fixed', true, true, 1200000000, 7200000000, 30000000, 600000000, 2, 86400000000, 'key', 2, 'ann@example.com', 1793528439123456, 0, 0, false);
INSERT INTO fleetdesk.pools VALUES ('crawl.eu', 'managed', false, false, 600000000, 86400000000, 60000000, 600000000, 2, 86400000000, 'exitIP', 0, '', 0, 2, 10, false);
INSERT INTO fleetdesk.ready VALUES ('win-vms', 0, -62135596800000000, 'win-04', 0, false, '');
INSERT INTO fleetdesk.ready VALUES ('win-vms', 1793528465123456, 1793528435123456, 'win-01', 0, false, '');
INSERT INTO fleetdesk.ready VALUES ('win-vms', 1099511627776000000, 1793528437123456, 'win-02', 0, true, '');
INSERT INTO fleetdesk.ready VALUES ('crawl.eu', 1099511627776000000, -62135596800000000, 'crawl.b', 0, false, '192.0.2.2');
INSERT INTO fleetdesk.ready VALUES ('crawl.eu', 1793529044123456, 1793528444123456, 'crawl.a', 1793529044123456, false, '192.0.2.1');
INSERT INTO fleetdesk.resource_action VALUES (21, 'action-number-one', 'started', 'win-vms', 'win-05', 'create', 'ann@example.com', 'desk-7', 'make-vm "$QASIGHT_KEY"', NULL, '', 1793528447123456);
INSERT INTO fleetdesk.resource_action VALUES (22, 'action-number-one', 'finished', 'win-vms', 'win-05', 'create', 'ann@example.com', 'desk-7', 'make-vm "$QASIGHT_KEY"', true, 'done
', 1793528448123456);
INSERT INTO fleetdesk.resource_action VALUES (23, 'action-number-two', 'started', 'win-vms', 'win-01', 'destroy', 'ann@example.com', 'desk-7', 'make-vm "$QASIGHT_KEY"', NULL, '', 1793528449123456);
INSERT INTO fleetdesk.root_key VALUES (1, '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f');
INSERT INTO fleetdesk.running VALUES (1793529638123456, 'win-03');
INSERT INTO fleetdesk.running VALUES (1793529044123456, 'crawl.a');
INSERT INTO fleetdesk.schema_info VALUES (1, 3);
INSERT INTO fleetdesk.schema_version VALUES (1, 0, true, '2026-11-01 10:20:30');
INSERT INTO fleetdesk.schema_version VALUES (2, 1, true, '2026-11-01 10:20:30');
INSERT INTO fleetdesk.schema_version VALUES (3, 2, true, '2026-11-01 10:20:30');
INSERT INTO fleetdesk.schema_version VALUES (4, 3, true, '2026-11-01 10:20:30');
INSERT INTO fleetdesk.tickets VALUES ('one', 'digest of one', 0, 'win-vms', '', 'ann@example.com', 'job one', '', true, 1793528434123456, 0, 0, 'win-01', 2, 1793529034123456, '');
INSERT INTO fleetdesk.tickets VALUES ('two', 'digest of two', 0, 'win-vms', '', 'ann@example.com', 'job two', '', true, 1793528436123456, 0, 0, 'win-02', 5, 1793529036123456, '');
INSERT INTO fleetdesk.tickets VALUES ('three', 'digest of three', 0, 'win-vms', '', 'ann@example.com', 'job three', '', true, 1793528438123456, 0, 0, 'win-03', 8, 1793529038123456, '');
INSERT INTO fleetdesk.tickets VALUES ('four', 'digest of four', 0, 'crawl.eu', 'shop.example.com', 'ann@example.com', 'job four', '', true, 1793528442123456, 0, 0, 'crawl.a', 14, 1793529042123456, '');
INSERT INTO fleetdesk.tickets VALUES ('five', 'digest of five', 0, 'crawl.eu', 'news.example.com', 'ann@example.com', 'job five', '', true, 1793528444123456, 0, 0, 'crawl.a', 17, 1793529044123456, '');
INSERT INTO fleetdesk.tickets VALUES ('six', 'digest of six', 19, 'crawl.eu', 'shop.example.com', 'ann@example.com', 'job six', '{"city":"Łódź"}', false, 1793528445123456, 1793528450123456, 1793528460123456, '', 0, 0, '[{"Attribute":"city","Op":"exists","Values":null}]');
INSERT INTO fleetdesk.tokens VALUES ('anns', 'ann@example.com', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f', 1793528430123456, 1793532030123456, false);
INSERT INTO fleetdesk.tokens VALUES ('ended', 'root', '\xc8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7', 1793528430123456, NULL, true);
INSERT INTO fleetdesk.tokens VALUES ('roots', 'root', '\x6465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283', 1793528430123456, NULL, false);
SELECT pg_catalog.setval('fleetdesk.schema_version_id_seq', 4, true);
ALTER TABLE ONLY fleetdesk.accounts
    ADD CONSTRAINT accounts_pkey PRIMARY KEY (name);
ALTER TABLE ONLY fleetdesk.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY (pool);
ALTER TABLE ONLY fleetdesk.cooldowns
    ADD CONSTRAINT cooldowns_pkey PRIMARY KEY (scope, id, target);
ALTER TABLE ONLY fleetdesk.desk
    ADD CONSTRAINT desk_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY fleetdesk.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (last_seq);
ALTER TABLE ONLY fleetdesk.keys
    ADD CONSTRAINT keys_pkey PRIMARY KEY (name);
ALTER TABLE ONLY fleetdesk.lines
    ADD CONSTRAINT lines_pkey PRIMARY KEY (pool, target, asked);
ALTER TABLE ONLY fleetdesk.members
    ADD CONSTRAINT members_pkey PRIMARY KEY (pool, key);
ALTER TABLE ONLY fleetdesk.old_lines
    ADD CONSTRAINT old_lines_pkey PRIMARY KEY (no);
ALTER TABLE ONLY fleetdesk.open_actions
    ADD CONSTRAINT open_actions_pkey PRIMARY KEY (action);
ALTER TABLE ONLY fleetdesk.places
    ADD CONSTRAINT places_pkey PRIMARY KEY (line, parked, turn, own, seat);
ALTER TABLE ONLY fleetdesk.pools
    ADD CONSTRAINT pools_pkey PRIMARY KEY (name);
ALTER TABLE ONLY fleetdesk.ready
    ADD CONSTRAINT ready_pkey PRIMARY KEY (pool, free_at, rank, key);
ALTER TABLE ONLY fleetdesk.resource_action
    ADD CONSTRAINT resource_action_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY fleetdesk.root_key
    ADD CONSTRAINT root_key_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY fleetdesk.running
    ADD CONSTRAINT running_pkey PRIMARY KEY (expires, key);
ALTER TABLE ONLY fleetdesk.schema_info
    ADD CONSTRAINT schema_info_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY fleetdesk.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fleetdesk.tickets
    ADD CONSTRAINT tickets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY fleetdesk.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
CREATE INDEX changes_by_until ON fleetdesk.changes USING btree (until);
CREATE INDEX cooldowns_by_ban ON fleetdesk.cooldowns USING btree (banned_until, scope, id) WHERE (banned_until > 0);
CREATE INDEX cooldowns_by_forget ON fleetdesk.cooldowns USING btree (forget);
CREATE INDEX cooldowns_by_target ON fleetdesk.cooldowns USING btree (target, until) WHERE (until > 0);
CREATE INDEX keys_by_exit_ip ON fleetdesk.keys USING btree (exit_ip) WHERE (exit_ip <> ''::text);
CREATE INDEX lines_by_use ON fleetdesk.lines USING btree (used, no);
CREATE INDEX members_by_exit_ip ON fleetdesk.members USING btree (pool, exit_ip, leaving) WHERE (exit_ip <> ''::text);
CREATE INDEX members_by_seat ON fleetdesk.members USING btree (pool, seat) WHERE (seat > 0);
CREATE INDEX open_actions_by_seq ON fleetdesk.open_actions USING btree (seq);
CREATE UNIQUE INDEX resource_action_by_action ON fleetdesk.resource_action USING btree (action, phase);
CREATE INDEX resource_action_by_key ON fleetdesk.resource_action USING btree (key, seq);
CREATE INDEX resource_action_by_pool ON fleetdesk.resource_action USING btree (pool, seq);
CREATE INDEX tickets_kept ON fleetdesk.tickets USING btree (kept) WHERE (granted_fence > 0);
CREATE INDEX tickets_places ON fleetdesk.tickets USING btree (place_until) WHERE ((granted_fence = 0) AND (place_until > 0));
CREATE INDEX tickets_waiting ON fleetdesk.tickets USING btree (pool, seq) WHERE (granted_fence = 0);
CREATE INDEX tokens_by_account ON fleetdesk.tokens USING btree (account, id);
ALTER TABLE ONLY fleetdesk.tokens
    ADD CONSTRAINT tokens_account_fkey FOREIGN KEY (account) REFERENCES fleetdesk.accounts(name);
